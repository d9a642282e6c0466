//! How headgate updates pools beside cloud-controller-manager. That has an updater of Local Services' pools of its
//! own, which cannot be switched off.
//!
//! Both compute one set of members from the same endpoints, so each finds the other's work done and writes nothing
//! (`difference`). That holds only while headgate counts endpoints as cloud-controller-manager does, and leaves alone
//! the pools that cloud-controller-manager leaves alone; the settings here hold both rules. Neither creates nor deletes pools
//! here, and both write under the shared Lease, which is the writer's.
//!
//! Source: cloud-provider-azure `UseMultipleStandardLoadBalancers`, `isBackendPoolPreConfigured`.

use headgate_core::telemetry::words;

words! {
    /// The setting `localPools`: whether this process updates pools of Local Services, and whose nodes are members.
    #[derive(Default)]
    pub enum LocalPoolsMode {
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
