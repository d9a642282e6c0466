//! `headgate status` and `headgate restore` with the real kube-apiserver and the emulator on a socket.

use std::process::Command;

use headgate_test_kubernetes::{assert_contains, assets, scratch};
use serde_json::{Value, json};

use crate::harness::{AgentOptions, refused, refused_for, stdout_of};

mod azure_cli;
mod formats;
mod from_leader;
mod local_pools;
mod through_api_server;
mod verify;
pub(crate) mod world;

use world::World;

const DRAIN: &str = "ToBeDeletedByClusterAutoscaler";

/// The entry of a node in a pool.
fn entry<'a>(report: &'a Value, node: &str, pool: &str) -> &'a Value {
    let nodes = report["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|known| known["name"] == node).unwrap();
    let entries = node["entries"].as_array().unwrap();
    entries.iter().find(|entry| entry["pool"] == pool).unwrap()
}

#[tokio::test]
async fn status_shows_a_down_and_restore_removes_headgates_downs() {
    let world = World::start().await;
    // Neither the commands nor the node's own agent mind what a kubelet can write.
    world.write_odd_times("node-1").await;

    // The initial state.
    let text = world.status(&[]);
    println!("{text}");
    assert_contains!(
        text,
        "none: there is no Lease",
        "0 of 3 nodes",
        "Http :10456/healthz",
        "no probe: Down has no effect",
        "not considered: no rule uses it",
        "1 of 2 rules of kubernetes/kubernetes-IPv6 have no probe"
    );
    assert!(!text.contains("unrelated"), "{text}");
    let report = world.json(&["--all"]);
    assert_eq!(
        (&report["nodesTotal"], report["nodes"].as_array().unwrap().len()),
        (&json!(3), 3)
    );
    assert_eq!(report["probedByHeadgate"], true);

    // Node 1 is tainted; it is Down by headgate in one pool, and about to be in the other. Another writer has set node 2.
    world
        .taint("node-1", json!([{"key": DRAIN, "effect": "NoSchedule"}]))
        .await;
    world.lead("node-3_0a1b").await;
    world.down("kubernetes", &[1, 2], false).await;
    world
        .write_ledger(&[
            ("127.0.0.1", "down 2026-11-21T10:00:00Z"),
            ("fd00:5eed::1", "intended 2026-11-21T10:00:00Z"),
        ])
        .await;
    let agent = AgentOptions::new("node-1", world.control_plane.kubeconfig())
        .start()
        .await;
    let statusz = format!("node-1=http://{}/statusz", agent.metrics_address());
    let text = stdout_of(world.with_azure(&["status", "--statusz", &statusz]));
    println!("{text}");
    assert_contains!(
        text,
        "node-3_0a1b since 2026-11-21T10:00:00Z",
        "Down ours",
        "None→Down pending",
        "Down foreign",
        "2 of 3 nodes"
    );
    let report: Value = serde_json::from_str(&stdout_of(world.with_azure(&[
        "status",
        "-o",
        "json",
        "--statusz",
        &statusz,
    ])))
    .unwrap();
    assert_eq!(report["leader"]["holder"], "node-3_0a1b");
    assert_eq!(
        (&report["leader"]["alive"], &report["leader"]["term"]),
        (&json!(true), &json!(4))
    );
    assert_eq!(
        report["nodes"][0]["signals"],
        json!([{"name": DRAIN, "health": true, "adminState": true}])
    );
    let verdict = &report["nodes"][0]["verdict"];
    assert_eq!(
        (&verdict["healthz"], &verdict["asked"]),
        (&json!(503), &json!(true)),
        "{verdict}"
    );
    assert_eq!(report["nodes"][1]["verdict"]["asked"], false, "no agent answers there");
    assert_eq!(
        entry(&report, "node-1", "kubernetes"),
        &json!({"loadBalancer": "kubernetes", "pool": "kubernetes", "entry": "127.0.0.1", "adminState": "Down", "owner": "headgate",
            "stage": "down", "since": "2026-11-21T10:00:00Z", "pending": false, "becomes": null, "heldBack": false, "waiting": false, "heldFor": []})
    );
    let pending = entry(&report, "node-1", "kubernetes-IPv6");
    assert_eq!(
        (&pending["pending"], &pending["becomes"], &pending["stage"]),
        (&json!(true), &json!("Down"), &json!("intended"))
    );
    assert_eq!(entry(&report, "node-2", "kubernetes")["owner"], "foreign");
    agent.kill().await;

    in_other_ways(&world);
    restored(&world).await;
    world.control_plane.stop().await;
}

