//! End to end in the sandbox, with the user's commands: kubectl taints a Node, the leader sets its entries Down in
//! every pool, `headgate status` reports it; then the taint is removed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use headgate_test_kubernetes::kubectl;
use headgate_test_kubernetes::{eventually, met};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::command::Sandbox;
use crate::harness::{SOON, http};

const POOLS: [&str; 3] = [
    "kubernetes/kubernetes",
    "kubernetes/kubernetes-IPv6",
    "kubernetes-nic/kubernetes",
];
/// Time for an election. Candidates spread their first read over some seconds, and take a missing Lease after 14 s.
const ELECTION_TIMEOUT: Duration = Duration::from_mins(1);
const DRAINING_TAINT: &str = "cloudprovider.azure.microsoft.com/draining";

/// Whether exactly the entries of these nodes are Down in a pool. Entries are named for the node or its interface.
fn are_down(line: &Value, nodes: &[&str]) -> bool {
    let down = line["down"].as_array().unwrap();
    let holds = |node: &&str| down.iter().any(|name| name.as_str().unwrap().contains(*node));
    down.len() == nodes.len() && nodes.iter().all(holds)
}

/// The standard output of a command, or an error with both outputs if it fails.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {text}{errors}", output.status))
    }
}

/// The sandbox's nodes are in its pools, and it prints how to ask about them.
async fn nodes_are_in_their_pools(sandbox: &mut Sandbox, description: &Value) {
    for pool in POOLS {
        let line = sandbox.wait_for_line(pool, |line| line["addresses"] == 3).await;
        assert!(are_down(&line, &[]), "{line}");
    }
    let authority = std::fs::read_to_string(description["emulator"]["caFile"].as_str().unwrap()).unwrap();
    assert!(authority.starts_with("-----BEGIN CERTIFICATE-----"), "{authority}");
    let hint = format!("--azure-config-file {}", description["azureJson"].as_str().unwrap());
    assert!(sandbox.errors().contains(&hint), "{}", sandbox.errors());
}

#[tokio::test]
async fn a_taint_sets_a_node_down_in_every_pool_until_it_is_removed() {
    let mut sandbox = Sandbox::start(&["--nodes", "3"]);
    let description = sandbox.description().await;
    nodes_are_in_their_pools(&mut sandbox, &description).await;
    let file = |name: &str| description[name].as_str().unwrap().to_owned();
    let (kubeconfig, azure_json) = (file("kubeconfig"), file("azureJson"));
    let kube = |arguments: &[&str]| output(kubectl(Path::new(&kubeconfig)).args(arguments)).unwrap();
    let status = |arguments: &[&str]| -> Result<Value, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.args(["status", "--no-agents", "-o", "json", "--kubeconfig", &kubeconfig]);
        let text = output(command.args(["--azure-config-file", &azure_json]).args(arguments))?;
        serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
    };
    let leader = eventually(ELECTION_TIMEOUT, "a leader is elected", async || {
        let report = status(&[])?;
        let holder = report["leader"]["holder"].as_str().unwrap_or_default();
        let node = holder.split('_').next().unwrap_or_default().to_owned();
        if node.is_empty() {
            Err(report.to_string())
        } else {
            Ok(node)
        }
    })
    .await;
    let caller = format!("headgate/{}", headgate_core::telemetry::VERSION);
    let line = sandbox
        .wait_for_line(&caller, |line| line["reads"].as_u64() > Some(0))
        .await;
    assert_eq!(line["writes"], 0, "{line}");
    // Not the leader's own node, whose taint leads to a handover.
    let node = ["node-1", "node-2", "node-3"]
        .into_iter()
        .find(|node| **node != *leader)
        .unwrap();

    let taint = format!("{DRAINING_TAINT}=spot-eviction:NoSchedule");
    kube(&["taint", "node", node, &taint]);
    for pool in POOLS {
        sandbox.wait_for_line(pool, |line| are_down(line, &[node])).await;
    }
    let events = async |reason: &str| {
        let selector = format!("reason={reason},involvedObject.name={node}");
        eventually(SOON, reason, async || {
            let text = kube(&["get", "events", "-A", "--field-selector", &selector, "-o", "json"]);
            let list: Value = serde_json::from_str(&text).unwrap();
            let items = list["items"].as_array().unwrap();
            if items.len() == 1 {
                Ok(items[0]["message"].as_str().unwrap().to_owned())
            } else {
                Err(text)
            }
        })
        .await
    };
    let message = events("LoadBalancerAdminStateDown").await;
    let expected = format!(
        "Down in kubernetes-nic/kubernetes, kubernetes/kubernetes, kubernetes/kubernetes-IPv6 because of {DRAINING_TAINT}: no new connections."
    );
    assert_eq!(message, expected);
    let report = status(&[node]).unwrap();
    let entries = report["nodes"][0]["entries"].as_array().unwrap();
    assert_eq!(entries.len(), POOLS.len(), "{report:#}");
    for entry in entries {
        assert_eq!(
            (&entry["adminState"], &entry["owner"]),
            (&"Down".into(), &"headgate".into()),
            "{report:#}"
        );
    }

    // The leader's own node: the leader completes its writes, then another instance becomes leader.
    let holder = || {
        let jsonpath = "jsonpath={.spec.holderIdentity}";
        kube(&["-n", "kube-system", "get", "lease", "headgate-leader", "-o", jsonpath])
    };
    let before = holder();
    kube(&["taint", "node", &leader, "ToBeDeletedByClusterAutoscaler=1:NoSchedule"]);
    for pool in POOLS {
        sandbox
            .wait_for_line(pool, |line| are_down(line, &[node, &leader]))
            .await;
    }
    eventually(Duration::from_secs(30), "another instance is leader", async || {
        let now = holder();
        if now.is_empty() || now == before {
            Err(format!("{now}, {before} before, and {leader} has the taint"))
        } else {
            Ok(())
        }
    })
    .await;

    kube(&["taint", "node", node, &format!("{DRAINING_TAINT}-")]);
    kube(&["taint", "node", &leader, "ToBeDeletedByClusterAutoscaler-"]);
    for pool in POOLS {
        sandbox.wait_for_line(pool, |line| are_down(line, &[])).await;
    }
    events("LoadBalancerRestored").await;
    sandbox.stop(Signal::SIGINT).await;
}

