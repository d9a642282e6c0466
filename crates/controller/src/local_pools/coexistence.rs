//! How headgate updates pools beside cloud-controller-manager. That has an updater of Local Services' pools of its
//! own, which cannot be switched off.
//!
//! Both compute one set of members from the same endpoints, so each finds the other's work done and writes nothing
//! (`difference`). That holds only while headgate counts endpoints as cloud-controller-manager does, and leaves alone
//! the pools that cloud-controller-manager leaves alone; this module holds both rules. Neither creates nor deletes pools
//! here, and both write under the shared Lease, which is the writer's.
//!
//! Source: cloud-provider-azure `UseMultipleStandardLoadBalancers`, `isBackendPoolPreConfigured`.

use headgate_core::telemetry::words;

use crate::local_pools::selection::EndpointSelection;

words! {
    /// The setting `localPools.enabled`: whether this process updates pools of Local Services.
    #[derive(Default)]
    pub enum Enabled {
        /// On where cloud-controller-manager runs its own updater.
        #[default]
        Auto = "auto",
        /// Pools are always updated.
        On = "on",
        /// Pools are never updated.
        Off = "off",
    }
}

/// The keys of `azure.json` that decide whether Local Services have pools of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudConfig {
    /// `loadBalancerSku`; absent means `standard`.
    pub load_balancer_sku: Option<String>,
    /// The number of `multipleStandardLoadBalancerConfigurations`.
    pub load_balancer_configurations: usize,
}

/// Whether pools are updated. With `Auto`, this is the condition under which cloud-controller-manager runs its updater: the
/// SKU is standard and at least one load balancer is configured in `multipleStandardLoadBalancerConfigurations`.
#[must_use]
pub fn is_active(enabled: Enabled, config: &CloudConfig) -> bool {
    let sku = config.load_balancer_sku.as_deref().filter(|sku| !sku.is_empty());
    let is_standard = sku.is_none_or(|sku| sku.eq_ignore_ascii_case("standard"));
    match enabled {
        Enabled::Auto => is_standard && config.load_balancer_configurations > 0,
        Enabled::On => true,
        Enabled::Off => false,
    }
}

/// `localPools.endpoints: ready` without `localPools.enabled: on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "localPools.endpoints: ready needs localPools.enabled: on, because cloud-controller-manager's updater counts every \
     endpoint and would add the others again"
)]
pub struct RejectedSelection;

/// Checks the setting `localPools.endpoints` against `localPools.enabled`.
///
/// # Errors
/// [`EndpointSelection::Ready`] without [`Enabled::On`].
pub fn resolve_selection(
    enabled: Enabled,
    selection: EndpointSelection,
) -> Result<EndpointSelection, RejectedSelection> {
    match (enabled, selection) {
        (_, EndpointSelection::All) | (Enabled::On, EndpointSelection::Ready) => Ok(selection),
        (Enabled::Auto | Enabled::Off, EndpointSelection::Ready) => Err(RejectedSelection),
    }
}

/// `preConfiguredBackendPoolLoadBalancerTypes`: the load balancers with pool members that others manage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreConfigured {
    /// The key is empty or absent.
    #[default]
    None,
    /// Load balancers with names that end with `-internal`.
    Internal,
    /// External load balancers only.
    External,
    /// External and internal load balancers.
    All,
}

impl PreConfigured {
    /// Whether members of this load balancer's pools are left alone.
    #[must_use]
    pub fn covers(self, load_balancer: &str) -> bool {
        let is_internal = load_balancer.to_ascii_lowercase().ends_with("-internal");
        match self {
            Self::None => false,
            Self::Internal => is_internal,
            Self::External => !is_internal,
            Self::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_follows_the_condition_of_cloud_controller_manager() {
        for (sku, configurations, is_auto) in [
            (None, 0, false),
            (None, 1, true),
            (Some(""), 2, true),
            (Some("Standard"), 2, true),
            (Some("basic"), 2, false),
            (Some("service"), 2, false),
            (Some("standard"), 0, false),
        ] {
            let config = CloudConfig {
                load_balancer_sku: sku.map(str::to_owned),
                load_balancer_configurations: configurations,
            };
            assert_eq!(is_active(Enabled::Auto, &config), is_auto, "{config:?}");
            assert!(is_active(Enabled::On, &config));
            assert!(!is_active(Enabled::Off, &config));
        }
    }

    #[test]
    fn ready_endpoints_only_need_an_explicit_on() {
        use EndpointSelection::{All, Ready};
        for enabled in [Enabled::Auto, Enabled::On, Enabled::Off] {
            assert_eq!(resolve_selection(enabled, All), Ok(All));
        }
        assert_eq!(resolve_selection(Enabled::On, Ready), Ok(Ready));
        assert_eq!(resolve_selection(Enabled::Auto, Ready), Err(RejectedSelection));
        assert_eq!(resolve_selection(Enabled::Off, Ready), Err(RejectedSelection));
    }

    #[test]
    fn pre_configured_pools_follow_the_kind_of_load_balancer() {
        for (kind, external, internal) in [
            (PreConfigured::None, false, false),
            (PreConfigured::Internal, false, true),
            (PreConfigured::External, true, false),
            (PreConfigured::All, true, true),
        ] {
            assert_eq!(
                (kind.covers("LB"), kind.covers("lb-INTERNAL")),
                (external, internal),
                "{kind:?}"
            );
        }
    }
}
