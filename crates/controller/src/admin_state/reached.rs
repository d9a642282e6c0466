//! ARM, and what of it is the cluster's, as `azure.json` says.

use headgate_azure::AzureJson;
use headgate_azure::{ArmClient, InvalidId, ResourceGroupId};

use crate::pool::{Managed, Scope};

/// ARM, and what of it is the cluster's.
#[derive(Clone, Debug)]
pub struct Reached {
    /// ARM.
    pub arm: ArmClient,
    /// The cluster's load balancers.
    pub scope: Scope,
    /// Whether control-plane nodes are in no load balancer.
    pub exclude_control_plane: bool,
    /// Whether `azure.json` says that admin states are to be set.
    pub enabled: bool,
}

impl Reached {
    /// The load balancers of the cluster of this name. Source: cloud-provider-azure `ListManagedLBs`, which leaves out the
    /// one that `loadBalancerName` names.
    ///
    /// # Errors
    /// Where the subscription or the resource group cannot be one.
    pub fn of(arm: ArmClient, config: &AzureJson, cluster_name: &str) -> Result<Self, InvalidId> {
        let subscription = config.subscription_id.as_deref().unwrap_or_default();
        let group = ResourceGroupId::new(subscription, config.load_balancers_group().unwrap_or_default())?;
        let names = config.load_balancers.iter().chain(&config.load_balancer_name);
        let names = names.map(String::as_str).chain([cluster_name]);
        Ok(Self {
            arm,
            scope: Scope {
                group,
                managed: Managed::new(names),
            },
            exclude_control_plane: config.exclude_master_from_standard_lb,
            enabled: config.enable_load_balancer_admin_state,
        })
    }
}