#[tokio::test]
async fn the_pool_of_the_local_service_follows_its_endpoints() {
    const POOL: &str = "kubernetes/default-web";
    let mut sandbox = Sandbox::start(&["--nodes", "3"]);
    let description = sandbox.description().await;
    let file = |name: &str| description[name].as_str().unwrap().to_owned();
    let (kubeconfig, azure_json) = (file("kubeconfig"), file("azureJson"));
    let control: SocketAddr = description["emulator"]["control"].as_str().unwrap().parse().unwrap();
    let kube = |arguments: &[&str]| output(kubectl(Path::new(&kubeconfig)).args(arguments)).unwrap();
    // The commands that the sandbox prints.
    let printed = sandbox.errors();
    let patches: Vec<String> = printed
        .lines()
        .filter(|line| line.contains(" patch endpointslice web-1 "))
        .map(|line| line.split("-p '").nth(1).unwrap().trim_end_matches('\'').to_owned())
        .collect();
    let [one, others] = patches.as_slice() else {
        panic!("{printed}")
    };
    let patch = |patch: &str| kube(&["patch", "endpointslice", "web-1", "--type=merge", "-p", patch]);
    let line = sandbox.wait_for_line(POOL, |line| line["addresses"] == 0).await;
    assert_eq!(line["down"], serde_json::json!([]), "{line}");
    eventually(ELECTION_TIMEOUT, "a leader is elected", async || {
        let lease = [
            "-n",
            "kube-system",
            "get",
            "lease",
            "headgate-leader",
            "-o",
            "jsonpath={.spec.holderIdentity}",
        ];
        let holder = output(kubectl(Path::new(&kubeconfig)).args(lease))?;
        if holder.is_empty() { Err(holder) } else { Ok(()) }
    })
    .await;
    patch(one);
    sandbox.wait_for_line(POOL, |line| line["addresses"] == 1).await;
    // Azure refuses the next write.
    let refusal = printed
        .lines()
        .find(|line| line.contains("/emulator/v1/faults -d '"))
        .unwrap();
    let rule = refusal.split("-d '").nth(1).unwrap().trim_end_matches('\'');
    http::control(control, "POST", "faults", &serde_json::from_str(rule).unwrap()).await;
    let reported = async |reason: &str, at_least: u64| {
        let selector = format!("involvedObject.name=web,reason={reason}");
        eventually(SOON, reason, async || {
            let text = kube(&["get", "events", "--field-selector", &selector, "-o", "json"]);
            let list: Value = serde_json::from_str(&text).unwrap();
            let counts = list["items"].as_array().unwrap().iter();
            let count: u64 = counts.map(|event| event["series"]["count"].as_u64().unwrap_or(1)).sum();
            met(count >= at_least, text)
        })
        .await;
    };
    patch(others);
    // One tick for the refused write, another one for its retry.
    reported("LoadBalancerBackendPoolUpdateRetrying", 1).await;
    sandbox.wait_for_line(POOL, |line| line["addresses"] == 2).await;
    reported("LoadBalancerBackendPoolUpdated", 2).await;
    let mut why = Command::new(env!("CARGO_BIN_EXE_headgate"));
    why.args(["why", "service", "default/web", "--kubeconfig", &kubeconfig]);
    let text = output(why.args(["--azure-config-file", &azure_json])).unwrap();
    assert!(text.contains("actual    127.0.0.2, 127.0.0.3"), "{text}");
    sandbox.stop(Signal::SIGINT).await;
}
