//! The chart in a sandbox, with the functions of lab/sandbox/pods.sh in the place of kubelets: what commands show of its pods.

use std::path::Path;
use std::process::Command;

use headgate_test_kubernetes::{assets, scratch};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::command::Sandbox;
use crate::manifests::rendering::tools;

/// As in docs/dev/lab.md: the chart is installed and its pods are started, here in a directory of the test's.
const SCRIPT: &str = r#"
source lab/sandbox/pods.sh
trap stop_pods EXIT
echo "{\"profile\": \"azure\", \"azure\": {\"clusterName\": \"kubernetes\", \"config\": $(cat "$AZURE_JSON")}}" >"$PODS_DIR/values.yaml"
helm install headgate charts/headgate --namespace kube-system --values "$PODS_DIR/values.yaml" \
  --set settings.kubeProxyHealthzUrl=Disabled && pods || exit
headgate version -o json >"$PODS_DIR/version.json" || exit
headgate check -o json --config "$PODS_DIR/headgate-controller-1/settings.yaml" --azure-config-file "$AZURE_JSON" >"$PODS_DIR/check.json"
status -o json --all >"$PODS_DIR/status.json" || exit
headgate sysdump -f "$PODS_DIR/dump.tar.gz" >"$PODS_DIR/dump.txt" || exit
stop_pods
headgate version -o json >"$PODS_DIR/none.json"
"#;

/// The JSON that headgate prints.
pub(super) fn headgate(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_headgate"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
async fn the_pods_of_the_chart_run_as_far_as_commands_see() {
    let mut sandbox = Sandbox::start(&["--no-agents"]);
    let description = sandbox.description().await;
    let directory = scratch("pods");
    let programs = [
        Path::new(env!("CARGO_BIN_EXE_headgate")).parent().unwrap().to_owned(),
        assets().directory().to_owned(),
        tools().to_owned(),
    ];
    let own = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&own))).unwrap();
    let mut command = Command::new("timeout");
    command.args(["240", "bash", "-c", SCRIPT]);
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env("PATH", path);
    command
        .env("PODS_DIR", &directory)
        .env("KUBECONFIG", description["kubeconfig"].as_str().unwrap())
        .env("AZURE_JSON", description["azureJson"].as_str().unwrap());
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, directory.join("helm"));
    }
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    assert!(output.status.success(), "{output:?}");

    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let parsed = |name: &str| -> Value { serde_json::from_str(&read(name)).unwrap() };
    let version = headgate_core::telemetry::VERSION;
    let part = |pods: u8| json!([{"version": version, "image": format!("headgate:{version}"), "pods": pods}]);
    let versions = parsed("version.json");
    assert_eq!((&versions["agents"], &versions["controllers"]), (&part(3), &part(2)));
    let check = parsed("check.json");
    let ok = |id: &str| {
        let mut findings = check["findings"].as_array().unwrap().iter();
        let finding = findings.find(|finding| finding["id"] == id).unwrap();
        assert_eq!(finding["state"], "ok", "{finding}");
        finding["what"].as_str().unwrap().to_owned()
    };
    let ready = ok("installation");
    for workload in [
        "deployment/kube-system/headgate-controller",
        "daemonset/kube-system/headgate,",
    ] {
        assert!(
            ready.starts_with("all pods are ready: ") && ready.contains(workload),
            "{ready}"
        );
    }
    assert_eq!(ok("versions"), format!("every part runs headgate:{version}"));
    assert!(ok("rights").contains("may do what the settings need"));
    assert_eq!(check["failures"], 0, "{check:#}");
    let status = parsed("status.json");
    assert_eq!(
        (&status["leader"]["alive"], &status["azureError"]),
        (&json!(true), &Value::Null)
    );
    // The chart's ConfigMap has a hash of the settings in its name.
    let dump = read("dump.txt");
    assert!(!dump.contains("missing: settings.yaml"), "{dump}");
    assert!(
        dump.contains("address not allowed"),
        "the API server asks no pod on a loopback address: {dump}"
    );
    let none = parsed("none.json");
    assert_eq!((&none["agents"], &none["controllers"]), (&json!([]), &json!([])));

    sandbox.stop(Signal::SIGINT).await;
}
