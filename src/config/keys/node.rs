//! The settings of a process that serves the health port of its node.

use std::time::Duration;

use headgate_http::server::ProxyProtocol;

use super::{Key, MINUTE, SECOND};
use crate::config::value::{
    bind_address, boolean, duration, health_server, notice_sources, optional, positive_number, prefixes, words,
};
use crate::config::{ConditionSource, HEALTHZ_PORT, ServiceHealth};

/// More than any load balancer's threshold, times the load balancers of a node.
const MAX_FAILED_PROBES: u32 = 100;
/// Of the delay of Cluster Autoscaler.
const MAX_DELAY: Duration = MINUTE.saturating_mul(10);

/// These settings, in the order of the reference.
#[allow(clippy::too_many_lines, reason = "one table")]
pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "healthzBindAddress",
            bind_address(HEALTHZ_PORT),
            |s| &mut s.healthz_bind_address,
            "Address and port of `/healthz` and `/livez`. `[::]` serves both IP families; on a machine without IPv6 \
             it falls back to `0.0.0.0`. Port 0 selects a free port.",
        )
        .flag("--healthz-bind-address"),
        Key::new(
            "proxyProtocol",
            words(&ProxyProtocol::ALL, ProxyProtocol::as_str),
            |s| &mut s.proxy_protocol,
            "Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header (version 1 or 2), as probes behind \
             an Azure Private Link Service do. `Disabled` rejects a header, `Optional` accepts connections with and without one, \
             `Required` closes those without. A malformed header, or one larger than 2 KiB, closes the connection.",
        ),
        Key::new(
            "kubeProxyHealthzUrl",
            health_server(),
            |s| &mut s.kube_proxy.healthz_authority,
            "Address of kube-proxy's health server, of which the agent asks `/livez`, or `/healthz` before kube-proxy 1.28. `Disabled` \
             polls nothing. An address that was not reached since the start is ignored with a warning, so clusters without kube-proxy \
             need no setting. It is polled each second; a 503 counts at once, and no answer for 1 min makes the node unhealthy.",
        ),
        Key::new(
            "serviceHealthChecks",
            words(&ServiceHealth::ALL, ServiceHealth::as_str),
            |s| &mut s.service_health,
            "Health of single Services with `externalTrafficPolicy: Local`: 200 if the node has a ready endpoint. It fails on the \
             node's signals too, while another Ready node without a signal has a ready endpoint of the Service. `Disabled`: not served. `Path`: at `/healthz/services/NAMESPACE/NAME` of the health port. `NodePorts`: on each Service's \
             `healthCheckNodePort`, one socket for each IP family; only for nodes without kube-proxy. In the chart: \
             `serviceHealthChecks`. Guide: docs/guides/health-checks.md.",
        ),
        Key::new(
            "connections.count",
            boolean(),
            |s| &mut s.count_connections,
            "Whether the established connections through the node are counted while it has a signal. Whatever headgate delays until \
             the node has left its load balancers then also waits while the Node condition `headgate.dev/ConnectionsDrained` is \
             `False`, each with its own bound. In the chart: `connections.enabled`. \
             Guide: docs/guides/autoscalers.md.",
        ),
        Key::new(
            "connections.excludedSources",
            prefixes(),
            |s| &mut s.excluded_sources,
            "Addresses or prefixes whose connections do not count, beside those of the node, its `spec.podCIDRs` and Azure's \
             probes: other load balancers' probes, and Pods outside `spec.podCIDRs`, as with Azure CNI.",
        ),
        Key::new(
            "evictionNotices",
            notice_sources(),
            |s| &mut s.azure.eviction_notices,
            "Whose notices of Azure are acted on. `ScheduledEvents`: each agent asks the metadata service each second. A `Preempt` of this \
             VM fails `/healthz` at once with the signal `preempt`, and taints the own Node with \
             `cloudprovider.azure.microsoft.com/draining=spot-eviction:NoSchedule`. Both end 60 s after the event is gone, and 15 \
             min after its `NotBefore` without a confirmation; the taint also ends after a reboot. `Terminate`, `Redeploy` and \
             `Reboot` do the same where `signals.extra` has `terminate`, `redeploy` or `reboot`, which is then the value of the taint. \
             headgate approves no event. In the chart: `evictionNotices.enabled`. Guide: docs/guides/spot-and-upgrades.md. \
             `NodeEvents`: the leader turns an event `PreemptScheduled` of a Node with a label of spot VMs, as AKS emits it, into the same \
             taint, at most five in a minute; it is slower, and needs the controllers. **Risk**: who may create events in `default`, every \
             kubelet among them, can have such Nodes tainted.",
        ),
        Key::new(
            "outOfLoadBalancers.source",
            words(&ConditionSource::ALL, ConditionSource::as_str),
            |s| &mut s.out_of_load_balancers.source,
            "From what the Node condition `headgate.dev/OutOfLoadBalancers` follows, by which tools know that a node with a signal has left \
             its load balancers. `AdminState`: the leader writes it, and without a confirmation for 3 min the agents make it `Unknown`; it \
             needs the controllers. `FailedProbes`: each agent writes it for its own Node where no leader manages Azure; it excludes \
             `--azure-config-file` and `azure.configSecret`. In the chart: `outOfLoadBalancers.enabled`. Reasons: docs/reference/events.md.",
        ),
        Key::new(
            "outOfLoadBalancers.failedProbes",
            positive_number(MAX_FAILED_PROBES),
            |s| &mut s.out_of_load_balancers.failed_probes,
            "With `FailedProbes`: after how many probes of `/healthz` in a row that were answered with 503 the condition is `True` (`1` to \
             `100`). Set it to the load balancer's threshold, times the number of load balancers that probe the node. In the chart: \
             `outOfLoadBalancers.probes`.",
        ),
        Key::new(
            "delayTermination.clusterAutoscaler",
            optional(duration(10 * SECOND, MAX_DELAY)),
            |s| &mut s.cluster_autoscaler_delay,
            "For how long Cluster Autoscaler waits at most with the termination of a machine until the node has left its load balancers; null: \
             not at all. The agent sets the annotation `delay-deletion.cluster-autoscaler.kubernetes.io/headgate` on its own Node from the \
             soft taint `DeletionCandidateOfClusterAutoscaler` on, and removes it this long after the taint \
             `ToBeDeletedByClusterAutoscaler` at the latest, with the event `DeletionDelayTimedOut`. It has no effect where soft taints are \
             off. Cluster Autoscaler waits no longer than its `--node-deletion-delay-timeout`, 2 min by default, after the last pod is \
             gone. From `10s` to `10m`. In the chart: `delayTermination.clusterAutoscaler`, which sets `2m`; it needs \
             `outOfLoadBalancers.source`. Guide: docs/guides/autoscalers.md.",
        ),
    ]
}
