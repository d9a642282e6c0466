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
    /// The setting `localServicePools`: whether this process updates pools of Local Services, and whose nodes are members.
    #[derive(Default)]
    pub enum LocalServicePools {
        /// Updated where cloud-controller-manager runs its own updater, and as it does.
        #[default]
        Auto = "Auto",
        /// Always updated, with the nodes of all endpoints.
        AllEndpoints = "AllEndpoints",
        /// Always updated, with the nodes of ready endpoints only.
        ReadyEndpoints = "ReadyEndpoints",
        /// Never updated.
        Disabled = "Disabled",
    }
}

impl LocalServicePools {
    /// The endpoints that make their node a member.
    pub fn selection(self) -> EndpointSelection {
        match self {
            Self::ReadyEndpoints => EndpointSelection::Ready,
            Self::Auto | Self::AllEndpoints | Self::Disabled => EndpointSelection::All,
        }
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
pub fn is_active(setting: LocalServicePools, config: &CloudConfig) -> bool {
    let sku = config.load_balancer_sku.as_deref().filter(|sku| !sku.is_empty());
    let is_standard = sku.is_none_or(|sku| sku.eq_ignore_ascii_case("standard"));
    match setting {
        LocalServicePools::Auto => is_standard && config.load_balancer_configurations > 0,
        LocalServicePools::AllEndpoints | LocalServicePools::ReadyEndpoints => true,
        LocalServicePools::Disabled => false,
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
            assert_eq!(is_active(LocalServicePools::Auto, &config), is_auto, "{config:?}");
            assert!(is_active(LocalServicePools::AllEndpoints, &config));
            assert!(is_active(LocalServicePools::ReadyEndpoints, &config));
            assert!(!is_active(LocalServicePools::Disabled, &config));
        }
    }

    #[test]
    fn only_an_explicit_choice_leaves_endpoints_out() {
        for setting in LocalServicePools::ALL {
            let leaves_out = setting.selection() == EndpointSelection::Ready;
            assert_eq!(leaves_out, setting == LocalServicePools::ReadyEndpoints, "{setting:?}");
        }
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
