//! The settings of the leader, and of how it reaches Azure.

use headgate_controller::admin_state::{AdminStateMode, ForeignDown};
use headgate_controller::local_pools::LocalServicePools;

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
            "A Secret, `NAMESPACE/NAME`, whose key `cloud-config` has the cloud provider's configuration, `azure.json`, read as \
             cloud-provider-azure reads it. It wins over the file of `--azure-config-file`, key by key, or replaces it (`cloudConfigType` in \
             the file selects `file`, `secret` or `merge`). Without both this process does not stand for election and sends no request to \
             Azure. The file is read at the start, where a mistake ends the process with exit code 2, and both every minute of a term; the \
             leader needs the right to `get` the Secret. One key is headgate's own: `enableLoadBalancerAdminState` (false means \
             `adminState.mode: Disabled`). In the chart: `azure.configSecret`.",
        ),
        Key::new(
            "azure.clusterName",
            cluster_name(),
            |s| &mut s.azure.cluster_name,
            "The cluster's name, after which its load balancers are named: the value of `--cluster-name` of \
             cloud-controller-manager. `azure.json` does not have it.",
        ),
        Key::new(
            "adminState.mode",
            words(&AdminStateMode::ALL, AdminStateMode::as_str),
            |s| &mut s.admin_state.mode,
            "What the leader does with admin states. `Enforce` writes them. `Observe` computes them, which `headgate status` and \
             `headgate_pool_desired_down` show, and writes no pool. `Disabled` restores every `Down` that headgate set, and then writes \
             nothing.",
        ),
        Key::new(
            "adminState.foreignDown",
            words(&ForeignDown::ALL, ForeignDown::as_str),
            |s| &mut s.admin_state.foreign_down,
            "What the leader does in mode `Enforce` with a `Down` that headgate did not set, on a node without a \
             signal: `Keep` leaves it and `headgate status` shows it, `Restore` sets it to `None`. An `Up` is never \
             changed.",
        ),
        Key::new(
            "adminState.minimumInService",
            int_or_percent_or_disabled(),
            |s| &mut s.guard.minimum_in_service,
            "How many entries of each backend pool that a rule uses stay in service, whatever the signals: a number, or a \
             percentage of the pool's entries such as `20%`, rounded up; or `Disabled`. If fewer can serve, the leader keeps \
             entries of Ready Nodes in service and records a hold on their Nodes, with which their agents answer 200. It never \
             keeps a Node that is out of service, shut down, being deleted or evicted. It needs the controllers and \
             `adminState.mode: Enforce`.",
        ),
        Key::new(
            "adminState.maxNewDown",
            int_or_percent(1),
            |s| &mut s.guard.max_new_down,
            "How many entries of each backend pool become `Down` within 5 minutes, at most, for signals that may be a mistake: a \
             cordon, a matcher of conditions, labels or annotations, and `headgate.dev/maintenance`. A number, or a percentage \
             rounded down, at least one; `100%` disables it. The others wait in the order of age.",
        ),
        Key::new(
            "localServicePools",
            words(&LocalServicePools::ALL, LocalServicePools::as_str),
            |s| &mut s.local_service_pools,
            "Whether the leader updates the members of the backend pools that Services with `externalTrafficPolicy: Local` have of \
             their own. `Auto`: where `azure.json` has `multipleStandardLoadBalancerConfigurations`. `AllEndpoints`: everywhere; the nodes of \
             all endpoints are members, as cloud-controller-manager counts them. `ReadyEndpoints`: those of ready endpoints only, which \
             is for clusters where cloud-controller-manager does not update these pools, because it adds the others again. `Disabled`: never. \
             Guide: docs/concepts/local-services.md.",
        ),
        Key::new(
            "maintenance.enabled",
            boolean(),
            |s| &mut s.maintenance.enabled,
            "Whether the leader acts on NodeMaintenances: nodes leave their load balancers, verified by a read, before the first \
             pod is evicted. In the chart: `maintenance.enabled`; it needs the controllers. \
             Guide: docs/guides/maintenance.md.",
        ),
        Key::new(
            "maintenance.maxConcurrentNodes",
            int_or_percent(1),
            |s| &mut s.maintenance.max_concurrent_nodes,
            "How many nodes NodeMaintenances may have cordoned at once, all of them together: a number, or a percentage of all Nodes, rounded \
             down, but at least one. The others wait with the message `Held back` in `status.nodeStatuses`, older maintenances first, and are \
             taken up as soon as a maintenance gives a node back or a node is deleted. What is cordoned stays, also after the limit became \
             smaller; nodes with an eviction notice never wait. `100%` disables it.",
        ),
        Key::new(
            "maintenance.automatic",
            causes(),
            |s| &mut s.maintenance.automatic.causes,
            "For which nodes the leader creates a NodeMaintenance `automatic-NODE`, with a deadline: `preempt` and `terminate` (Azure has \
             announced it, and the notice is recorded on the Node; until its `NotBefore`), `shutdown` (kubelet shuts the node down), \
             `autoscaler` (the taint `ToBeDeletedByClusterAutoscaler`, or `karpenter.sh/disrupted` on a Node that is being deleted), `machine` (a Machine of Cluster API in \
             the same cluster is deleted; it waits where it has the annotation `pre-drain.delete.hook.machine.cluster.x-k8s.io/headgate` or \
             `pre-terminate.delete.hook.machine.cluster.x-k8s.io/headgate`, which the leader removes once the node is out of its load balancers \
             and its connections are gone). Load balancers first, then the pods in \
             order, and after half of the time all pods; grace periods are cut to what is left of an announced time. Such a maintenance does not wait for \
             `maintenance.maxConcurrentNodes`, and counts. It is deleted when the Node is gone or the cause is. It needs \
             `maintenance.automatic` of the chart; `terminate` also the signal of this name in `signals.extra`. The deadline of `shutdown` is 30 s \
             after the creation, that of `autoscaler` and `machine` 10 min. Another time is an entry such as `{cause: shutdown, timeout: 1m}`, from \
             `1s` to `24h`: the `shutdownGracePeriod` of your kubelets, `--max-graceful-termination-sec` of Cluster Autoscaler, or \
             `terminationGracePeriod` of a NodePool.",
        ),
        Key::new(
            "maintenance.pauseUpgrades",
            boolean(),
            |s| &mut s.maintenance.pauses_upgrades,
            "Whether the leader keeps nodes under maintenance out of upgrades of AKS: from the stage `Cordon` on they have the label \
             `kubernetes.azure.com/upgrade-status: paused`, unless they have that label already, and lose it at the end. Nodes whose maintenance \
             has a deadline do not. **Unverified**: the label is proposed in Azure/AKS#5944, and an AKS that does not know it ignores it.",
        ),
    ]
}
