//! `headgate verify` with the real kube-apiserver and the emulator on a socket: what it leaves when it is killed, and who repairs that.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use headgate_test_kubernetes::eventually;
use serde_json::{Value, json};

use super::world::World;
use crate::harness::{refused, refused_for, stdout_of};

const SCRATCH: [&str; 4] = [
    "--load-balancer",
    "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/unrelated",
    "--pool",
    "kubernetes",
];

/// Starts a run, waits until its first entry is `Down`, and kills it.
async fn kill_in_the_middle(world: &World, load_balancer: &str, arguments: &[&str]) {
    world.set_emulator(&json!({"operationDelay": "5s"})).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command
        .args(["verify", "--yes", "--kubeconfig"])
        .arg(world.control_plane.kubeconfig());
    command
        .arg("--azure-config-file")
        .arg(&world.azure_json)
        .args(arguments);
    let mut child = Killed(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    eventually(Duration::from_mins(1), "an entry that is Down", async || {
        if let Some(status) = child.0.try_wait().unwrap() {
            panic!("it ended with {status}");
        }
        let down = world.down_in(load_balancer).await;
        let is_down = down.values().any(|entries| !entries.is_empty());
        is_down.then_some(()).ok_or(format!("{down:?}"))
    })
    .await;
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    world.set_emulator(&json!({"operationDelay": "200ms"})).await;
    assert!(
        number_down(world, load_balancer).await > 0,
        "nothing is left to restore"
    );
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

async fn number_down(world: &World, load_balancer: &str) -> usize {
    world.down_in(load_balancer).await.values().map(Vec::len).sum()
}

fn verdict<'a>(report: &'a Value, id: &str) -> &'a Value {
    let answers = report["answers"].as_array().unwrap();
    &answers.iter().find(|row| row["id"] == id).unwrap()["verdict"]
}

#[tokio::test]
async fn verify_leaves_nothing_down_even_when_it_is_killed() {
    let world = World::start().await;
    let verify = world.with_azure(&[&["verify"], &SCRATCH[..]].concat());
    refused(&verify, 2, &["give --yes", "pool kubernetes: entry 127.0.0.1"]);
    assert_eq!(world.writes().await, 0);

    // A load balancer that is not the cluster's, beside a leader.
    world.lead("n1_0a").await;
    kill_in_the_middle(&world, "unrelated", &SCRATCH).await;
    let report = stdout_of(world.with_azure(&[&["verify", "--yes", "-o", "json"], &SCRATCH[..]].concat()));
    assert!(!report.contains("/subscriptions/"), "{report}");
    let report: Value = serde_json::from_str(&report).unwrap();
    for id in ["write-addresses", "if-match-addresses", "etags", "operation-status"] {
        assert_eq!(verdict(&report, id), "holds", "{report:#}");
    }
    assert_eq!(verdict(&report, "second-write"), "notAsked", "{report:#}");
    assert_eq!(number_down(&world, "unrelated").await, 0);

    world.lead("n1_0a").await;
    // A node of the cluster: not beside a leader; the next run and `restore` repair what a kill leaves.
    for (node, words) in [("node-1", "n1_0a leads"), ("node-7", "no Node")] {
        let verify = world.with_azure(&["verify", "--yes", "--node", node]);
        refused_for(&node, &verify, 1, &[words]);
    }
    world.lead("").await;
    let node = ["--node", "node-1"];
    kill_in_the_middle(&world, "kubernetes", &node).await;
    let waiting = ["verify", "--yes", "--ids", "--wait", "1m", "--node", "node-1"];
    let report = stdout_of(world.with_azure(&waiting));
    assert!(
        report.contains("| `second-write` |") && report.contains("/backendAddressPools/kubernetes 127.0.0.1"),
        "{report}"
    );
    assert_eq!(number_down(&world, "kubernetes").await, 0, "{report}");
    kill_in_the_middle(&world, "kubernetes", &node).await;
    let restored = stdout_of(world.with_azure(&["restore", "--yes", "--wait", "1m"]));
    assert!(restored.contains("node-1   restored"), "{restored}");
    assert_eq!(number_down(&world, "kubernetes").await, 0);
}
