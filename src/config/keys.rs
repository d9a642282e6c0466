//! The table of settings: one row for each key, with its meaning and the functions that read and show its value.
//!
//! Everything else about settings derives from this table: loading, suggestions for unknown keys, the settings that the
//! process logs at its start, and the reference. To add a setting, add a row.

use std::time::Duration;

use headgate_controller::admin_state::MinimumInService;
use headgate_node::{BuiltInSignal, SignalMatcher, SignalRules};
use serde_yaml::Value;

use super::otlp;
use super::value::{self, InvalidValue};
use super::{HEALTHZ_PORT, METRICS_PORT, Settings};

/// One setting: its key, default, help, and access to its value.
pub(super) struct Key {
    /// The dotted path in the file.
    pub(super) path: &'static str,
    /// The flag that overrides the file.
    pub(super) flag: Option<&'static str>,
    /// Its meaning in full sentences, for the reference.
    pub(super) about: &'static str,
    /// Sets a value, or says what is allowed.
    pub(super) set: fn(&mut Settings, &Value) -> Result<(), InvalidValue>,
    /// The value in effect, as `--check-config` prints it.
    pub(super) get: fn(&Settings) -> Value,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

fn duration_value(duration: Duration) -> Value {
    Value::String(headgate_settings::format_duration(duration))
}

fn matchers_value(rules: &SignalRules) -> Value {
    let entry = |matcher: &SignalMatcher| serde_yaml::to_value(matcher.to_value()).unwrap_or_default();
    Value::Sequence(rules.matchers.iter().map(entry).collect())
}

fn built_in_value(rules: &SignalRules) -> Value {
    let names = rules.built_in.iter().map(|built_in| built_in.signal().to_string());
    Value::Sequence(names.map(Value::String).collect())
}

/// Every setting, in the order of the reference.
pub(super) const KEYS: &[Key] = &[
    Key {
        path: "healthzBindAddress",
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
        path: "proxyProtocol",
        flag: None,
        about: "Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header (version 1 or 2). The \
                probes of an Azure Private Link Service with PROXY protocol do. `off` rejects a header as a bad \
                request, `optional` accepts connections with and without a header, `required` closes connections \
                without one. An incomplete or malformed header, or one larger than 2 KiB, closes the connection. With \
                `healthzBindAddress: '[::]:10356'` this setting replaces the health-probe-proxy sidecar.",
        set: |settings, value| {
            settings.proxy_protocol = value::proxy_protocol(value)?;
            Ok(())
        },
        get: |settings| Value::String(value::proxy_protocol_text(settings.proxy_protocol).to_owned()),
    },
    Key {
        path: "metricsBindAddress",
        flag: Some("--metrics-bind-address"),
        about: "Address and port of the operations endpoints: `/metrics`, `/statusz`, and this process's own `/livez` \
                and `/readyz`.",
        set: |settings, value| {
            settings.metrics_bind_address = value::bind_address(value, METRICS_PORT)?;
            Ok(())
        },
        get: |settings| Value::String(settings.metrics_bind_address.to_string()),
    },
    Key {
        path: "bindAddressHardFail",
        flag: Some("--bind-address-hard-fail"),
        about: "What happens when an address cannot be bound: `true` exits with code 1, `false` tries again every 5 s \
                without end.",
        set: |settings, value| {
            settings.bind_address_hard_fail = value::boolean(value)?;
            Ok(())
        },
        get: |settings| Value::Bool(settings.bind_address_hard_fail),
    },
    Key {
        path: "stateDir",
        flag: Some("--state-dir"),
        about: "Directory of the remembered state (`state.json`) and of the probe socket (`headgate.sock`). Each agent \
                needs its own. If the agent cannot write to it, it logs a warning and works without remembered state.",
        set: |settings, value| {
            settings.state_dir = value::directory(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.state_dir.display().to_string()),
    },
    Key {
        path: "shutdownDelay",
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
        path: "signals.health",
        flag: None,
        about: "Taint keys that make `/healthz` of a node answer 503 if the node has one of them, whatever the taint's \
                value and effect. The list replaces the whole default. Besides keys it may have matchers: \
                `{taint: example.com/*}` (how the key begins), `{condition: {type: T, status: \"True\", reason: R, \
                messagePrefix: P}}` (reason and messagePrefix may be left out), `{label: {key: K, value: V}}` and \
                `{annotation: {key: K, value: V}}` (without value: any), `{unschedulable: true, for: 10s}` (a cordon that \
                has lasted so long, 0s to 1h). docs/signals.md has examples and risks. \
                Cordon, NotReady and `DeletionCandidateOfClusterAutoscaler` are signals only if you list them.",
        set: |settings, value| {
            settings.signals.health.matchers = value::signal_matchers(value)?;
            Ok(())
        },
        get: |settings| matchers_value(&settings.signals.health),
    },
    Key {
        path: "signals.healthBuiltIn",
        flag: None,
        about: "The built-in signals that make `/healthz` answer 503: `deletionTimestamp` (the Node is being deleted), \
                `nodeShutdown` (kubelet's graceful shutdown), `azurePreempt` (Azure announces the eviction of this VM; needs \
                `azure.scheduledEvents`). The list replaces the whole default. With an empty list here and in \
                `signals.health`, `/healthz` depends on kube-proxy alone.",
        set: |settings, value| {
            settings.signals.health.built_in = value::built_in_signals(value, &BuiltInSignal::ALL)?;
            Ok(())
        },
        get: |settings| built_in_value(&settings.signals.health),
    },
    Key {
        path: "signals.adminState",
        flag: None,
        about: "Taint keys that take the node's addresses out of its load balancers' backend pools, whatever the \
                taint's value and effect: the leader sets their `adminState` to `Down`, and restores it when the last \
                of these signals is gone. The list replaces the whole default, and may have the same matchers as \
                `signals.health`. It has an effect only if \
                `azure.configFile` or `azure.configSecret` is set.",
        set: |settings, value| {
            settings.signals.admin_state.matchers = value::signal_matchers(value)?;
            Ok(())
        },
        get: |settings| matchers_value(&settings.signals.admin_state),
    },
    Key {
        path: "signals.adminStateBuiltIn",
        flag: None,
        about: "The built-in signals that take the node's addresses out of its load balancers' backend pools: \
                `deletionTimestamp`, `nodeShutdown`. The list replaces the whole default. The leader sees no `azurePreempt`; \
                it acts on the taint that follows.",
        set: |settings, value| {
            settings.signals.admin_state.built_in = value::built_in_signals(value, &BuiltInSignal::IN_NODE_OBJECT)?;
            Ok(())
        },
        get: |settings| built_in_value(&settings.signals.admin_state),
    },
    Key {
        path: "proxy.healthzUrl",
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
        path: "proxy.pollInterval",
        flag: None,
        about: "Time from one poll of kube-proxy to the next.",
        set: |settings, value| {
            settings.proxy.poll_interval = value::duration(value, SECOND / 10, MINUTE)?;
            Ok(())
        },
        get: |settings| duration_value(settings.proxy.poll_interval),
    },
    Key {
        path: "proxy.healthTimeout",
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
        path: "serviceHealth",
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
        path: "nodePortAddresses",
        flag: None,
        about: "Address ranges of the node's addresses that `serviceHealth: nodePorts` listens on. The default, an \
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
        path: "azure.scheduledEvents",
        flag: None,
        about: "Polls the instance metadata service each second for Scheduled Events. A `Preempt` event of this VM \
                (found by the Node's `providerID`) makes `/healthz` answer 503 at once with the signal `azurePreempt`, \
                and taints the own Node with `cloudprovider.azure.microsoft.com/draining=spot-eviction:NoSchedule`; \
                `manifests/components/spot` grants the `patch` on Nodes that this needs. The signal and the taint end \
                60 s after the event is gone; the taint also ends after a reboot. `/statusz` and metrics show other \
                events, without further effect. headgate approves no event. Some clusters block the service for pods \
                without the host's network.",
        set: |settings, value| {
            settings.azure.scheduled_events = value::boolean(value)?;
            Ok(())
        },
        get: |settings| Value::Bool(settings.azure.scheduled_events),
    },
    Key {
        path: "azure.imdsEndpoint",
        flag: Some("--imds-endpoint"),
        about: "Address of the instance metadata service. Change it for tests and simulators only.",
        set: |settings, value| {
            settings.azure.imds_authority = value::http_server(value)?;
            Ok(())
        },
        get: |settings| Value::String(format!("http://{}", settings.azure.imds_authority)),
    },
    Key {
        path: "azure.configFile",
        flag: Some("--azure-config-file"),
        about: "The cloud provider's configuration, `azure.json`, read as cloud-provider-azure reads it (YAML or JSON, \
                keys in any case, unknown keys ignored). Only root can read a node's own `/etc/kubernetes/azure.json`, \
                and headgate does not run as root: `manifests/components/azure` mounts a Secret instead. With `none`, \
                and without `azure.configSecret`, this process does not stand for election and sends no request to \
                Azure. The file is read at the start, where a mistake ends the process with exit code 2, and again at \
                the start of each term and every minute of it. One key is headgate's own: \
                `enableLoadBalancerAdminState` (default true; false means `adminState.mode: off`).",
        set: |settings, value| {
            settings.azure.config_file = value::file(value)?;
            Ok(())
        },
        get: |settings| {
            let file = settings.azure.config_file.as_ref();
            Value::String(file.map_or_else(|| value::NONE.to_owned(), |file| file.display().to_string()))
        },
    },
    Key {
        path: "azure.configSecret",
        flag: None,
        about: "A Secret, `NAMESPACE/NAME`, whose key `cloud-config` wins over `azure.configFile`, key by key, or \
                replaces it (`cloudConfigType` in the file selects `file`, `secret` or `merge`). The leader reads it at \
                the start of each term and every minute of it, and needs the right to `get` it. If it is set, the start \
                of the process checks only that the file is readable.",
        set: |settings, value| {
            settings.azure.config_secret = value::secret_name(value)?;
            Ok(())
        },
        get: |settings| {
            let name = settings.azure.config_secret.as_ref();
            Value::String(name.map_or_else(|| value::NONE.to_owned(), ToString::to_string))
        },
    },
    Key {
        path: "azure.clusterName",
        flag: None,
        about: "The cluster's name, after which its load balancers are named: the value of `--cluster-name` of \
                cloud-controller-manager. `azure.json` does not have it.",
        set: |settings, value| {
            settings.azure.cluster_name = value::cluster_name(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.azure.cluster_name.clone()),
    },
    Key {
        path: "azure.preemptEvents",
        flag: None,
        about: "Whether the leader turns a genuine `PreemptScheduled` event of a Node, as AKS emits it, into the taint \
                `cloudprovider.azure.microsoft.com/draining=spot-eviction:NoSchedule`. Only the controllers of \
                `manifests/components/controller` may write other Nodes: where a pod of the DaemonSet leads, it does nothing and \
                records the event `ControllerRequired`. `azure.scheduledEvents` is faster; both record the notice in the same \
                annotation, so either may come first. Who may create events in the namespace `default` can have Nodes \
                tainted: every kubelet may.",
        set: |settings, value| {
            settings.azure.preempt_events = value::boolean(value)?;
            Ok(())
        },
        get: |settings| Value::Bool(settings.azure.preempt_events),
    },
    Key {
        path: "maintenance.enabled",
        flag: None,
        about: "Whether the leader acts on NodeMaintenances and Evacuations: nodes leave their load balancers, verified by a read, \
                before the first pod is evicted. It needs `manifests/components/maintenance` (the kinds, policies and rights) and \
                the controllers of `manifests/components/controller`: where a pod of the DaemonSet leads, it does nothing and \
                records the event `ControllerRequired`. docs/maintenance.md is the guide.",
        set: |settings, value| {
            settings.maintenance.enabled = value::boolean(value)?;
            Ok(())
        },
        get: |settings| Value::Bool(settings.maintenance.enabled),
    },
    Key {
        path: "adminState.mode",
        flag: None,
        about: "What the leader does with admin states. `enforce` writes them. `observe` computes what it would write, \
                which `headgate status` and the metric `headgate_pool_desired_down` show, and writes no pool. `off` \
                restores every `Down` that headgate set, and then writes nothing. docs/admin-state.md is the guide.",
        set: |settings, value| {
            settings.admin_state.mode = value::admin_state_mode(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.admin_state.mode.as_str().to_owned()),
    },
    Key {
        path: "adminState.foreignDown",
        flag: None,
        about: "What the leader does in mode `enforce` with a `Down` that headgate did not set, on a node without a \
                signal: `keep` leaves it and `headgate status` shows it, `restore` sets it to `None`. An `Up` is never \
                changed.",
        set: |settings, value| {
            settings.admin_state.foreign_down = value::foreign_down(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.admin_state.foreign_down.as_str().to_owned()),
    },
    Key {
        path: "adminState.listFailureTimeout",
        flag: None,
        about: "For how long lists of load balancers that are due, or the tokens for them, may fail before the leader looks \
                for a successor. Its term ends when another candidate volunteers, which none does that gave up a term for \
                the same reason in the last 10 min; otherwise the leader goes on trying. Time for which ARM throttles \
                requests does not count. From `1m` to `1h`.",
        set: |settings, value| {
            settings.admin_state.list_failure_timeout = value::duration(value, MINUTE, HOUR)?;
            Ok(())
        },
        get: |settings| duration_value(settings.admin_state.list_failure_timeout),
    },
    Key {
        path: "adminState.staleNodesTimeout",
        flag: None,
        about: "For how long the leader follows Nodes that the API server does not confirm, because they cannot be listed or \
                watched. After that it writes no admin states, so that what is set stays, records the event \
                `LoadBalancerAdminStateNodesStale` on its own Node, and goes on when a list or watch succeeds. The mode `off` \
                gives back nevertheless. The members of Local Services' pools stay as well, also while Services or \
                EndpointSlices are not confirmed. From `2m` to `1h`.",
        set: |settings, value| {
            settings.admin_state.stale_nodes_timeout = value::duration(value, 2 * MINUTE, HOUR)?;
            Ok(())
        },
        get: |settings| duration_value(settings.admin_state.stale_nodes_timeout),
    },
    Key {
        path: "adminState.leaseBypass",
        flag: None,
        about: "From how long before the eviction of a node on (`NotBefore` of a notice that `azure.scheduledEvents` or \
                `azure.preemptEvents` has recorded) the leader sets the node `Down` without waiting for the Lease that it shares with \
                cloud-controller-manager. Everything else waits. **Risk**: the holder of the Lease writes pools without \
                `If-Match`, so it may undo the `Down`, and its operation and headgate's may reject each other. From `0s`, which means \
                never, to `30s`.",
        set: |settings, value| {
            settings.admin_state.lease_bypass = value::duration(value, Duration::ZERO, 30 * SECOND)?;
            Ok(())
        },
        get: |settings| duration_value(settings.admin_state.lease_bypass),
    },
    Key {
        path: "localPools.enabled",
        flag: None,
        about: "Whether the leader updates the members of backend pools of Services with `externalTrafficPolicy: Local`, \
                which have pools of their own where there are several Standard load balancers. `auto` means yes where \
                `azure.json` has `multipleStandardLoadBalancerConfigurations`, which is where \
                cloud-controller-manager's own updater runs. It needs the rights in `manifests/components/controller`. \
                docs/local-pools.md is the guide.",
        set: |settings, value| {
            settings.local_pools.enabled = value::local_pools_enabled(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.local_pools.enabled.as_str().to_owned()),
    },
    Key {
        path: "localPools.interval",
        flag: None,
        about: "Time from one tick of these updates to the next, up to `1h`. `0s` means \
                `loadBalancerBackendPoolUpdateIntervalInSeconds` of `azure.json`, which is 30 s where it is missing.",
        set: |settings, value| {
            settings.local_pools.interval = value::duration(value, Duration::ZERO, HOUR)?;
            Ok(())
        },
        get: |settings| duration_value(settings.local_pools.interval),
    },
    Key {
        path: "localPools.resyncInterval",
        flag: None,
        about: "After this time at the latest the load balancers are listed and every pool is compared again, and an update \
                that was given up is tried again. From `30s` to `24h`.",
        set: |settings, value| {
            settings.local_pools.resync_interval = value::duration(value, 30 * SECOND, 24 * HOUR)?;
            Ok(())
        },
        get: |settings| duration_value(settings.local_pools.resync_interval),
    },
    Key {
        path: "localPools.endpoints",
        flag: None,
        about: "The endpoints whose nodes are members: `all`, as cloud-controller-manager counts them, or only those that \
                are `ready`. `ready` needs `localPools.enabled: 'on'`, because cloud-controller-manager's updater adds \
                the others again.",
        set: |settings, value| {
            settings.local_pools.endpoints = value::endpoint_selection(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.local_pools.endpoints.as_str().to_owned()),
    },
    Key {
        path: "guard.minimumInService",
        flag: None,
        about: "How many entries of each backend pool that a load-balancing rule uses stay in service, whatever the signals: \
                a number, or a percentage of the pool's entries such as `20%`, rounded up. If fewer entries can serve (not \
                `Down`, on a Ready Node without a signal, also of `signals.health` where a rule probes headgate), the leader holds back entries of Ready Nodes: it does not set \
                them `Down`, and records a hold on their Nodes, with which their agents answer 200. It never holds back a \
                Node that is out of service, shut down, being deleted or evicted. Holds need `manifests/components/controller` \
                and `adminState.mode: enforce`; without a leader there is no guard. `0` disables it.",
        set: |settings, value| {
            settings.guard.minimum_in_service = value::minimum_in_service(value)?;
            Ok(())
        },
        get: |settings| match settings.guard.minimum_in_service {
            MinimumInService::Count(count) => Value::from(count),
            percent @ MinimumInService::Percent(_) => Value::String(percent.to_string()),
        },
    },
    Key {
        path: "marker.mode",
        flag: None,
        about: "Whether the leader writes the Node condition `headgate.dev/OutOfLoadBalancers`, by which `kubectl wait` and other tools \
                know that a node with a signal has left its load balancers. `off`: it does not. `adminState`: it does, from what it \
                read of every managed load balancer, and the agents make the condition `Unknown` when no leader has confirmed it \
                for 3 min. It needs `manifests/components/controller` and `manifests/components/marker`. docs/integrations.md \
                is the guide.",
        set: |settings, value| {
            settings.marker.mode = value::marker_mode(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.marker.mode.as_str().to_owned()),
    },
    Key {
        path: "marker.probes",
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
        path: "telemetry.otlpEndpoint",
        flag: None,
        about: "Base address of an OpenTelemetry collector. headgate exports a span for each call to ARM and for each \
                of its attempts: OTLP as protobuf over HTTP, to the path `/v1/traces` below this address; the usual \
                port is 4318. With `none` the environment variable `OTEL_EXPORTER_OTLP_ENDPOINT` applies; without both, \
                nothing is exported. A slow or missing collector loses spans: up to 2,048 wait in a queue, and further \
                ones are dropped. Needs a program built with the feature `otlp`, as the image is with `--build-arg \
                FEATURES=otlp`; without the feature, only `none` is allowed.",
        set: |settings, value| {
            settings.otlp_endpoint = otlp::endpoint(value)?;
            Ok(())
        },
        get: |settings| {
            let endpoint = settings.otlp_endpoint.as_deref();
            Value::String(endpoint.unwrap_or(value::NONE).to_owned())
        },
    },
];

/// The key at a dotted path.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Whether a dotted path is a section that holds keys.
pub(super) fn is_section(path: &str) -> bool {
    KEYS.iter()
        .any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}
