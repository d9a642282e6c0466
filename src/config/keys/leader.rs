//! The settings of the leader, and of how it reaches Azure.

use headgate_controller::admin_state::{AdminStateMode, ForeignDown};
use headgate_controller::local_pools::LocalPoolsMode;

use super::Key;
use crate::config::value::{
    boolean, causes, cluster_name, int_or_percent, int_or_percent_or_disabled, optional, secret_name, words,
};

/// These settings, in the order of the reference.
#[allow(clippy::too_many_lines, reason = "one table")]
pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "azure.configSecret",
            optional(secret_name()),
            |s| &mut s.azure.config_secret,
            "A Secret, `NAMESPACE/NAME`, whose key `cloud-config` has `azure.json`, read as cloud-provider-azure reads it. It wins over \
             the file of `--azure-config-file`, key by key, or replaces it (`cloudConfigType` in the file: `file`, `secret` or `merge`). \
             Without both only a controller with `maintenance.enabled` stands for election, for maintenances alone. A mistake in the \
             file ends the process at its start; both are read again every minute of a term. The leader needs the right to `get` the \
             Secret. One key is headgate's own: `enableLoadBalancerAdminState` (false means `adminState.mode: Disabled`). In the chart: \
             `azure.configSecret`.",
        ),
        Key::new(
            "azure.clusterName",
            cluster_name(),
            |s| &mut s.azure.cluster_name,
            "The cluster's name, after which its load balancers are named: cloud-controller-manager's `--cluster-name`. `azure.json` does \
             not have it.",
        ),
        Key::new(
            "adminState.mode",
            words(&AdminStateMode::ALL, AdminStateMode::as_str),
            |s| &mut s.admin_state.mode,
            "`Enforce` writes admin states. `Observe` writes no pool, so that a `Down` from before stays, and `headgate status` and \
             `headgate_pool_desired_down` show what would be written. `Disabled` restores every `Down` that headgate set, and then writes \
             nothing.",
        ),
        Key::new(
            "adminState.foreignDown",
            words(&ForeignDown::ALL, ForeignDown::as_str),
            |s| &mut s.admin_state.foreign_down,
            "What the leader does in mode `Enforce` with a `Down` that headgate did not set, on a node without a signal: `Keep` leaves \
             it, `Restore` sets it to `None`. An `Up` is never changed.",
        ),
        Key::new(
            "adminState.minimumInService",
            int_or_percent_or_disabled(),
            |s| &mut s.guard.minimum_in_service,
            "How many entries of each backend pool that a rule uses stay in service, whatever the signals: `1` to `5000`, `1%` to \
             `100%` of the pool's entries, rounded up, or `Disabled`. It needs the controllers and `adminState.mode: Enforce`. Guide: \
             docs/concepts/how-it-works.md.",
        ),
        Key::new(
            "adminState.maxNewDown",
            int_or_percent(),
            |s| &mut s.guard.max_new_down,
            "How many entries of each backend pool become `Down` within 5 minutes, at most, for signals that may be a mistake: `1` to \
             `5000`, or `1%` to `99%` rounded down, at least one; `100%` disables it. Guide: docs/concepts/how-it-works.md.",
        ),
        Key::new(
            "localPools",
            words(&LocalPoolsMode::ALL, LocalPoolsMode::as_str),
            |s| &mut s.local_pools,
            "Whether the leader updates the members of the backend pools that Services with `externalTrafficPolicy: Local` have of their \
             own. `Auto`: where `azure.json` has `multipleStandardLoadBalancerConfigurations`. `AllEndpoints`: everywhere; the nodes of \
             all endpoints are members. `ReadyEndpoints`: those of ready endpoints only, for clusters where cloud-controller-manager does \
             not update these pools, because it adds the others again. `Disabled`: never. It needs `adminState.mode: Enforce`. Guide: \
             docs/concepts/local-services.md.",
        ),
        Key::new(
            "maintenance.enabled",
            boolean(),
            |s| &mut s.maintenance.enabled,
            "Whether the leader acts on NodeMaintenances. In the chart: `maintenance.enabled`; it needs the controllers. Guide: \
             docs/guides/maintenance.md.",
        ),
        Key::new(
            "maintenance.maxConcurrentNodes",
            int_or_percent(),
            |s| &mut s.maintenance.max_concurrent_nodes,
            "How many nodes all NodeMaintenances together may have cordoned at once: `1` to `5000`, or `1%` to `99%` of all Nodes, \
             rounded down, at least one; `100%` disables it. What is cordoned stays, also after the limit became smaller. Guide: \
             docs/guides/maintenance.md.",
        ),
        Key::new(
            "maintenance.automatic",
            causes(),
            |s| &mut s.maintenance.automatic.causes,
            "For which nodes the leader creates a NodeMaintenance `automatic-NODE`, with a deadline: `preempt` and `terminate` (Azure has \
             announced it; until its `NotBefore`), `shutdown` (kubelet shuts the node down; 30 s), `autoscaler` (the taint \
             `ToBeDeletedByClusterAutoscaler`, or `karpenter.sh/disrupted` on a Node that is being deleted; 10 min), `machine` (a Machine \
             of Cluster API in the same cluster is deleted; 10 min). Another time is an entry such as `{cause: shutdown, timeout: 1m}`, \
             from `1s` to `24h`: the `shutdownGracePeriod` of your kubelets, `--max-graceful-termination-sec` of Cluster Autoscaler, or \
             `terminationGracePeriod` of a NodePool. `preempt` and `terminate` need `evictionNotices`, `terminate` also the signal of this name \
             in `signals.extra`. In the chart: `maintenance.automatic`. Guide: docs/guides/maintenance.md.",
        ),
        Key::new(
            "maintenance.pauseUpgrades",
            boolean(),
            |s| &mut s.maintenance.pauses_upgrades,
            "Whether nodes under maintenance, from the stage `Cordon` to the end, have the label `kubernetes.azure.com/upgrade-status: \
             paused`, which keeps them out of upgrades of AKS. Nodes that have it already keep it, and those whose maintenance has a \
             deadline do not get it. **Unverified**: the label is proposed in Azure/AKS#5944, and an AKS that does not know it ignores \
             it.",
        ),
    ]
}
