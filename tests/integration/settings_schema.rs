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
    let good = [
        "",
        "metricsBindAddress: 127.0.0.1:1",
        "healthzBindAddress: '[::]:1'\nproxyProtocol: Required\nserviceHealthChecks: Disabled",
        "kubeProxyHealthzUrl: Disabled",
        "connections: {count: true, excludedSources: [10.0.0.0/8]}",
        "evictionNotices: [ScheduledEvents, NodeEvents]",
        "outOfLoadBalancers: {source: FailedProbes, failedProbes: 2}",
        "delayTermination: {clusterAutoscaler: null}",
        "delayTermination: {clusterAutoscaler: 1m30s}\noutOfLoadBalancers: {source: AdminState}",
        "signals: {disabled: [spot, kubelet-shutdown]}",
        "signals: {extra: [{taint: a.io/b, for: [health]}, {taint: 'a.io/*', for: [health]}, {signal: cordon, after: 10s, for: [adminState]}]}",
        "signals: {extra: [{condition: {type: A, status: 'True', reason: R, messagePrefix: 'P:'}, for: [health]}]}",
        "signals: {extra: [{label: {key: a.io/b}, for: [health, adminState]}, {annotation: {key: a, value: b}, for: [health]}]}",
        "signals: {extra: [{signal: preempt, for: [health]}, {signal: nth, for: [health, adminState]}]}",
        "azure: {configSecret: ~, clusterName: c}",
        "adminState: {mode: Observe, foreignDown: Restore}",
        "localPools: ReadyEndpoints",
        "adminState: {minimumInService: 20%, maxNewDown: 3}",
        "adminState: {minimumInService: Disabled}",
        "maintenance: {enabled: true, automatic: [preempt, {cause: shutdown, timeout: 1m}]}",
        "logFormat: JSON",
        "notifications: {template: '{{ note }}'}",
        "azure: {clusterName: 7}",
        "adminState: {maxNewDown: 007%}",
        "signals: {extra: [{condition: {type: A, status: True}, for: [health]}]}",
    ];
    let wrong = [
        "stateDir: /a",
        "metricsBindAddress:",
        "metricsBindAddress: 1",
        "proxyProtocol: on",
        "proxyProtocol: off",
        "serviceHealthChecks: path",
        "kubeProxyHealthzURL: Disabled",
        "connections: {excludedSources: 10.0.0.0/8}",
        "connections: off",
        "evictionNotices: [Preempt]",
        "outOfLoadBalancers: {failedProbes: 101}",
        "outOfLoadBalancers: {failedProbes: 0}",
        "outOfLoadBalancers: {failedProbes: '2'}",
        "delayTermination: {clusterAutoscaler: 5}",
        "delayTermination: {clusterAutoscaler: soon}",
        "signals: {disabled: [spot, spot]}",
        "signals: {disabled: [azurePreempt]}",
        "signals: {extra: [{signal: preempt, for: [adminState]}]}",
        "signals: {extra: [{signal: spot, after: 1s, for: [health]}]}",
        "signals: {extra: [{signal: unknown, for: [health]}]}",
        "signals: {extra: [{taint: a.io/b}]}",
        "signals: {extra: [{taint: a.io/b, for: []}]}",
        "signals: {extra: [{taint: a.io/b, for: health}]}",
        "signals: {extra: [{label: {value: b}, for: [health]}]}",
        "signals: {extra: [{label: {key: a, values: b}, for: [health]}]}",
        "signals: {extra: [{taint: a.io/b, for: [health]}, {taint: a.io/b, for: [health]}]}",
        "signals: {extra: [a.io/b]}",
        "azure: {configFile: /etc/azure.json}",
        "azure: {clusterName: null}",
        "adminState: {mode: dry-run}",
        "localPools: true",
        "localPools: maybe",
        "adminState: {minimumInService: 0}",
        "adminState: {minimumInService: -1}",
        "adminState: {minimumInService: many}",
        "maintenance: {enabled: true, automatic: [{cause: preempt, timeout: 1m}]}",
        "logFormat: json",
        "unknown: 1",
        "connections: {count: 'true'}",
        "connections.count: true",
        "azure: {clusterName: 1.50}",
        "azure: {clusterName: true}",
        "azure: {clusterName: -a}",
        "azure: {configSecret: a}",
        "adminState: {maxNewDown: 5001}",
        "adminState: {maxNewDown: 0%}",
        "adminState: {maxNewDown: 101%}",
        "signals: {extra: [{condition: {type: A, status: maybe}, for: [health]}]}",
        "signals: {extra: [{taint: 'a b', for: [health]}]}",
        "signals: {extra: [{label: {key: 'a b'}, for: [health]}]}",
        "signals: {extra: [{label: {key: a, value: 'b c'}, for: [health]}]}",
        "notifications: {events: [node]}",
        "notifications: {urlFile: /}",
    ];
    let good = good.map(|text| (text, true));
    for (text, good) in good.into_iter().chain(wrong.map(|text| (text, false))) {
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
