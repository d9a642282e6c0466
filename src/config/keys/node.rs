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
            "Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header (version 1 or 2). The \
             probes of an Azure Private Link Service with PROXY protocol do. `off` rejects a header as a bad \
             request, `optional` accepts connections with and without a header, `required` closes connections \
             without one. An incomplete or malformed header, or one larger than 2 KiB, closes the connection. With \
             `node.healthzBindAddress: '[::]:10356'` this setting replaces the health-probe-proxy sidecar.",
        ),
        Key::new(
            "node.shutdownDelay",
            duration(Duration::ZERO, 10 * MINUTE),
            |s| &mut s.shutdown_delay,
            "How long `/healthz` answers 503 after SIGTERM before the port closes. The default `0s` is right for a \
             rollout of headgate, which is not a drain: the new process takes over the port without a failed probe.",
        ),
        Key::new(
            "node.serviceHealth",
            words(&ServiceHealth::ALL, ServiceHealth::as_str),
            |s| &mut s.service_health,
            "Health of single Services with `externalTrafficPolicy: Local`: 200 if the node has a ready endpoint. \
             `off`: not served, and Services are not watched. `path`: at `/healthz/services/NAMESPACE/NAME` of the \
             health port; a dual-stack Service counts in the IP family in which the node has more endpoints. \
             `nodePorts`: on each Service's `healthCheckNodePort`, one socket for each IP family, which counts the \
             endpoints of that family; only for nodes without kube-proxy, which opens these ports itself. `path` and \
             `nodePorts` need the rights that `serviceHealth` of the chart installs.",
        ),
        Key::new(
            "node.serviceDrain",
            boolean(),
            |s| &mut s.service_drain,
            "Whether the health of a single Service fails on the node's signals too, as `/healthz` does, while another Ready node \
             without a signal has a ready endpoint of the Service. The last such node keeps answering 200, unless it is about to end: \
             it is being deleted, shut down, out of service or evicted. With `false` only endpoints and kube-proxy count. It has no \
             effect with `node.serviceHealth: off`, needs no further rights, and reads nothing while the node has no signal.",
        ),
        Key::new(
            "node.countConnections",
            boolean(),
            |s| &mut s.count_connections,
            "Whether the established connections to Services of type LoadBalancer that pass through the node are counted while it has a \
             signal: shown in `/statusz`, `headgate status` and the metric `headgate_node_connections`, and, where a marker is written, in \
             the Node condition `headgate.dev/ConnectionsDrained`. Whatever headgate delays until the node has left its load balancers \
             then also waits until that condition is not `False`, each with its own bound. It needs `connections.enabled` of the chart: \
             the second container, which has CAP_NET_ADMIN and counts, and the right to read Services. docs/connections.md is the guide.",
        ),
        Key::new(
            "node.excludedSources",
            prefixes(),
            |s| &mut s.excluded_sources,
            "Addresses or prefixes whose connections do not count, beside those of the node, of its `spec.podCIDRs` and of Azure's \
             probes: other load balancers' probes, and the range of Pods that are not in `spec.podCIDRs`, as with Azure CNI.",
        ),
        Key::new(
            "node.nodePortAddresses",
            address_ranges(),
            |s| &mut s.node_port_addresses,
            "Address ranges of the node's addresses that `node.serviceHealth: nodePorts` listens on. The default, an \
             empty list, means all addresses. If the list has no range of an IP family, that family has no listener \
             (kube-proxy would listen on all its addresses).",
        ),
        Key::new(
            "node.scheduledEvents",
            boolean(),
            |s| &mut s.azure.scheduled_events,
            "Polls the instance metadata service each second for Scheduled Events. A `Preempt` event of this VM \
             (found by the Node's `providerID`) makes `/healthz` answer 503 at once with the signal `azurePreempt`, \
             and taints the own Node with `cloudprovider.azure.microsoft.com/draining=spot-eviction:NoSchedule`; \
             `evictionNotices.enabled` of the chart grants the `patch` on Nodes that this needs. The signal and the taint end \
             60 s after the event is gone, and 15 min after its `NotBefore` if the service has not confirmed it for as \
             long (event `EvictionNoticeExpired` on the Node); the taint also ends after a reboot. `Terminate`, `Redeploy` and `Reboot` \
             do the same where `signals.healthBuiltIn` lists `azureTerminate`, `azureRedeploy` or `azureReboot`; the value of the taint \
             is then `terminate`, `redeploy` or `reboot`. With the setting off, \
             an agent that may still `patch` its Node removes headgate's taint 15 min after that time. `/statusz` and metrics show other \
             events, without further effect. headgate approves no event. Some clusters block the service for pods \
             without the host's network.",
        ),
        Key::new(
            "node.markerProbes",
            number(MAX_MARKER_PROBES),
            |s| &mut s.marker.probes,
            "Where no leader manages Azure: after how many probes of `/healthz` in a row that were answered with 503 the agent of \
             a node with a signal writes that condition as `True` (`0` to `100`; `0` writes none). Set it to the load balancer's \
             threshold, times the number of load balancers that probe the node. It needs `outOfLoadBalancers.enabled` of the chart, and \
             is not allowed beside `marker.mode: adminState`, `azure.configFile` or `azure.configSecret`.",
        ),
        Key::new(
            "node.proxy.healthzUrl",
            health_server(),
            |s| &mut s.proxy.healthz_authority,
            "Address of kube-proxy's health server. The agent polls `/livez`, or `/healthz` if `/livez` does not \
             exist (kube-proxy before 1.28). `off` disables polling. The agent ignores an address that it has not \
             reached since its start, and logs a warning, so clusters without kube-proxy need no setting.",
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
            "Whether Cluster Autoscaler waits with the termination of a machine until the node has left its load balancers. \
             `candidates`: the agent sets the annotation `delay-deletion.cluster-autoscaler.kubernetes.io/headgate` on its own \
             Node while that has Cluster Autoscaler's soft taint `DeletionCandidateOfClusterAutoscaler` or its taint \
             `ToBeDeletedByClusterAutoscaler`, and removes it when the condition `headgate.dev/OutOfLoadBalancers` is `True`, when \
             the taints are gone, or after `holdDeletion.timeout`. It has no effect where soft taints are off \
             (`--max-bulk-soft-taint-count=0`), and each scale-down takes at least 5 s longer. It needs \
             `delayTermination.clusterAutoscaler` of the chart, and `marker.mode: adminState` or `node.markerProbes`. docs/autoscalers.md is \
             the guide, and has what holds Karpenter.",
        ),
        Key::new(
            "holdDeletion.timeout",
            duration(10 * SECOND, 10 * MINUTE),
            |s| &mut s.hold_deletion.timeout,
            "How long after the taint `ToBeDeletedByClusterAutoscaler` the annotation is removed at the latest, whether the node has \
             left its load balancers or not; then the event `DeletionDelayTimedOut` is recorded on the Node. Cluster Autoscaler \
             itself waits no longer than its `--node-deletion-delay-timeout`, 2 min by default, after the last pod is gone. From \
             `10s` to `10m`.",
        ),
    ]
}
