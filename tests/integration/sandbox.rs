//! The command `headgate-lab sandbox` with real components, and that it removes everything at the end.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use headgate_test_kubernetes::{assert_contains, control_plane, eventually, kubectl, scratch};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use nix::sys::signal::Signal;

use self::command::Sandbox;
use crate::harness::http;

pub(crate) mod command;
mod end_to_end;
mod pods;
mod workloads;

const DRAIN_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

#[tokio::test]
async fn a_taint_shows_as_503_and_ctrl_c_removes_everything() {
    let mut sandbox = Sandbox::start(&["--nodes", "2"]);
    let description = sandbox.description().await;
    let kubeconfig = Path::new(description["kubeconfig"].as_str().unwrap()).to_owned();
    assert!(kubeconfig.starts_with(sandbox.directory()), "{kubeconfig:?}");
    for (number, node) in ["node-1", "node-2"].into_iter().enumerate() {
        assert_eq!(description["nodes"][number]["name"], node);
        sandbox
            .wait_for_line(node, |line| line["healthz"] == 200 && line["source"] == "watch")
            .await;
    }
    let address: SocketAddr = description["nodes"][0]["healthz"].as_str().unwrap().parse().unwrap();
    // The commands are about the node without the leader, which would hand over.
    let holder = [
        "-n",
        "kube-system",
        "get",
        "lease",
        "headgate-leader",
        "-o",
        "jsonpath={.spec.holderIdentity}",
    ];
    let holder = kubectl(&kubeconfig).args(holder).output().unwrap();
    let holder = String::from_utf8(holder.stdout).unwrap();
    let mut nodes = description["nodes"].as_array().unwrap().iter();
    let other = nodes
        .find(|node| !holder.starts_with(node["name"].as_str().unwrap()))
        .unwrap();
    let versions = pods::headgate(&["version", "-o", "json", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    let version = headgate_core::telemetry::VERSION;
    let part = serde_json::json!({"version": version, "image": format!("headgate:{version}"), "pods": 2});
    assert_eq!(
        (&versions["agents"], &versions["controllers"]),
        (&serde_json::json!([part]), &serde_json::json!([]))
    );

    let taint = |text: &str| {
        let output = kubectl(&kubeconfig)
            .args(["taint", "node", "node-1", text])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    taint(&format!("{DRAIN_TAINT}=1:NoSchedule"));
    let line = sandbox.wait_for_line("node-1", |line| line["healthz"] == 503).await;
    assert_eq!(line["signals"], serde_json::json!([DRAIN_TAINT]));
    assert_eq!(http::get(address, "/healthz").await.unwrap().status, 503);
    taint(&format!("{DRAIN_TAINT}-"));
    let line = sandbox.wait_for_line("node-1", |line| line["healthz"] == 200).await;
    assert_eq!(line["signals"], serde_json::json!([]));
    for node in ["node-1", "node-2"] {
        let mut rest = sandbox.unread(node);
        // The leader's requests to ARM have lines of their own.
        rest.retain(|line| line.get("caller").is_none());
        assert!(rest.is_empty(), "a line only for a change: {rest:?}");
    }

    let hints = sandbox.errors();
    let hinted = format!("curl -i http://{}/healthz", other["healthz"].as_str().unwrap());
    assert!(hints.contains(&hinted), "{hinted} of {holder}: {hints}");
    sandbox.stop(Signal::SIGINT).await;
}

#[tokio::test]
async fn a_sandbox_without_agents_has_nodes_and_pools_for_an_installation() {
    let mut sandbox = Sandbox::start(&["--no-agents", "--nodes", "2"]);
    let description = sandbox.description().await;
    assert_eq!(description["nodes"], serde_json::json!([]), "no agent has an address");
    let kubeconfig = description["kubeconfig"].as_str().unwrap();
    let mut status = std::process::Command::new(env!("CARGO_BIN_EXE_headgate"));
    status.args(["status", "--all", "-o", "json", "--kubeconfig", kubeconfig]);
    status.args(["--azure-config-file", description["azureJson"].as_str().unwrap()]);
    let output = status.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_contains!(shown, "node-1", "node-2", "kubernetes-IPv6");
    let (directory, hints) = (sandbox.directory(), sandbox.errors());
    assert_contains!(hints, format!("export KUBECONFIG={kubeconfig} AZURE_JSON="));
    sandbox.signal(Signal::SIGTERM);
    assert_eq!(sandbox.exit_code().await, Some(0), "{}", sandbox.errors());
    assert!(!directory.join("logs/agent-node-1.log").exists());
    sandbox.assert_nothing_left(&directory);
}

#[tokio::test]
async fn a_sandbox_with_a_duration_exits_and_keeps_only_the_logs() {
    let directory = scratch("named").join("made");
    let mut sandbox = Sandbox::start(&[
        "--nodes",
        "1",
        "--exit-after",
        "300ms",
        "--dir",
        directory.to_str().unwrap(),
    ]);
    assert_eq!(sandbox.exit_code().await, Some(0), "{}", sandbox.errors());
    let left: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["logs"]);
    assert!(directory.join("logs/agent-node-1.log").exists());
    sandbox.assert_nothing_left(&directory.join("nothing"));
}

#[tokio::test]
async fn a_killed_sandbox_leaves_no_process() {
    let mut sandbox = Sandbox::start(&["--nodes", "2"]);
    sandbox.description().await;
    let directory = sandbox.directory();
    assert!(
        command::processes_of(&directory).len() >= 4,
        "etcd, kube-apiserver, two agents"
    );
    sandbox.signal(Signal::SIGKILL);
    assert_eq!(sandbox.exit_code().await, None);
    eventually(
        Duration::from_mins(1),
        "no process is left",
        async || match command::processes_of(&directory) {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        },
    )
    .await;
}

/// One test for all of this, because the names of the Nodes in a given cluster are fixed: only one sandbox at a time.
#[tokio::test]
async fn a_sandbox_in_an_existing_cluster_deletes_only_its_own_objects() {
    let cluster = control_plane();
    let nodes = Api::<Node>::all(cluster.client());
    let before = headgate_sandbox::nodes::ready_node("node-1", 1, "another-sandbox");
    nodes.create(&PostParams::default(), &before).await.unwrap();
    let given = ["--nodes", "2", "--kubeconfig", cluster.kubeconfig.to_str().unwrap()];

    // The death of an agent is reported and stops the sandbox.
    let mut sandbox = Sandbox::start(&given);
    let description = sandbox.description().await;
    assert_eq!(description["kubeconfig"], cluster.kubeconfig.to_str().unwrap());
    nodes.get("node-2").await.unwrap();
    let directory = sandbox.directory();
    command::signal_agent(&directory, "node-2", Signal::SIGKILL);
    assert_eq!(sandbox.exit_code().await, Some(1));
    let errors = sandbox.errors();
    assert_contains!(
        errors,
        "the agent of node-2 ended (signal: 9 (SIGKILL)); its last log lines:\n"
    );
    sandbox.assert_nothing_left(&directory);
    assert!(nodes.get_opt("node-2").await.unwrap().is_none());

    // A second interrupt does not wait for an agent that does not end.
    let mut sandbox = Sandbox::start(&given);
    sandbox.description().await;
    let directory = sandbox.directory();
    command::signal_agent(&directory, "node-1", Signal::SIGSTOP);
    sandbox.signal(Signal::SIGINT);
    eventually(Duration::from_mins(1), "it is stopping", async || {
        sandbox
            .errors()
            .contains(" s  stopping\n")
            .then_some(())
            .ok_or_else(|| sandbox.errors())
    })
    .await;
    sandbox.signal(Signal::SIGINT);
    assert_eq!(
        sandbox.exit_code().await,
        Some(1),
        "with a wait for the agent this would be 0"
    );
    let errors = sandbox.errors();
    assert_contains!(errors, "kubectl delete nodes -l headgate.dev/sandbox=");
    sandbox.assert_nothing_left(&directory);

    nodes.get("node-1").await.unwrap();
    nodes.delete("node-1", &DeleteParams::default()).await.unwrap();
    // The second interrupt left this one, as reported.
    nodes.delete("node-2", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn missing_programs_and_invalid_flags_are_reported_at_once() {
    let empty = scratch("empty");
    let empty = empty.to_str().unwrap();
    for (arguments, code, text) in [
        (["--assets", empty].as_slice(), 1, "make control-plane"),
        (&["--kubeconfig", "/nonexistent"], 1, "/nonexistent"),
        (
            &["--assets", empty, "--kubeconfig", "/nonexistent"],
            2,
            "cannot be used with",
        ),
        (&["--nodes", "51"], 2, "1..=50"),
        (&["--exit-after", "soon"], 2, "such as 500ms, 5s or 1m30s"),
    ] {
        let mut sandbox = Sandbox::run(arguments);
        assert_eq!(
            sandbox.exit_code().await,
            Some(code),
            "{arguments:?}: {}",
            sandbox.errors()
        );
        assert!(sandbox.errors().contains(text), "{arguments:?}: {}", sandbox.errors());
        sandbox.assert_nothing_left(Path::new("/nonexistent"));
    }
}
