//! The settings of a process that serves the health port of its node.

use std::time::Duration;

use headgate_http::server::ProxyProtocol;

use super::{HOUR, Key, MINUTE, SECOND};
use crate::config::value::{address_ranges, bind_address, boolean, duration, health_server, number, prefixes, words};
use crate::config::{ClusterAutoscalerHold, HEALTHZ_PORT, ServiceHealth};

/// More than any load balancer's threshold, times the load balancers of a node.
const MAX_MARKER_PROBES: u32 = 100;

/// These settings, in the order of the reference.
#[allow(clippy::too_many_lines, reason = "one table")]
pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "node.healthzBindAddress",
            bind_address(HEALTHZ_PORT),
            |s| &mut s.healthz_bind_address,
            "Address and port of `/healthz` and `/livez`. `[::]` serves both IP families; on a machine without IPv6 \
             it falls back to `0.0.0.0`. Port 0 selects a free port.",
        )
        .flag("--healthz-bind-address"),
        Key::new(
            "node.proxyProtocol",
            words(&ProxyProtocol::ALL, ProxyProtocol::as_str),
            |s| &mut s.proxy_protocol,
            "Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header (version 1 or 2), as probes behind \
             an Azure Private Link Service do. `off` rejects a header, `optional` accepts connections with and without one, \
             `required` closes those without. A malformed header, or one larger than 2 KiB, closes the connection.",
        ),
        Key::new(
            "node.shutdownDelay",
            duration(Duration::ZERO, 10 * MINUTE),
            |s| &mut s.shutdown_delay,
            "How long `/healthz` answers 503 after SIGTERM before the port closes. `0s` is right for a rollout of headgate, which \
             is not a drain.",
        ),
        Key::new(
            "node.serviceHealth",
            words(&ServiceHealth::ALL, ServiceHealth::as_str),
            |s| &mut s.service_health,
            "Health of single Services with `externalTrafficPolicy: Local`: 200 if the node has a ready endpoint. `off`: not \
             served. `path`: at `/healthz/services/NAMESPACE/NAME` of the health port. `nodePorts`: on each Service's \
             `healthCheckNodePort`, one socket for each IP family; only for nodes without kube-proxy. In the chart: `serviceHealth`. Guide: docs/guides/health-checks.md.",
        ),
        Key::new(
            "node.serviceDrain",
            boolean(),
            |s| &mut s.service_drain,
            "Whether the health of a single Service fails on the node's signals too, while another Ready node without a signal has \
             a ready endpoint of the Service. With `false` only endpoints and kube-proxy count.",
        ),
        Key::new(
            "node.countConnections",
            boolean(),
            |s| &mut s.count_connections,
            "Whether the established connections through the node are counted while it has a signal. Whatever headgate delays until \
             the node has left its load balancers then also waits while the Node condition `headgate.dev/ConnectionsDrained` is \
             `False`, each with its own bound. In the chart: `connections.enabled`. \
             Guide: docs/guides/autoscalers.md.",
        ),
        Key::new(
            "node.excludedSources",
            prefixes(),
            |s| &mut s.excluded_sources,
            "Addresses or prefixes whose connections do not count, beside those of the node, its `spec.podCIDRs` and Azure's \
             probes: other load balancers' probes, and Pods outside `spec.podCIDRs`, as with Azure CNI.",
        ),
        Key::new(
            "node.nodePortAddresses",
            address_ranges(),
            |s| &mut s.node_port_addresses,
            "Address ranges of the node's addresses that `node.serviceHealth: nodePorts` listens on. An empty list means all. A \
             family without a range has no listener.",
        ),
        Key::new(
            "node.scheduledEvents",
            boolean(),
            |s| &mut s.azure.scheduled_events,
            "Asks Azure's metadata service each second for Scheduled Events. A `Preempt` of this VM fails `/healthz` at once with \
             the signal `azurePreempt`, and taints the own Node with \
             `cloudprovider.azure.microsoft.com/draining=spot-eviction:NoSchedule`. Both end 60 s after the event is gone, and 15 \
             min after its `NotBefore` without a confirmation; the taint also ends after a reboot. `Terminate`, `Redeploy` and \
             `Reboot` do the same where `signals.healthBuiltIn` lists them; the value of the taint is then `terminate`, `redeploy` \
             or `reboot`. headgate approves no event. In the chart: `evictionNotices.enabled`. Guide: \
             docs/guides/spot-and-upgrades.md.",
        ),
        Key::new(
            "node.markerProbes",
            number(MAX_MARKER_PROBES),
            |s| &mut s.marker.probes,
            "Where no leader manages Azure: after how many probes of `/healthz` in a row that were answered with 503 the agent \
             writes the Node condition `headgate.dev/OutOfLoadBalancers` as `True` (`0` to `100`; `0` writes none). Set it to the \
             load balancer's threshold, times the number of load balancers that probe the node. In the chart: `outOfLoadBalancers`. It excludes `marker.mode: adminState`, `azure.configFile` and `azure.configSecret`.",
        ),
        Key::new(
            "node.proxy.healthzUrl",
            health_server(),
            |s| &mut s.proxy.healthz_authority,
            "Address of kube-proxy's health server, of which the agent asks `/livez`, or `/healthz` before kube-proxy 1.28. `off` \
             disables it. An address that was not reached since the start is ignored with a warning, so clusters without kube-proxy \
             need no setting.",
        ),
        Key::new(
            "node.proxy.pollInterval",
            duration(SECOND / 10, MINUTE),
            |s| &mut s.proxy.poll_interval,
            "Time from one poll of kube-proxy to the next.",
        ),
        Key::new(
            "node.proxy.healthTimeout",
            duration(SECOND, HOUR),
            |s| &mut s.proxy.health_timeout,
            "How long kube-proxy may fail to answer before this node is unhealthy. A 503 from kube-proxy counts at \
             once.",
        ),
        Key::new(
            "holdDeletion.clusterAutoscaler",
            words(&ClusterAutoscalerHold::ALL, ClusterAutoscalerHold::as_str),
            |s| &mut s.hold_deletion.cluster_autoscaler,
            "`candidates`: Cluster Autoscaler waits with the termination of a machine until the node has left its load balancers. \
             The agent sets the annotation `delay-deletion.cluster-autoscaler.kubernetes.io/headgate` on its own Node from the soft \
             taint `DeletionCandidateOfClusterAutoscaler` on. It has no effect where soft taints are off. In the chart: `delayTermination.clusterAutoscaler`. It needs `marker.mode: adminState` or `node.markerProbes`. Guide: docs/guides/autoscalers.md.",
        ),
        Key::new(
            "holdDeletion.timeout",
            duration(10 * SECOND, 10 * MINUTE),
            |s| &mut s.hold_deletion.timeout,
            "How long after the taint `ToBeDeletedByClusterAutoscaler` the annotation is removed at the latest, with the event \
             `DeletionDelayTimedOut`. Cluster Autoscaler waits no longer than its `--node-deletion-delay-timeout`, 2 min by \
             default, after the last pod is gone. From `10s` to `10m`.",
        ),
    ]
}
