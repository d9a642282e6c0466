//! What the leader serves: `headgate status`, `why` and `version` with the rights of the documentation and no access to Azure, and its
//! page in a browser.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use headgate_sandbox::process::Process;
use headgate_test_kubernetes::{assert_contains, eventually, kubectl, met, scratch};
use serde_json::{Value, json};

use super::through_api_server::documented_rights;
use super::world::World;
use super::{DRAIN, entry};
use crate::harness::network::in_network_namespace;
use crate::harness::objects::create_headgate_pod;
use crate::harness::{SOON, headgate, refused, start_controller, stdout_of, succeed};
use crate::node::with_token;

mod page;
mod sysdump;

/// The address of the controller's pod; the API server sends no request to one of loopback.
const POD: &str = "10.99.0.1";

/// The Pod of a controller on node 3, and of an agent of an older version that does not answer.
async fn create_pods(world: &World) {
    let administrator = world.control_plane.kubeconfig();
    for account in ["headgate", "viewer"] {
        succeed(kubectl(administrator).args(["-n", "kube-system", "create", "serviceaccount", account]));
    }
    let (controller, agent) = (
        ["headgate-controller-x", "controller", "0.9.0"],
        ["headgate-y", "agent", "0.8.0"],
    );
    create_headgate_pod(&world.client, controller, "node-3", POD).await;
    create_headgate_pod(&world.client, agent, "node-2", "192.0.2.9").await;
}

fn start_leader(world: &World) -> Process {
    let metrics = format!("{POD}:10457");
    let flags = [
        ("--metrics-bind-address", Path::new(&metrics)),
        ("--azure-config-file", world.azure_json.as_path()),
    ];
    start_controller("node-3", world.control_plane.kubeconfig(), "", &flags)
}

/// A kubeconfig with the rights of the documentation, and none besides.
fn viewer(administrator: &Path) -> PathBuf {
    let rights = scratch("rights").join("rights.yaml");
    std::fs::write(&rights, documented_rights()).unwrap();
    succeed(kubectl(administrator).args(["apply", "-f"]).arg(&rights));
    let token = succeed(kubectl(administrator).args(["-n", "kube-system", "create", "token", "viewer"]));
    with_token(administrator, token.trim())
}

#[test]
#[ignore = "needs network namespaces and chromium"]
fn the_leader_serves_the_state_of_the_cluster() {
    in_network_namespace(
        "status::from_leader::the_leader_serves_the_state_of_the_cluster",
        async || {
            succeed(Command::new("ip").args(["addr", "add", &format!("{POD}/32"), "dev", "lo"]));
            let world = World::start().await;
            create_pods(&world).await;
            let viewer = viewer(world.control_plane.kubeconfig());
            without_a_leader(&viewer);
            let controller = start_leader(&world);
            let report = eventually(SOON, "the leader serves its state", async || {
                let found: Value = serde_json::from_str(&stdout_of(headgate(
                    &viewer,
                    &["status", "--no-agents", "--all", "-o", "json"],
                )))
                .unwrap();
                if found["azureError"] == Value::Null {
                    Ok(found)
                } else {
                    Err(found["azureError"].to_string())
                }
            })
            .await;
            assert_eq!(
                (&report["apiVersion"], &report["kind"], &report["mode"]),
                (&json!("cli.headgate.dev/v1alpha1"), &json!("Status"), &json!("Enforce"))
            );
            world
                .taint("node-1", json!([{"key": DRAIN, "effect": "NoSchedule"}]))
                .await;
            eventually(SOON, "the leader knows the signal", async || {
                let rows = stdout_of(headgate(&viewer, &["status", "--no-agents", "--no-headers"]));
                met(rows.contains(DRAIN), rows)
            })
            .await;
            waits_and_filters(&world, &viewer);
            versions(&viewer);
            services(&viewer);
            page::page().await;
            sysdump::sysdump(&world, &viewer).await;
            page::a_large_page(&world).await;
            controller.stop(Duration::from_secs(10)).await;
            world.control_plane.stop().await;
        },
    );
}

