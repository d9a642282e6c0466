//! The load balancers and the identity that a process works with: what `azure.json` and the settings name.

use std::fmt::Display;

use futures::future::BoxFuture;
use headgate_azure::{ArmClient, AzureJson, InvalidId, ResourceGroupId};

use crate::local_pools::LocalPoolsTarget;
use crate::pool::{ListScope, ManagedLoadBalancers};

/// An ARM client, and what of Azure belongs to the cluster.
#[derive(Clone, Debug)]
pub struct ClusterTarget {
    /// The client, with the identity of `azure.json`.
    pub arm: ArmClient,
    /// The cluster's load balancers.
    pub scope: ListScope,
    /// `excludeMasterFromStandardLB`: whether control-plane nodes are in no load balancer.
    pub exclude_control_plane: bool,
    /// `enableLoadBalancerAdminState`: `false` turns the mode `off`.
    pub is_admin_state_enabled: bool,
    /// Whether and how pools of Local Services are updated.
    pub local_pools: LocalPoolsTarget,
}

impl ClusterTarget {
    /// The load balancers of the cluster of this name. Source: cloud-provider-azure `ListManagedLBs`, except that headgate
    /// also includes the one that `loadBalancerName` names.
    ///
    /// # Errors
    /// If the subscription or the resource group is not a valid name.
    pub fn new(arm: ArmClient, config: &AzureJson, cluster_name: &str) -> Result<Self, InvalidId> {
        let subscription = config.subscription_id.as_deref().unwrap_or_default();
        let group = ResourceGroupId::new(subscription, config.load_balancers_group().unwrap_or_default())?;
        let names = config.load_balancers.iter().chain(&config.load_balancer_name);
        let names = names.map(String::as_str).chain([cluster_name]);
        Ok(Self {
            arm,
            scope: ListScope {
                group,
                managed: ManagedLoadBalancers::new(names),
            },
            exclude_control_plane: config.exclude_master_from_standard_lb,
            is_admin_state_enabled: config.enable_load_balancer_admin_state,
            local_pools: LocalPoolsTarget::new(config),
        })
    }
}

/// Where the work of a term gets its cluster target from.
pub trait TargetSource: Send + Sync {
    /// Names what prevents the connection and what to do about it.
    type Error: Display + Send;

    /// Connects with the present configuration. The caller retries.
    fn connect(&self) -> impl Future<Output = Result<ClusterConnection, Self::Error>> + Send;
}

/// A cluster target, for as long as the configuration that it was made from is the present one.
pub struct ClusterConnection {
    /// What the work writes to.
    pub target: ClusterTarget,
    /// Ends when the configuration has changed.
    pub config_changed: BoxFuture<'static, ()>,
}
