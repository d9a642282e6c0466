//! The settings of a process that serves the health port of its node.

use std::time::Duration;

use serde_yaml::Value;

use super::{HOUR, Key, MINUTE, SECOND, duration_value};
use crate::config::{ClusterAutoscalerHold, HEALTHZ_PORT, schema, value};

/// These settings, in the order of the reference.
pub(super) const NODE: &[Key] = &[
    Key {
        path: "node.healthzBindAddress",
        former: Some("healthzBindAddress"),
        is_optional: false,
        schema: || schema::bind_address(HEALTHZ_PORT),
        flag: Some("--healthz-bind-address"),
        about: "Address and port of `/healthz` and `/livez`. `[::]` serves both IP families; on a machine without IPv6 \
                it falls back to `0.0.0.0`. Port 0 selects a free port.",
        set: |settings, value| {
            settings.healthz_bind_address = value::bind_address(value, HEALTHZ_PORT)?;
            Ok(())
        },
        get: |settings| Value::String(settings.healthz_bind_address.to_string()),
    },
    Key {
        path: "node.proxyProtocol",
        former: Some("proxyProtocol"),
        is_optional: false,
        schema: || schema::words(&["off", "optional", "required"]),
        flag: None,
        about: "Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header (version 1 or 2). The \
                probes of an Azure Private Link Service with PROXY protocol do. `off` rejects a header as a bad \
                request, `optional` accepts connections with and without a header, `required` closes connections \
                without one. An incomplete or malformed header, or one larger than 2 KiB, closes the connection. With \
                `node.healthzBindAddress: '[::]:10356'` this setting replaces the health-probe-proxy sidecar.",
        set: |settings, value| {
            settings.proxy_protocol = value::proxy_protocol(value)?;
            Ok(())
        },
        get: |settings| Value::String(value::proxy_protocol_text(settings.proxy_protocol).to_owned()),
    },
    Key {
        path: "node.shutdownDelay",
        former: Some("shutdownDelay"),
        is_optional: false,
        schema: || schema::duration(),
        flag: None,
        about: "How long `/healthz` answers 503 after SIGTERM before the port closes. The default `0s` is right for a \
                rollout of headgate, which is not a drain: the new process takes over the port without a failed probe.",
        set: |settings, value| {
            settings.shutdown_delay = value::duration(value, Duration::ZERO, 10 * MINUTE)?;
            Ok(())
        },
        get: |settings| duration_value(settings.shutdown_delay),
    },
    Key {
        path: "node.serviceHealth",
        former: Some("serviceHealth"),
        is_optional: false,
        schema: || schema::words(&["off", "path", "nodePorts"]),
        flag: None,
        about: "Health of single Services with `externalTrafficPolicy: Local`: 200 if the node has a ready endpoint. \
                `off`: not served, and Services are not watched. `path`: at `/healthz/services/NAMESPACE/NAME` of the \
                health port; a dual-stack Service counts in the IP family in which the node has more endpoints. \
                `nodePorts`: on each Service's `healthCheckNodePort`, one socket for each IP family, which counts the \
                endpoints of that family; only for nodes without kube-proxy, which opens these ports itself. `path` and \
                `nodePorts` need the rights in `manifests/components/service-health`.",
        set: |settings, value| {
            settings.service_health = value::service_health(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.service_health.as_str().to_owned()),
    },
    Key {
        path: "node.nodePortAddresses",
        former: Some("nodePortAddresses"),
        is_optional: false,
        schema: || schema::texts(),
        flag: None,
        about: "Address ranges of the node's addresses that `node.serviceHealth: nodePorts` listens on. The default, an \
                empty list, means all addresses. If the list has no range of an IP family, that family has no listener \
                (kube-proxy would listen on all its addresses).",
        set: |settings, value| {
            settings.node_port_addresses = value::cidrs(value)?;
            Ok(())
        },
        get: |settings| {
            let ranges = settings.node_port_addresses.iter();
            Value::Sequence(ranges.map(|range| Value::String(range.to_string())).collect())
        },
    },
    Key {
        path: "node.scheduledEvents",
        former: Some("azure.scheduledEvents"),
        is_optional: false,
        schema: || schema::boolean(),
        flag: None,
        about: "Polls the instance metadata service each second for Scheduled Events. A `Preempt` event of this VM \
                (found by the Node's `providerID`) makes `/healthz` answer 503 at once with the signal `azurePreempt`, \
                and taints the own Node with `cloudprovider.azure.microsoft.com/draining=spot-eviction:NoSchedule`; \
                `manifests/components/spot` grants the `patch` on Nodes that this needs. The signal and the taint end \
                60 s after the event is gone, and 15 min after its `NotBefore` if the service has not confirmed it for as \
                long (event `EvictionNoticeExpired` on the Node); the taint also ends after a reboot. With the setting off, \
                an agent that may still `patch` its Node removes headgate's taint 15 min after that time. `/statusz` and metrics show other \
                events, without further effect. headgate approves no event. Some clusters block the service for pods \
                without the host's network.",
        set: |settings, value| {
            settings.azure.scheduled_events = value::boolean(value)?;
            Ok(())
        },
        get: |settings| Value::Bool(settings.azure.scheduled_events),
    },
    Key {
        path: "node.markerProbes",
        former: Some("marker.probes"),
        is_optional: false,
        schema: || schema::number(value::MAX_MARKER_PROBES),
        flag: None,
        about: "Where no leader manages Azure: after how many probes of `/healthz` in a row that were answered with 503 the agent of \
                a node with a signal writes that condition as `True` (`0` to `100`; `0` writes none). Set it to the load balancer's \
                threshold, times the number of load balancers that probe the node. It needs `manifests/components/marker`, and \
                is not allowed beside `marker.mode: adminState`, `azure.configFile` or `azure.configSecret`.",
        set: |settings, value| {
            settings.marker.probes = value::marker_probes(value)?;
            Ok(())
        },
        get: |settings| Value::Number(settings.marker.probes.into()),
    },
    Key {
        path: "node.proxy.healthzUrl",
        former: Some("proxy.healthzUrl"),
        is_optional: false,
        schema: || schema::text(),
        flag: None,
        about: "Address of kube-proxy's health server. The agent polls `/livez`, or `/healthz` if `/livez` does not \
                exist (kube-proxy before 1.28). `off` disables polling. The agent ignores an address that it has not \
                reached since its start, and logs a warning, so clusters without kube-proxy need no setting.",
        set: |settings, value| {
            settings.proxy.healthz_authority = value::health_server(value)?;
            Ok(())
        },
        get: |settings| {
            let authority = settings.proxy.healthz_authority.as_ref();
            Value::String(authority.map_or_else(|| "off".to_owned(), |authority| format!("http://{authority}")))
        },
    },
    Key {
        path: "node.proxy.pollInterval",
        former: Some("proxy.pollInterval"),
        is_optional: false,
        schema: || schema::duration(),
        flag: None,
        about: "Time from one poll of kube-proxy to the next.",
        set: |settings, value| {
            settings.proxy.poll_interval = value::duration(value, SECOND / 10, MINUTE)?;
            Ok(())
        },
        get: |settings| duration_value(settings.proxy.poll_interval),
    },
    Key {
        path: "node.proxy.healthTimeout",
        former: Some("proxy.healthTimeout"),
        is_optional: false,
        schema: || schema::duration(),
        flag: None,
        about: "How long kube-proxy may fail to answer before this node is unhealthy. A 503 from kube-proxy counts at \
                once.",
        set: |settings, value| {
            settings.proxy.health_timeout = value::duration(value, SECOND, HOUR)?;
            Ok(())
        },
        get: |settings| duration_value(settings.proxy.health_timeout),
    },
    Key {
        path: "holdDeletion.clusterAutoscaler",
        former: None,
        is_optional: false,
        schema: || schema::words(&ClusterAutoscalerHold::ALL.map(ClusterAutoscalerHold::as_str)),
        flag: None,
        about: "Whether Cluster Autoscaler waits with the termination of a machine until the node has left its load balancers. \
                `candidates`: the agent sets the annotation `delay-deletion.cluster-autoscaler.kubernetes.io/headgate` on its own \
                Node while that has Cluster Autoscaler's soft taint `DeletionCandidateOfClusterAutoscaler` or its taint \
                `ToBeDeletedByClusterAutoscaler`, and removes it when the condition `headgate.dev/OutOfLoadBalancers` is `True`, when \
                the taints are gone, or after `holdDeletion.timeout`. It has no effect where soft taints are off \
                (`--max-bulk-soft-taint-count=0`), and each scale-down takes at least 5 s longer. It needs \
                `manifests/components/delay-deletion`, and `marker.mode: adminState` or `node.markerProbes`. docs/autoscalers.md is \
                the guide, and has what holds Karpenter.",
        set: |settings, value| {
            settings.hold_deletion.cluster_autoscaler = value::cluster_autoscaler_hold(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.hold_deletion.cluster_autoscaler.as_str().to_owned()),
    },
    Key {
        path: "holdDeletion.timeout",
        former: None,
        is_optional: false,
        schema: || schema::duration(),
        flag: None,
        about: "How long after the taint `ToBeDeletedByClusterAutoscaler` the annotation is removed at the latest, whether the node has \
                left its load balancers or not; then the event `DeletionDelayTimedOut` is recorded on the Node. Cluster Autoscaler \
                itself waits no longer than its `--node-deletion-delay-timeout`, 2 min by default, after the last pod is gone. From \
                `10s` to `10m`.",
        set: |settings, value| {
            settings.hold_deletion.timeout = value::duration(value, 10 * SECOND, 10 * MINUTE)?;
            Ok(())
        },
        get: |settings| duration_value(settings.hold_deletion.timeout),
    },
];