fn without_a_leader(viewer: &Path) {
    let text = stdout_of(headgate(viewer, &["status", "--no-agents"]));
    assert_contains!(
        text,
        "give --azure-config-file",
        "the leader does not serve it: there is no Lease"
    );
    // Nothing is expected of a leader that never was.
    stdout_of(headgate(viewer, &["status", "--no-agents", "--exit-code"]));
    let words = "the load balancers cannot be read: give --azure-config-file";
    refused(&headgate(viewer, &["why", "service/web"]), 2, &[words]);
}

fn waits_and_filters(world: &World, viewer: &Path) {
    // The write is awaited; both pools are Down then.
    let waited = stdout_of(headgate(
        viewer,
        &[
            "status",
            "--no-agents",
            "--wait",
            "--timeout=60s",
            "-o",
            "json",
            "node-1",
        ],
    ));
    let report: Value = serde_json::from_str(&waited).unwrap();
    for pool in ["kubernetes", "kubernetes-IPv6"] {
        let found = entry(&report, "node-1", pool);
        assert_eq!(
            (&found["adminState"], &found["owner"]),
            (&json!("Down"), &json!("headgate")),
            "{found}"
        );
    }
    assert!(report["nodes"][0]["signalledSince"].is_string(), "{report}");
    assert_eq!(report["leaderWork"]["node"], "node-3");
    let events = report["leaderWork"]["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["node"] == "node-1"), "{events:?}");
    // The same as a read of this machine with access to Azure.
    let direct = world.json(&["node-1"]);
    for field in [
        "loadBalancers",
        "mode",
        "nodesTotal",
        "minimumInService",
        "unmatchedLedger",
    ] {
        assert_eq!(report[field], direct[field], "{field}");
    }
    assert_eq!(report["nodes"][0]["entries"], direct["nodes"][0]["entries"]);

    stdout_of(headgate(viewer, &["status", "--no-agents", "--exit-code"]));
    let rows = stdout_of(headgate(viewer, &["status", "--no-agents", "--no-headers"]));
    assert_eq!(rows.lines().count(), 1, "{rows}");
    assert!(
        rows.starts_with("node-1   503?   ToBeDeletedByClusterAutoscaler   Down ours"),
        "{rows}"
    );
    let names = |selector: &str| {
        stdout_of(headgate(
            viewer,
            &["status", "--no-agents", "-o", "name", "-l", selector],
        ))
    };
    assert_eq!(
        names("kubernetes.io/hostname in (node-2, node-3)"),
        "node/node-2\nnode/node-3\n"
    );
    assert_eq!(names("kubernetes.io/hostname=elsewhere"), "");
    let status = headgate(viewer, &["status", "-l", "a=b=c"]);
    refused(&status, 2, &["is no requirement"]);
}

fn versions(viewer: &Path) {
    let client = env!("CARGO_PKG_VERSION");
    let versions: Value = serde_json::from_str(&stdout_of(headgate(viewer, &["version", "-o", "json"]))).unwrap();
    assert_eq!(
        versions,
        json!({"apiVersion": "cli.headgate.dev/v1alpha1", "kind": "Version", "client": client,
            "agents": [{"version": "0.8.0", "image": "headgate:0.8.0", "pods": 1}],
            "controllers": [{"version": "0.9.0", "image": "headgate:0.9.0", "pods": 1}]})
    );
    let text = stdout_of(headgate(viewer, &["version"]));
    assert!(text.contains("Controllers:   0.9.0   1 pod"), "{text}");
    let nowhere = Path::new("/does/not/exist");
    assert_eq!(
        stdout_of(headgate(nowhere, &["version", "--client"])),
        format!("Client:   {client}\n")
    );
}

fn services(viewer: &Path) {
    let explain = |arguments: &[&str]| stdout_of(headgate(viewer, &[&["why"], arguments].concat()));
    let shop = explain(&["service/web", "-n", "shop"]);
    assert!(
        shop.starts_with("Service shop/web: headgate updates no pools of Local Services"),
        "{shop}"
    );
    assert_eq!(explain(&["svc/web", "-n", "shop"]), shop);
    assert_eq!(explain(&["service", "shop/web"]), shop);
    assert!(explain(&["service/web"]).starts_with("Service default/web: "));
    let why = headgate(viewer, &["why", "node-1", "-n", "shop"]);
    refused(&why, 2, &["--namespace is for a Service"]);
}
