//! What a process logs by its settings.

use std::process::Command;

use headgate_test_kubernetes::scratch;
use serde_json::{Value, json};

use super::settings_file;
use crate::harness::refused;

/// What an agent writes to standard error that cannot bind its metrics address.
#[track_caller]
fn log(settings: &str, levels: &str) -> String {
    let file = settings_file(&format!("metricsBindAddress: 192.0.2.1:1\n{settings}"));
    let directory = scratch("logging");
    let kubeconfig = directory.join("kubeconfig");
    let cluster = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}], "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    std::fs::write(&kubeconfig, cluster.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command.args([
        "agent",
        "--node-name",
        "n",
        "--healthz-bind-address",
        "127.0.0.1:0",
        "--bind-address-hard-fail",
    ]);
    command.env("RUST_LOG", levels);
    for (flag, path) in [
        ("--config", &file),
        ("--kubeconfig", &kubeconfig),
        ("--state-dir", &directory),
    ] {
        command.arg(flag).arg(path);
    }
    refused(&command.output().unwrap(), 1, &[])
}

#[test]
fn the_format_is_a_setting_and_levels_are_in_the_environment() {
    let text = log("logFormat: Text\n", "");
    assert!(text.contains(" INFO ") && text.contains("starting"), "{text}");
    for settings in ["", "logFormat: JSON\n"] {
        let text = log(settings, "");
        let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&first["level"], &first["message"]),
            (&json!("INFO"), &json!("starting")),
            "{text}"
        );
    }
    let text = log("logFormat: Text\n", "error");
    assert!(!text.contains("INFO"), "{text}");
}