fn in_other_ways(world: &World) {
    // One node by name, with the kubectl plugin.
    let mut kubectl = Command::new(assets().program("kubectl").unwrap());
    kubectl.args([
        "headgate",
        "status",
        "node-2",
        "--no-agents",
        "-o",
        "wide",
        "--azure-config-file",
    ]);
    kubectl
        .arg(&world.azure_json)
        .env("KUBECONFIG", world.control_plane.kubeconfig());
    let path = std::env::var("PATH").unwrap_or_default();
    kubectl.env("PATH", format!("{}:{path}", world.plugins.display()));
    let text = stdout_of(kubectl.output().unwrap());
    assert!(text.contains("node-2") && !text.contains("node-1"), "{text}");
    assert!(text.contains("kubernetes/kubernetes-IPv6"), "{text}");

    // Without Azure, entries come from the ledger only.
    let text = stdout_of(world.headgate(&["status", "--no-agents"]));
    println!("{text}");
    assert_contains!(text, "Azure:         not queried: give --azure-config-file");
    assert!(text.contains("? ours (down "), "{text}");
}

/// The second half: all of headgate's `Down`s are restored, and no others.
async fn restored(world: &World) {
    let before = world.writes().await;
    let text = stdout_of(world.with_azure(&["restore", "--dry-run"]));
    assert!(text.contains("kubernetes/kubernetes   127.0.0.1   node-1"), "{text}");
    // The entry in the other pool is recorded only.
    assert!(text.contains("1 to 2 entries would be restored"), "{text}");

    // The leader would set it Down again.
    world.lead("node-3_0a1b").await;
    let restore = world.with_azure(&["restore", "--yes"]);
    refused(&restore, 1, &["node-3_0a1b leads", "adminState.mode: Disabled"]);
    let restore = world.with_azure(&["restore", "--yes", "--wait", "3s"]);
    refused(&restore, 1, &["was not acquired within 3 s"]);
    // The leader has stopped.
    world.lead("").await;
    refused(&world.with_azure(&["restore"]), 2, &["give --yes"]);
    let text = stdout_of(world.with_azure(&["restore", "--yes", "node-2"]));
    assert!(text.contains("Nothing is Down by headgate."), "{text}");
    assert_eq!(world.writes().await, before, "nothing was written");
    assert_eq!(world.all_down().await["kubernetes"], ["node-1", "node-2"]);

    let output = world.with_azure(&["restore", "--yes"]);
    println!("{}", String::from_utf8_lossy(&output.stderr));
    let text = stdout_of(output);
    assert!(text.contains("127.0.0.1   node-1   restored"), "{text}");
    assert!(text.contains("1 entries were restored."), "{text}");
    assert_eq!(world.writes().await, before + 1, "one pool, one write");
    assert_eq!(
        world.all_down().await["kubernetes"],
        ["node-2"],
        "what is foreign stays"
    );

    // Afterwards, both Leases are released and the ledger has the restores.
    for (lease, holder) in [("headgate-leader", ""), ("aks-managed-resource-locker", "")] {
        let spec = world.leases().get(lease).await.unwrap().spec.unwrap();
        assert_eq!(spec.holder_identity.unwrap_or_default(), holder, "{lease}");
    }
    let leader = world.leases().get("headgate-leader").await.unwrap();
    assert_eq!(leader.metadata.annotations, None, "no failed term");
    let report = world.json(&["node-1"]);
    let first = entry(&report, "node-1", "kubernetes");
    assert_eq!(
        (&first["adminState"], &first["stage"]),
        (&json!("None"), &json!("restored"))
    );
    assert_eq!(entry(&report, "node-1", "kubernetes-IPv6")["stage"], "restored");
    let text = stdout_of(world.with_azure(&["restore", "--yes"]));
    assert!(text.contains("Nothing is Down by headgate."), "{text}");

    // A `Down` of headgate's in a pool that lost its rules is shown with its node and restored.
    world.down("outbound", &[2, 3], false).await;
    world
        .write_ledger(&[("outbound/127.0.0.3", "down 2026-11-21T10:00:00Z")])
        .await;
    let report = world.json(&[]);
    let lost = entry(&report, "node-3", "outbound");
    assert_eq!(
        (&lost["owner"], &lost["becomes"], &report["unmatchedLedger"]),
        (&json!("headgate"), &json!("None"), &json!([]))
    );
    let text = stdout_of(world.with_azure(&["restore", "--dry-run"]));
    assert!(text.contains("kubernetes/outbound   127.0.0.3   node-3"), "{text}");
    assert!(text.contains("1 entries would be restored"), "{text}");
    let text = stdout_of(world.with_azure(&["restore", "--yes"]));
    assert!(text.contains("127.0.0.3   node-3   restored"), "{text}");
    assert_eq!(world.all_down().await["outbound"], ["node-2"], "what is foreign stays");

    // An entry whose Node is gone belongs to no Node, even if the ledger has it.
    world.down("kubernetes", &[9], false).await;
    world.write_ledger(&[("127.0.0.9", "down 2026-11-21T10:00:00Z")]).await;
    let before = world.writes().await;
    let output = world.with_azure(&["restore", "--yes"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("127.0.0.9   left alone: it belongs to no Node"), "{text}");
    refused(&output, 1, &["1 entries were not restored"]);
    assert_eq!(world.writes().await, before);
    let text = world.status(&[]);
    assert_contains!(
        text,
        "1 entries of kubernetes/kubernetes are Down and belong to no Node"
    );

    // What is Down in a load balancer that cannot be read is not known, also where one node is named.
    let ledger = [("unrelated/kubernetes/127.0.0.1", "down 2026-11-21T10:00:00Z")];
    world.write_ledger(&ledger).await;
    for arguments in [
        &["restore", "--yes"][..],
        &["restore", "--dry-run"],
        &["restore", "--yes", "node-1"],
    ] {
        world.refuse_read("unrelated").await;
        let output = world.with_azure(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = refused_for(&arguments, &output, 1, &["1 load balancers were not read"]);
        assert!(
            text.contains("loadBalancers/unrelated   not read"),
            "{arguments:?}: {text}{error}"
        );
        assert!(!text.contains("Nothing is Down by headgate."), "{arguments:?}: {text}");
    }
    by_more_than_one_list(world).await;
}

/// A list may be older than what the ledger has, so that one alone proves nothing.
async fn by_more_than_one_list(world: &World) {
    let text = stdout_of(world.with_azure(&["restore", "--dry-run"]));
    assert_contains!(
        text,
        "127.0.0.1   node-1",
        "1 entries are recorded and shown in service"
    );
    let text = stdout_of(world.with_azure(&["restore", "--yes"]));
    assert!(text.contains("0 entries were restored."), "{text}");
    let text = stdout_of(world.with_azure(&["restore", "--yes"]));
    assert!(text.contains("Nothing is Down by headgate."), "{text}");
    let ledger = [("127.0.0.1", "intended 2026-11-21T10:00:00Z")];
    world.write_ledger(&ledger).await;
    // What the question of the real run asks about.
    let text = stdout_of(world.with_azure(&["restore", "--dry-run"]));
    assert_contains!(text, "Up to 1 entries would be restored; nothing was written");
    assert!(!text.contains("known to be Down"), "{text}");
    world.set_emulator(&json!({"readLag": "8s"})).await;
    world.down("kubernetes", &[1], false).await;
    let text = stdout_of(world.with_azure(&["restore", "--yes"]));
    assert!(text.contains("127.0.0.1   node-1   restored"), "{text}");
    assert_eq!(world.all_down().await["kubernetes"], ["node-2", "node-9"]);
}

#[test]
fn unavailable_sources_are_reported() {
    let headgate = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.args(arguments).output().unwrap()
    };
    for (arguments, code, error) in [
        (&["status", "--kubeconfig", "/nonexistent"][..], 2, "/nonexistent"),
        (&["status", "--azure-config-secret", "nowhere"], 2, "azure.configSecret"),
        (&["status", "-A", "node-1"], 2, "cannot be used with"),
        (
            &["status", "--statusz", "http://127.0.0.1/"],
            2,
            "allowed: a Node's name",
        ),
        (&["restore", "--wait", "soon"], 2, "such as 500ms, 5s or 1m30s"),
    ] {
        refused_for(&arguments, &headgate(arguments), code, &[error]);
    }
    let cluster = headgate_test_kubernetes::control_plane();
    let kubeconfig = cluster.kubeconfig.to_str().unwrap();
    let output = headgate(&["status", "no-such-node", "--kubeconfig", kubeconfig]);
    refused(&output, 1, &["there is no Node \"no-such-node\""]);
    let output = headgate(&[
        "status",
        "--kubeconfig",
        kubeconfig,
        "--azure-config-file",
        "/nonexistent",
    ]);
    refused(&output, 2, &["/nonexistent"]);
    // One code for one cause: a file that is not given or not there is wrong usage, and an Azure that does not answer the environment.
    let azure_json = scratch("nowhere").join("azure.json");
    let nowhere = json!({"resourceManagerEndpoint": "http://127.0.0.1:1", "tenantId": "t", "subscriptionId": "s", "resourceGroup": "g",
        "aadClientId": "c", "aadClientSecret": "s"});
    std::fs::write(&azure_json, nowhere.to_string()).unwrap();
    let azure_json = azure_json.to_str().unwrap();
    for command in [&["restore", "--yes"][..], &["why", "service/web"]] {
        let run = |more: &[&str]| headgate(&[command, &["--kubeconfig", kubeconfig], more].concat());
        refused_for(&command, &run(&[]), 2, &["give --azure-config-file"]);
        for (file, code, words) in [("/nonexistent", 2, "/nonexistent"), (azure_json, 3, "127.0.0.1:1")] {
            let output = run(&["--azure-config-file", file]);
            refused_for(&(command, file), &output, code, &[words]);
        }
    }
}
