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
        ("stateDir: /a", true),
        ("stateDir: a", false),
        ("stateDir:", false),
        ("bindAddressHardFail: perhaps", false),
        ("healthzBindAddress: '[::]:1'", false),
        (
            "node: {healthzBindAddress: '[::]:1', proxyProtocol: required, shutdownDelay: 1m30s}",
            true,
        ),
        ("node: {proxyProtocol: on}", false),
        ("node: {proxyProtocol: off, serviceHealth: 'off'}", true),
        ("node: {shutdownDelay: 5}", false),
        ("node: {shutdownDelay: soon}", false),
        ("node: {proxy: {healthzUrl: off, pollInterval: 2s}}", true),
        ("node: {proxy: {pollIntervall: 2s}}", false),
        ("node: {nodePortAddresses: [10.0.0.0/8]}", true),
        ("node: {nodePortAddresses: 10.0.0.0/8}", false),
        ("node: {markerProbes: 2}", true),
        ("node: {markerProbes: 101}", false),
        ("node: off", false),
        (
            "signals: {health: [a.io/b, {taint: 'a.io/*'}, {unschedulable: true, for: 10s}]}",
            true,
        ),
        (
            "signals: {health: [{condition: {type: A, status: 'True', reason: R, messagePrefix: 'P:'}}]}",
            true,
        ),
        (
            "signals: {adminState: [{label: {key: a.io/b}}, {annotation: {key: a, value: b}}]}",
            true,
        ),
        ("signals: {adminState: [{label: {value: b}}]}", false),
        ("signals: {adminState: [{label: {key: a, values: b}}]}", false),
        ("signals: {adminState: [a.io/b, a.io/b]}", false),
        ("signals: {healthBuiltIn: [azurePreempt, nodeShutdown]}", true),
        ("signals: {adminStateBuiltIn: [azurePreempt]}", false),
        ("azure: {configFile: null, configSecret: ~, clusterName: c}", true),
        ("azure: {configFile: etc/azure.json}", false),
        ("azure: {configFile: /etc/azure.json}", true),
        ("azure: {clusterName: null}", false),
        (
            "adminState: {mode: observe, foreignDown: restore, listFailureTimeout: 1m}",
            true,
        ),
        ("adminState: {mode: dry-run}", false),
        ("localPools: {enabled: on, endpoints: ready}", true),
        ("localPools: {enabled: true}", true),
        ("localPools: {enabled: maybe}", false),
        ("guard: {minimumInService: 20%}", true),
        ("guard: {minimumInService: 3}", true),
        ("guard: {minimumInService: -1}", false),
        ("guard: {minimumInService: many}", false),
        ("maintenance: {enabled: true}\nmarker: {mode: adminState}", true),
        ("leaderElection: {leaderElect: false}", true),
        ("leaderElection: {leaseDuration: 15s}", false),
        ("logging: {format: json, filter: 'warn,headgate=debug'}", true),
        ("logging: {format: xml}", false),
        ("unknown: 1", false),
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
