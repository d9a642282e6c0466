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
            "Address and port of `/healthz` and `/livez`. `[::]` serves both IP families, and without IPv6 falls back to `0.0.0.0`. Port \
             0 selects a free port.",
        )
        .flag("--healthz-bind-address"),
        Key::new(
            "proxyProtocol",
            words(&ProxyProtocol::ALL, ProxyProtocol::as_str),
            |s| &mut s.proxy_protocol,
            "Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header (version 1 or 2, at most 2 KiB): \
             `Disabled` rejects a header, `Optional` accepts both, `Required` closes connections without one, as all close with a \
             malformed one. Guide: docs/guides/health-checks.md.",
        ),
        Key::new(
            "kubeProxyHealthzUrl",
            health_server(),
            |s| &mut s.kube_proxy.healthz_authority,
            "Address of kube-proxy's health server, of which the agent asks `/livez` each second, or `/healthz` before kube-proxy 1.28. \
             `Disabled` polls nothing. A 503 counts at once, no answer for 1 min makes the node unhealthy, and an address that \
             has not answered this pod since the machine's start is ignored. The health port of a new pod or a restarted machine opens once \
             it has answered, or 5 s after the start.",
        ),
        Key::new(
            "serviceHealthChecks",
            words(&ServiceHealth::ALL, ServiceHealth::as_str),
            |s| &mut s.service_health,
            "Health of single Services with `externalTrafficPolicy: Local`. `Disabled`: not served. `Path`: at \
             `/healthz/services/NAMESPACE/NAME` of the health port. `NodePorts`: on each Service's `healthCheckNodePort`, one socket for \
             each IP family; only for nodes without kube-proxy. In the chart: `serviceHealthChecks`. Guide: docs/guides/health-checks.md.",
        ),
        Key::new(
            "connections.count",
            boolean(),
            |s| &mut s.count_connections,
            "Whether the established connections through the node are counted while it has a signal. Whatever headgate delays then also \
             waits while the Node condition `headgate.dev/ConnectionsDrained` is `False`, each with its own bound; the \
             condition needs `outOfLoadBalancers.source`. In the chart: `connections.enabled`. Guide: docs/guides/autoscalers.md.",
        ),
        Key::new(
            "connections.excludedSources",
            prefixes(),
            |s| &mut s.excluded_sources,
            "Addresses or prefixes whose connections do not count: other load balancers' probes, and Pods outside `spec.podCIDRs`, as \
             with Azure CNI. Guide: docs/guides/autoscalers.md.",
        ),
        Key::new(
            "evictionNotices",
            notice_sources(),
            |s| &mut s.azure.eviction_notices,
            "Whose notices of Azure are acted on. `ScheduledEvents`: those of the metadata service, which each agent asks each second. In \
             the chart: `evictionNotices.enabled`. `NodeEvents`: the leader turns an event `PreemptScheduled` of a Node with a label of \
             spot VMs, as AKS emits it, into the same taint, at most five in a minute; it is slower, and needs the controllers. **Risk**: \
             who may create events in `default`, as every kubelet may, can have such Nodes tainted. Guide: \
             docs/guides/spot-and-upgrades.md.",
        ),
        Key::new(
            "outOfLoadBalancers.source",
            words(&ConditionSource::ALL, ConditionSource::as_str),
            |s| &mut s.out_of_load_balancers.source,
            "Who writes the Node condition `headgate.dev/OutOfLoadBalancers`. `AdminState`: the leader; it needs the controllers. \
             `FailedProbes`: each agent for its own Node, where no leader manages Azure; it excludes `--azure-config-file` and \
             `azure.configSecret`. In the chart: `outOfLoadBalancers.enabled`. Guide: docs/reference/events.md.",
        ),
        Key::new(
            "outOfLoadBalancers.failedProbes",
            positive_number(MAX_FAILED_PROBES),
            |s| &mut s.out_of_load_balancers.failed_probes,
            "With `FailedProbes`: after how many probes of `/healthz` in a row that were answered with 503, of all who \
             ask and at most one a second, the condition is `True` (`1` to `100`). In the chart: `outOfLoadBalancers.probes`. Guide: docs/guides/autoscalers.md.",
        ),
        Key::new(
            "delayTermination.clusterAutoscaler",
            optional(duration(10 * SECOND, MAX_DELAY)),
            |s| &mut s.cluster_autoscaler_delay,
            "For how long at most Cluster Autoscaler waits with the termination of a machine until the node has left its load balancers, \
             from `10s` to `10m`, counted from the taint `ToBeDeletedByClusterAutoscaler`; null: not at all. It needs \
             `outOfLoadBalancers.source`, with `AdminState` also `adminState.mode: Enforce`, and the signal `cluster-autoscaler`. In \
             the chart: `delayTermination.clusterAutoscaler`, which sets `2m`. Guide: docs/guides/autoscalers.md.",
        ),
    ]
}
