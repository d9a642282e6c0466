//! The settings of every process, whatever its role.

use headgate_node::BuiltInSignal;
use serde_yaml::Value;

use super::{Key, built_in_value, matchers_value};
use crate::config::{LogFormat, METRICS_PORT, otlp, schema, value};

/// These settings, in the order of the reference.
pub(super) const PROCESS: &[Key] = &[
    Key {
        path: "metricsBindAddress",
        former: None,
        is_optional: false,
        schema: || schema::bind_address(METRICS_PORT),
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
        former: None,
        is_optional: false,
        schema: || schema::boolean(),
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
        former: None,
        is_optional: false,
        schema: || schema::absolute_path(),
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
        path: "signals.health",
        former: None,
        is_optional: false,
        schema: || schema::signal_matchers(),
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
        former: None,
        is_optional: false,
        schema: || schema::built_in_signals(&BuiltInSignal::ALL),
        flag: None,
        about: "The built-in signals that make `/healthz` answer 503: `deletionTimestamp` (the Node is being deleted), \
                `nodeShutdown` (kubelet's graceful shutdown), `azurePreempt` (Azure announces the eviction of this VM; needs \
                `node.scheduledEvents`). The list replaces the whole default. With an empty list here and in \
                `signals.health`, `/healthz` depends on kube-proxy alone.",
        set: |settings, value| {
            settings.signals.health.built_in = value::built_in_signals(value, &BuiltInSignal::ALL)?;
            Ok(())
        },
        get: |settings| built_in_value(&settings.signals.health),
    },
    Key {
        path: "signals.adminState",
        former: None,
        is_optional: false,
        schema: || schema::signal_matchers(),
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
        former: None,
        is_optional: false,
        schema: || schema::built_in_signals(&BuiltInSignal::IN_NODE_OBJECT),
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
        path: "logging.format",
        former: None,
        is_optional: false,
        schema: || schema::words(&LogFormat::ALL.map(LogFormat::as_str)),
        flag: None,
        about: "The format of the logs on standard error: `text`, `json`, or `auto`, which is text on a terminal and JSON \
                otherwise. docs/logs.md describes the fields of each line.",
        set: |settings, value| {
            settings.logging.format = value::log_format(value)?;
            Ok(())
        },
        get: |settings| Value::String(settings.logging.format.as_str().to_owned()),
    },
    Key {
        path: "logging.filter",
        former: None,
        is_optional: true,
        schema: || schema::text(),
        flag: None,
        about: "Which records are logged: levels by target, in the form of `RUST_LOG`, such as `info` or \
                `warn,headgate=debug`. The environment variable `RUST_LOG` wins. With null, `warn,headgate=info,kube_client=error` \
                applies.",
        set: |settings, value| {
            settings.logging.filter = value::log_filter(value)?;
            Ok(())
        },
        get: |settings| {
            let filter = settings.logging.filter.as_ref();
            filter.map_or(Value::Null, |filter| Value::String(filter.clone()))
        },
    },
    Key {
        path: "telemetry.otlpEndpoint",
        former: None,
        is_optional: true,
        schema: || schema::text(),
        flag: None,
        about: "Base address of an OpenTelemetry collector. headgate exports a span for each reconcile (docs/logs.md), for \
                each call to ARM and for each of its attempts: OTLP as protobuf over HTTP, to the path `/v1/traces` below this address; the usual \
                port is 4318. With null the environment variable `OTEL_EXPORTER_OTLP_ENDPOINT` applies; without both, \
                nothing is exported. A slow or missing collector loses spans: up to 2,048 wait in a queue, and further \
                ones are dropped. Needs a program built with the feature `otlp`, as the image is with `--build-arg \
                FEATURES=otlp`; without the feature, only null is allowed.",
        set: |settings, value| {
            settings.otlp_endpoint = otlp::endpoint(value)?;
            Ok(())
        },
        get: |settings| {
            let endpoint = settings.otlp_endpoint.as_deref();
            endpoint.map_or(Value::Null, |endpoint| Value::String(endpoint.to_owned()))
        },
    },
];
