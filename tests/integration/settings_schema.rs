//! The JSON schema of settings files, held to what the program reads.

use std::path::{Path, PathBuf};

use headgate::config::{Settings, load, schema};
use headgate_test_kubernetes::scratch;
use serde_json::{Value, json};

const HEADER: &str = "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\n";

fn validator() -> jsonschema::Validator {
    jsonschema::meta::validate(&schema()).unwrap();
    jsonschema::validator_for(&schema()).unwrap()
}

fn document(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

/// Whether the program reads a file.
fn is_read(text: &str) -> bool {
    let file = scratch("schema").join("settings.yaml");
    std::fs::write(&file, text).unwrap();
    load(Some(&file), &[]).is_ok()
}

#[test]
fn schema_and_program_accept_the_same_files() {
    let validator = validator();
    for (text, good) in [
        ("", true),
        ("stateDir: /a", false),
        ("metricsBindAddress: 127.0.0.1:1", true),
        ("metricsBindAddress:", false),
        ("metricsBindAddress: 1", false),
        (
            "healthzBindAddress: '[::]:1'\nproxyProtocol: Required\nserviceHealthChecks: Disabled",
            true,
        ),
        ("proxyProtocol: on", false),
        ("proxyProtocol: off", false),
        ("serviceHealthChecks: path", false),
        ("kubeProxyHealthzUrl: Disabled", true),
        ("kubeProxyHealthzURL: Disabled", false),
        ("connections: {count: true, excludedSources: [10.0.0.0/8]}", true),
        ("connections: {excludedSources: 10.0.0.0/8}", false),
        ("connections: off", false),
        ("evictionNotices: [ScheduledEvents, NodeEvents]", true),
        ("evictionNotices: [Preempt]", false),
        ("outOfLoadBalancers: {source: FailedProbes, failedProbes: 2}", true),
        ("outOfLoadBalancers: {failedProbes: 101}", false),
        ("outOfLoadBalancers: {failedProbes: 0}", false),
        ("outOfLoadBalancers: {failedProbes: '2'}", false),
        ("delayTermination: {clusterAutoscaler: null}", true),
        (
            "delayTermination: {clusterAutoscaler: 1m30s}\noutOfLoadBalancers: {source: AdminState}",
            true,
        ),
        ("delayTermination: {clusterAutoscaler: 5}", false),
        ("delayTermination: {clusterAutoscaler: soon}", false),
        ("signals: {disabled: [spot, kubelet-shutdown]}", true),
        ("signals: {disabled: [spot, spot]}", false),
        ("signals: {disabled: [azurePreempt]}", false),
        (
            "signals: {extra: [{taint: a.io/b, for: [health]}, {taint: 'a.io/*', for: [health]}, {signal: cordon, after: 10s, for: [adminState]}]}",
            true,
        ),
        (
            "signals: {extra: [{condition: {type: A, status: 'True', reason: R, messagePrefix: 'P:'}, for: [health]}]}",
            true,
        ),
        (
            "signals: {extra: [{label: {key: a.io/b}, for: [health, adminState]}, {annotation: {key: a, value: b}, for: [health]}]}",
            true,
        ),
        (
            "signals: {extra: [{signal: preempt, for: [health]}, {signal: nth, for: [health, adminState]}]}",
            true,
        ),
        ("signals: {extra: [{signal: preempt, for: [adminState]}]}", false),
        ("signals: {extra: [{signal: spot, after: 1s, for: [health]}]}", false),
        ("signals: {extra: [{signal: unknown, for: [health]}]}", false),
        ("signals: {extra: [{taint: a.io/b}]}", false),
        ("signals: {extra: [{taint: a.io/b, for: []}]}", false),
        ("signals: {extra: [{taint: a.io/b, for: health}]}", false),
        ("signals: {extra: [{label: {value: b}, for: [health]}]}", false),
        ("signals: {extra: [{label: {key: a, values: b}, for: [health]}]}", false),
        (
            "signals: {extra: [{taint: a.io/b, for: [health]}, {taint: a.io/b, for: [health]}]}",
            false,
        ),
        ("signals: {extra: [a.io/b]}", false),
        ("azure: {configSecret: ~, clusterName: c}", true),
        ("azure: {configFile: /etc/azure.json}", false),
        ("azure: {clusterName: null}", false),
        ("adminState: {mode: Observe, foreignDown: Restore}", true),
        ("adminState: {mode: dry-run}", false),
        ("localPools: ReadyEndpoints", true),
        ("localPools: true", false),
        ("localPools: maybe", false),
        ("adminState: {minimumInService: 20%, maxNewDown: 3}", true),
        ("adminState: {minimumInService: Disabled}", true),
        ("adminState: {minimumInService: 0}", false),
        ("adminState: {minimumInService: -1}", false),
        ("adminState: {minimumInService: many}", false),
        (
            "maintenance: {enabled: true, automatic: [preempt, {cause: shutdown, timeout: 1m}]}",
            true,
        ),
        (
            "maintenance: {enabled: true, automatic: [{cause: preempt, timeout: 1m}]}",
            false,
        ),
        ("logFormat: JSON", true),
        ("logFormat: json", false),
        ("notifications: {template: '{{ note }}'}", true),
        ("unknown: 1", false),
        ("connections: {count: 'true'}", false),
        ("connections.count: true", false),
        ("azure: {clusterName: 7}", true),
        ("azure: {clusterName: 1.50}", false),
        ("azure: {clusterName: true}", false),
        ("azure: {clusterName: -a}", false),
        ("azure: {configSecret: a}", false),
        ("adminState: {maxNewDown: 5001}", false),
        ("adminState: {maxNewDown: 0%}", false),
        ("adminState: {maxNewDown: 101%}", false),
        ("adminState: {maxNewDown: 007%}", true),
        (
            "signals: {extra: [{condition: {type: A, status: True}, for: [health]}]}",
            true,
        ),
        (
            "signals: {extra: [{condition: {type: A, status: maybe}, for: [health]}]}",
            false,
        ),
        ("signals: {extra: [{taint: 'a b', for: [health]}]}", false),
        ("signals: {extra: [{label: {key: 'a b'}, for: [health]}]}", false),
        (
            "signals: {extra: [{label: {key: a, value: 'b c'}, for: [health]}]}",
            false,
        ),
        ("notifications: {events: [node]}", false),
        ("notifications: {urlFile: /}", false),
    ] {
        let text = format!("{HEADER}{text}\n");
        let errors: Vec<_> = validator.iter_errors(&document(&text)).map(|e| e.to_string()).collect();
        assert_eq!(errors.is_empty(), good, "schema: {text}{errors:?}");
        assert_eq!(is_read(&text), good, "program: {text}");
    }
}

#[test]
fn schema_needs_the_version_and_the_kind() {
    let validator = validator();
    for file in [
        json!({}),
        json!({"apiVersion": "config.headgate.dev/v1alpha1"}),
        json!({"kind": "HeadgateConfiguration"}),
        json!({"apiVersion": "v1", "kind": "HeadgateConfiguration"}),
    ] {
        assert!(!validator.is_valid(&file), "{file}");
    }
}

/// The settings files below a directory.
fn settings_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(settings_files(&path));
        } else if path.ends_with("settings.yaml") {
            found.push(path);
        }
    }
    found
}

#[test]
fn shipped_settings_and_the_defaults_conform() {
    let validator = validator();
    let files = settings_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests"));
    assert!(files.len() >= 4, "{files:?}");
    let shipped = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
    for text in shipped.chain([Settings::default().to_yaml()]) {
        let errors: Vec<_> = validator.iter_errors(&document(&text)).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{text}{errors:?}");
        assert!(is_read(&text), "{text}");
    }
}
