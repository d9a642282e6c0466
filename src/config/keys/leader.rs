//! The settings of the leader, and of how it reaches Azure.

use std::time::Duration;

use headgate_controller::admin_state::{AdminStateMode, ForeignDown};
use headgate_controller::local_pools::{Enabled, EndpointSelection};

use super::{HOUR, Key, MINUTE, SECOND};
use crate::config::MarkerMode;
use crate::config::value::{
    boolean, causes, cluster_name, duration, file, http_server, int_or_percent, optional, secret_name, words,
};

/// These settings, in the order of the reference.
#[allow(clippy::too_many_lines, reason = "one table")]
pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "leaderElection.leaderElect",
            boolean(),
            |s| &mut s.leader_election.leader_elect,
            "Whether this process stands for election where its role and the settings of `azure` allow it. `false` is what \
             `--role=agent` is.",
        ),
        Key::new(
            "azure.imdsEndpoint",
            http_server(),
            |s| &mut s.azure.imds_authority,
            "Address of the instance metadata service. Change it for tests and simulators only.",
        )
        .flag("--imds-endpoint"),
        Key::new(
            "azure.configFile",
            optional(file()),
            |s| &mut s.azure.config_file,
            "The cloud provider's configuration, `azure.json`, read as cloud-provider-azure reads it. Without it, and without \
             `azure.configSecret`, this process does not stand for election and sends no request to Azure. It is read at the start, \
             where a mistake ends the process with exit code 2, and every minute of a term. One key is headgate's own: \
             `enableLoadBalancerAdminState` (false means `adminState.mode: off`).",
        )
        .flag("--azure-config-file"),
        Key::new(
            "azure.configSecret",
            optional(secret_name()),
            |s| &mut s.azure.config_secret,
            "A Secret, `NAMESPACE/NAME`, whose key `cloud-config` wins over `azure.configFile`, key by key, or replaces it \
             (`cloudConfigType` in the file selects `file`, `secret` or `merge`). The leader reads it every minute and needs the \
             right to `get` it. In the chart: `azure.configSecret`.",
        ),
        Key::new(
            "azure.clusterName",
            cluster_name(),
            |s| &mut s.azure.cluster_name,
            "The cluster's name, after which its load balancers are named: the value of `--cluster-name` of \
             cloud-controller-manager. `azure.json` does not have it.",
        ),
        Key::new(
            "azure.preemptEvents",
            boolean(),
            |s| &mut s.azure.preempt_events,
            "Whether the leader turns an event `PreemptScheduled` of a Node with a label of spot VMs, as AKS emits it, into the \
             taint `cloudprovider.azure.microsoft.com/draining=spot-eviction:NoSchedule`, at most five in a minute. \
             `node.scheduledEvents` is faster. It needs the controllers. **Risk**: who may create events in `default`, every \
             kubelet among them, can have such Nodes tainted.",
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
             `maintenance.automatic` of the chart; `terminate` also `azureTerminate` in `signals.healthBuiltIn`.",
        ),
        Key::new(
            "maintenance.shutdownGracePeriod",
            duration(SECOND, HOUR),
            |s| &mut s.maintenance.automatic.shutdown_grace_period,
            "The deadline of a maintenance for `shutdown`, from its creation on: the `shutdownGracePeriod` of your kubelets. From `1s` to `1h`.",
        ),
        Key::new(
            "maintenance.autoscalerDrainTimeout",
            duration(SECOND, 24 * HOUR),
            |s| &mut s.maintenance.automatic.autoscaler_drain_timeout,
            "The deadline of a maintenance for `autoscaler` and `machine`, from its creation on: how long they drain a node at most, \
             such as `--max-graceful-termination-sec` of Cluster Autoscaler or `terminationGracePeriod` of a NodePool. From `1s` to `24h`.",
        ),
        Key::new(
            "maintenance.pauseUpgrades",
            boolean(),
            |s| &mut s.maintenance.pauses_upgrades,
            "Whether the leader keeps nodes under maintenance out of upgrades of AKS: from the stage `Cordon` on they have the label \
             `kubernetes.azure.com/upgrade-status: paused`, unless they have that label already, and lose it at the end. Nodes whose maintenance \
             has a deadline do not. **Unverified**: the label is proposed in Azure/AKS#5944, and an AKS that does not know it ignores it.",
        ),
        Key::new(
            "adminState.mode",
            words(&AdminStateMode::ALL, AdminStateMode::as_str),
            |s| &mut s.admin_state.mode,
            "What the leader does with admin states. `enforce` writes them. `observe` computes them, which `headgate status` and \
             `headgate_pool_desired_down` show, and writes no pool. `off` restores every `Down` that headgate set, and then writes \
             nothing.",
        ),
        Key::new(
            "adminState.foreignDown",
            words(&ForeignDown::ALL, ForeignDown::as_str),
            |s| &mut s.admin_state.foreign_down,
            "What the leader does in mode `enforce` with a `Down` that headgate did not set, on a node without a \
             signal: `keep` leaves it and `headgate status` shows it, `restore` sets it to `None`. An `Up` is never \
             changed.",
        ),
        Key::new(
            "adminState.listFailureTimeout",
            duration(MINUTE, HOUR),
            |s| &mut s.admin_state.list_failure_timeout,
            "For how long lists of load balancers, or tokens for them, may fail before the leader looks for a successor, which has \
             to volunteer; otherwise the leader goes on trying. Throttled time does not count. From `1m` to `1h`.",
        ),
        Key::new(
            "adminState.staleNodesTimeout",
            duration(2 * MINUTE, HOUR),
            |s| &mut s.admin_state.stale_nodes_timeout,
            "For how long the leader follows Nodes that the API server does not confirm. After that it writes no admin states and \
             no members, with the event `LoadBalancerAdminStateNodesStale`, until a list or watch succeeds. The mode `off` gives \
             back nevertheless. From `2m` to `1h`.",
        ),
        Key::new(
            "adminState.leaseBypass",
            duration(Duration::ZERO, 30 * SECOND),
            |s| &mut s.admin_state.lease_bypass,
            "From how long before an announced eviction on the leader sets the node `Down` without waiting for the Lease that it \
             shares with cloud-controller-manager. Everything else waits. **Risk**: the holder of the Lease writes pools without \
             `If-Match`, so it may undo the `Down`, and the two operations may reject each other. From `0s`, which means never, to \
             `30s`.",
        ),
        Key::new(
            "localPools.enabled",
            words(&Enabled::ALL, Enabled::as_str),
            |s| &mut s.local_pools.enabled,
            "Whether the leader updates the members of the backend pools that Services with `externalTrafficPolicy: Local` have of \
             their own. `auto`: where `azure.json` has `multipleStandardLoadBalancerConfigurations`. Guide: \
             docs/concepts/local-services.md.",
        ),
        Key::new(
            "localPools.interval",
            duration(Duration::ZERO, HOUR),
            |s| &mut s.local_pools.interval,
            "Time from one round of these updates to the next, up to `1h`. `0s` means \
             `loadBalancerBackendPoolUpdateIntervalInSeconds` of `azure.json`, or 30 s.",
        ),
        Key::new(
            "localPools.resyncInterval",
            duration(30 * SECOND, 24 * HOUR),
            |s| &mut s.local_pools.resync_interval,
            "After this time at the latest every pool is compared again, and an update that was given up is tried again. From `30s` \
             to `24h`.",
        ),
        Key::new(
            "localPools.endpoints",
            words(&EndpointSelection::ALL, EndpointSelection::as_str),
            |s| &mut s.local_pools.endpoints,
            "The endpoints whose nodes are members: `all`, as cloud-controller-manager counts them, or `ready`, which needs \
             `localPools.enabled: 'on'`, because cloud-controller-manager adds the others again.",
        ),
        Key::new(
            "guard.minimumInService",
            int_or_percent(0),
            |s| &mut s.guard.minimum_in_service,
            "How many entries of each backend pool that a rule uses stay in service, whatever the signals: a number, or a \
             percentage of the pool's entries such as `20%`, rounded up; `0` disables it. If fewer can serve, the leader keeps \
             entries of Ready Nodes in service and records a hold on their Nodes, with which their agents answer 200. It never \
             keeps a Node that is out of service, shut down, being deleted or evicted. It needs the controllers and \
             `adminState.mode: enforce`.",
        ),
        Key::new(
            "guard.maxNewDown",
            int_or_percent(1),
            |s| &mut s.guard.max_new_down,
            "How many entries of each backend pool become `Down` within 5 minutes, at most, for signals that may be a mistake: a \
             cordon, a matcher of conditions, labels or annotations, and `headgate.dev/maintenance`. A number, or a percentage \
             rounded down, at least one; `100%` disables it. The others wait in the order of age.",
        ),
        Key::new(
            "marker.mode",
            words(&MarkerMode::ALL, MarkerMode::as_str),
            |s| &mut s.marker.mode,
            "`adminState`: the leader writes the Node condition `headgate.dev/OutOfLoadBalancers`, by which tools know that a node \
             with a signal has left its load balancers; without a confirmation for 3 min the agents make it `Unknown`. In the \
             chart: `outOfLoadBalancers.enabled`; it needs the controllers. Reasons: \
             docs/reference/events.md.",
        ),
    ]
}
