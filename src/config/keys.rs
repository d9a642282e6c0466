//! The table of settings: one row a key, with its meaning, what it allows, and how it is read and shown.
//!
//! Everything else about settings is derived from this table: loading, unknown-key suggestions, the
//! effective settings printed at start, and the reference.

use std::time::Duration;

use serde_yaml::Value;

use super::otlp;
use super::value::{self, Refused};
use super::{HEALTHZ_PORT, METRICS_PORT, Settings};

/// One setting.
pub(super) struct Key {
    /// Dotted path in the file.
    pub(super) path: &'static str,
    /// The flag that overrides it, if there is one.
    pub(super) flag: Option<&'static str>,
    /// What it means, in full sentences.
    pub(super) about: &'static str,
    /// Reads a value into the settings.
    pub(super) set: fn(&mut Settings, &Value) -> Result<(), Refused>,
    /// The value the settings have.
    pub(super) get: fn(&Settings) -> Value,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

fn duration_value(duration: Duration) -> Value {
    Value::String(headgate_settings::format_duration(duration))
}

fn list_value(keys: &[String]) -> Value {
    Value::Sequence(keys.iter().cloned().map(Value::String).collect())
}

/// Every setting, in the order of the reference.
pub(super) const KEYS: &[Key] = &[
    Key {
        path: "healthzBindAddress",
        flag: Some("--healthz-bind-address"),
        about: "Address and port of `/healthz` and `/livez`. `[::]` serves both IP families; where the machine has no \
                IPv6 it falls back to `0.0.0.0`. Port 0 takes a free one.",
        set: |settings, value| {
            settings.healthz_bind_address = value::bind_address(value, HEALTHZ_PORT)?;
            Ok(())
        },
        get: |settings| Value::String(settings.healthz_bind_address.to_string()),
    },
    Key {
        path: "proxyProtocol",
        flag: None,
        about: "Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header (version 1 or 2), as Azure \
                puts it before the probes of a Private Link Service with PROXY protocol. `optional` serves those with and \
                without one, `required` closes those without; with `off` a header is a bad request. A header that is half, \
                wrong or larger than 2 KiB closes the connection. With `healthzBindAddress: '[::]:10356'` this stands in for \
                the health-probe-proxy sidecar.",
        set: |settings, value| {
            settings.proxy_protocol = value::proxy_protocol(value)?;
            Ok(())
        },
        get: |settings| Value::String(value::proxy_protocol_text(settings.proxy_protocol).to_owned()),
    },
    Key {
        path: "metricsBindAddress",
        flag: Some("--metrics-bind-address"),
        about: "Address and port of operations: `/metrics`, `/statusz`, and this process's own `/livez` and `/readyz`.",
        set: |settings, value| {
            settings.metrics_bind_address = value::bind_address(value, METRICS_PORT)?;
            Ok(())
        },
        get: |settings| Value::String(settings.metrics_bind_address.to_string()),
    },
    Key {
        path: "bindAddressHardFail",
        flag: Some("--bind-address-hard-fail"),
        about: "When an address cannot be bound: `true` exits with code 1, `false` tries again every 5 s for ever.",
        set: |settings, value| {
            settings.bind_address_hard_fail = value::boolean(value)?;
            Ok(())
        },
        get: |settings| Value::Bool(settings.bind_address_hard_fail),
    },
    Key {
        path: "stateDir",
        flag: Some("--state-dir"),
        about: "Directory of the remembered state (`state.json`) and of the probe socket (`headgate.sock`). One agent each. \
                Where it cannot be written the agent works without memory and says so.",
        set: |settings, value| {
            settings.state_dir = value::directory(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.state_dir.display().to_string()),
    },
    Key {
        path: "shutdownDelay",
        flag: None,
        about: "How long `/healthz` answers 503 after SIGTERM before the port closes. `0s`: a roll of headgate is not a \
                drain; the new process takes over on the same port without a failed probe.",
        set: |settings, value| {
            settings.shutdown_delay = value::duration(value, Duration::ZERO, 10 * MINUTE)?;
            Ok(())
        },
        get: |settings| duration_value(settings.shutdown_delay),
    },
    Key {
        path: "signals.health",
        flag: None,
        about: "Taint keys that fail `/healthz` of the node that carries them, whatever the taint's value and effect. The \
                list replaces the default as a whole. A Node's `deletionTimestamp` always is a signal; cordon, NotReady \
                and `DeletionCandidateOfClusterAutoscaler` are not unless listed here.",
        set: |settings, value| {
            settings.signals.health = value::taint_keys(value)?;
            Ok(())
        },
        get: |settings| list_value(&settings.signals.health),
    },
    Key {
        path: "signals.adminState",
        flag: None,
        about: "Taint keys that take the node's addresses out of its load balancers' backend pools, whatever the taint's value \
                and effect: the leader sets their `adminState` to `Down`, and gives it back when the last of them has gone. The \
                list replaces the default as a whole. Acted upon where Azure is known (`azure.configFile` or \
                `azure.configSecret`).",
        set: |settings, value| {
            settings.signals.admin_state = value::taint_keys(value)?;
            Ok(())
        },
        get: |settings| list_value(&settings.signals.admin_state),
    },
    Key {
        path: "proxy.healthzUrl",
        flag: None,
        about: "Address of kube-proxy's health server, asked at `/livez`, or at `/healthz` where `/livez` is not there \
                (kube-proxy before 1.28). `off` never asks. One that was never reached since start is ignored with a \
                warning: clusters without kube-proxy work unchanged.",
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
        about: "Time from one question to kube-proxy to the next.",
        set: |settings, value| {
            settings.proxy.poll_interval = value::duration(value, SECOND / 10, MINUTE)?;
            Ok(())
        },
        get: |settings| duration_value(settings.proxy.poll_interval),
    },
    Key {
        path: "proxy.healthTimeout",
        flag: None,
        about: "How long kube-proxy may give no answer before this node counts as unhealthy. kube-proxy's own 503 counts at once.",
        set: |settings, value| {
            settings.proxy.health_timeout = value::duration(value, SECOND, HOUR)?;
            Ok(())
        },
        get: |settings| duration_value(settings.proxy.health_timeout),
    },
    Key {
        path: "serviceHealth",
        flag: None,
        about: "Health of single Services with `externalTrafficPolicy: Local`: 200 where the node has a ready endpoint. `off`: \
                not served, and Services are not watched. `path`: at `/healthz/services/NAMESPACE/NAME` of the health port; a \
                dual-stack Service counts in the family in which the node has more. `nodePorts`: on each Service's \
                `healthCheckNodePort`, one socket for each IP family, which counts the endpoints of that family; only for \
                nodes without kube-proxy, which opens these ports itself. Both need the rights in \
                `manifests/components/service-health`.",
        set: |settings, value| {
            settings.service_health = value::service_health(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.service_health.as_str().to_owned()),
    },
    Key {
        path: "nodePortAddresses",
        flag: None,
        about: "Which of the node's addresses `serviceHealth: nodePorts` listens on, as address ranges. The default, an empty \
                list, is all addresses. Given a list, a family without a range in it gets no listener (kube-proxy would then \
                listen on all of that family).",
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
        about: "Asks the instance metadata service each second for Scheduled Events. A `Preempt` of this very VM (known \
                by the Node's `providerID`) fails `/healthz` at once as the signal `azurePreempt`, and taints the own \
                Node with `cloudprovider.azure.microsoft.com/draining=spot-eviction:NoSchedule`, for which \
                `manifests/components/spot` grants `patch` on Nodes. The signal and the taint go when the notice has been \
                gone for 60 s, the taint also after a reboot. Other events are shown in `/statusz` and in metrics, not \
                acted on. No event is ever approved. Some clusters block the service for pods that are not on the \
                host's network.",
        set: |settings, value| {
            settings.azure.scheduled_events = value::boolean(value)?;
            Ok(())
        },
        get: |settings| Value::Bool(settings.azure.scheduled_events),
    },
    Key {
        path: "azure.imdsEndpoint",
        flag: Some("--imds-endpoint"),
        about: "Address of the instance metadata service. Only tests and simulators have another one.",
        set: |settings, value| {
            settings.azure.imds_authority = value::http_server(value)?;
            Ok(())
        },
        get: |settings| Value::String(format!("http://{}", settings.azure.imds_authority)),
    },
    Key {
        path: "azure.configFile",
        flag: Some("--azure-config-file"),
        about: "The cloud's configuration, `azure.json`, as cloud-provider-azure reads it (YAML or JSON, keys in any case, unknown \
                ones ignored). The nodes' own `/etc/kubernetes/azure.json` is root's alone, and headgate is not root: \
                `manifests/components/azure` mounts a Secret of yours. With `none`, and no `azure.configSecret`, nobody \
                stands for election here and Azure is never asked. Read at the start, where a mistake ends the process with exit \
                code 2, and anew at the start of each term and every minute of it. One key of headgate's own: `enableLoadBalancerAdminState` \
                (default true; false is `adminState.mode: off`).",
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
        about: "A Secret, `NAMESPACE/NAME`, whose key `cloud-config` is laid over `azure.configFile`, key by key, or stands in for it \
                (the file's `cloudConfigType`, `file`, `secret` or `merge`, may say otherwise). \
                Read by the leader at the start of each term and every minute of it, which needs the right to `get` it. Where it is set, the file alone is \
                only checked at the start for being readable.",
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
        about: "The cluster's name, as cloud-controller-manager has it in `--cluster-name`: its load balancers are called after it. \
                `azure.json` does not say it.",
        set: |settings, value| {
            settings.azure.cluster_name = value::cluster_name(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.azure.cluster_name.clone()),
    },
    Key {
        path: "adminState.mode",
        flag: None,
        about: "What the leader does with admin states. `enforce` writes them. `observe` works out what it would write, which \
                `headgate status` and the metric `headgate_pool_desired_down` show, and writes no pool. `off` gives back every `Down` \
                that is headgate's, then rests. docs/admin-state.md is the guide.",
        set: |settings, value| {
            settings.admin_state.mode = value::admin_state_mode(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.admin_state.mode.as_str().to_owned()),
    },
    Key {
        path: "adminState.foreignDown",
        flag: None,
        about: "What becomes of a `Down` that headgate did not write, on a node without a signal: `keep` leaves and shows it, \
                `restore` takes it away, in the mode `enforce`. An `Up` always stays.",
        set: |settings, value| {
            settings.admin_state.foreign_down = value::foreign_down(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.admin_state.foreign_down.as_str().to_owned()),
    },
    Key {
        path: "telemetry.otlpEndpoint",
        flag: None,
        about: "Base address of an OpenTelemetry collector, which is sent a span for each call to ARM and each of its tries: OTLP as \
                protobuf over HTTP, to `/v1/traces` below it, the usual port being 4318. `none` takes what `OTEL_EXPORTER_OTLP_ENDPOINT` \
                names in the environment; where neither is set, nothing is sent. Up to 2,048 spans wait for a collector that is slow \
                or away, further ones are dropped. Needs a program built with the feature `otlp`, as the image is by \
                `--build-arg FEATURES=otlp`; without it anything but `none` is a mistake.",
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
