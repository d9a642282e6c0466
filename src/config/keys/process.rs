//! The settings of every process, whatever its role.

use headgate_core::node::BuiltInSignal;

use super::Key;
use crate::config::value::{
    bind_address, boolean, built_in_signals, directory, log_filter, optional, otlp_endpoint, signal_matchers, words,
};
use crate::config::{LogFormat, METRICS_PORT};

/// These settings, in the order of the reference.
pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "metricsBindAddress",
            bind_address(METRICS_PORT),
            |s| &mut s.metrics_bind_address,
            "Address and port of the operations endpoints: `/metrics`, `/statusz`, and this process's own `/livez` \
             and `/readyz`.",
        )
        .flag("--metrics-bind-address"),
        Key::new(
            "bindAddressHardFail",
            boolean(),
            |s| &mut s.bind_address_hard_fail,
            "What happens when an address cannot be bound: `true` exits with code 1, `false` tries again every 5 s \
             without end.",
        )
        .flag("--bind-address-hard-fail"),
        Key::new(
            "stateDir",
            directory(),
            |s| &mut s.state_dir,
            "Directory of the remembered state (`state.json`) and of the probe socket (`headgate.sock`). Each agent \
             needs its own. If the agent cannot write to it, it logs a warning and works without remembered state.",
        )
        .flag("--state-dir"),
        Key::new(
            "signals.health",
            signal_matchers(),
            |s| &mut s.signals.health.matchers,
            "Taint keys that make `/healthz` answer 503, whatever the taint's value and effect. The list replaces the default. \
             Besides keys it may have matchers: `{taint: example.com/*}`, `{condition: {type: T, status: \"True\", reason: R, \
             messagePrefix: P}}`, `{label: {key: K, value: V}}`, `{annotation: {key: K, value: V}}`, `{unschedulable: true, for: \
             10s}`. Guide: docs/concepts/how-it-works.md.",
        ),
        Key::new(
            "signals.healthBuiltIn",
            built_in_signals(&BuiltInSignal::ALL),
            |s| &mut s.signals.health.built_in,
            "The built-in signals that make `/healthz` answer 503: `deletionTimestamp` (the Node is being deleted), `nodeShutdown` \
             (kubelet's graceful shutdown), and with `node.scheduledEvents` what Azure announces of this VM: `azurePreempt` (its \
             eviction), `azureTerminate` (the scale set deletes it), `azureRedeploy` (it moves to another machine), `azureReboot` (it \
             restarts). The last three also taint the Node where they are listed. The list replaces the default. With an empty list \
             here and in `signals.health`, `/healthz` depends on kube-proxy alone.",
        ),
        Key::new(
            "signals.adminState",
            signal_matchers(),
            |s| &mut s.signals.admin_state.matchers,
            "Taint keys and matchers as in `signals.health`, for which the leader sets the node `Down` in its load balancers' \
             backend pools. The list replaces the default. It has an effect only with `azure.configFile` or `azure.configSecret`.",
        ),
        Key::new(
            "signals.adminStateBuiltIn",
            built_in_signals(&BuiltInSignal::IN_NODE_OBJECT),
            |s| &mut s.signals.admin_state.built_in,
            "The same for built-in signals: `deletionTimestamp`, `nodeShutdown`. The leader sees no `azurePreempt`; it acts on the \
             taint that follows.",
        ),
        Key::new(
            "logging.format",
            words(&LogFormat::ALL, LogFormat::as_str),
            |s| &mut s.logging.format,
            "The format of the logs on standard error: `text`, `json`, or `auto`, which is text on a terminal and JSON otherwise.",
        ),
        Key::new(
            "logging.filter",
            optional(log_filter()),
            |s| &mut s.logging.filter,
            "Which records are logged: levels by target, in the form of `RUST_LOG`, such as `info` or \
             `warn,headgate=debug`. The environment variable `RUST_LOG` wins. With null, `warn,headgate=info,kube_client=error` \
             applies.",
        ),
        Key::new(
            "telemetry.otlpEndpoint",
            optional(otlp_endpoint()),
            |s| &mut s.otlp_endpoint,
            "Base address of an OpenTelemetry collector that gets a span for each reconcile and each call to ARM: OTLP as protobuf \
             over HTTP, at `/v1/traces` below it, usually on port 4318. With null `OTEL_EXPORTER_OTLP_ENDPOINT` applies; without \
             both nothing is exported. Spans beyond 2,048 in the queue are dropped. Needs a program built with the feature `otlp`, \
             as the image is with `--build-arg FEATURES=otlp`; otherwise only null is allowed.",
        ),
    ]
}
