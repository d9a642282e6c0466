//! The rows of "Edge Cases and Mitigations" and of "Non-Goals".

use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::{GROUP, entries, load_balancer};
use super::cluster::{DRAINING, SECOND, TestCluster};

#[tokio::test(start_paused = true)]
async fn freezes_and_unready_nodes_are_left_to_probes() {
    let cluster = TestCluster::new(3).await;
    let ready = |status: &'static str| {
        move |node: &mut Value| {
            node["status"]["conditions"] = json!([
                {"type": "Ready", "status": status},
                {"type": "VMEventScheduled", "status": "True", "reason": "FreezeScheduled"}]);
        }
    };
    cluster.node(2, ready("False"));
    sleep(10 * SECOND).await;
    cluster.node(2, ready("Unknown"));
    sleep(60 * SECOND).await;
    cluster.taint(
        2,
        &[
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
            "node.kubernetes.io/memory-pressure",
        ],
    );
    sleep(60 * SECOND).await;
    cluster.until_down(&[]).await;
    assert!(cluster.puts().is_empty() && cluster.world.events().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn new_load_balancers_and_pools_while_a_node_is_down() {
    let cluster = TestCluster::with_node_2_down().await;
    // A new Service leads to a new pool with every node.
    let mut document = load_balancer(
        "kubernetes-internal",
        &[("kubernetes", entries(1..=3, false)), ("new", entries(1..=3, true))],
    );
    let path = document["id"].take();
    cluster.other("PUT", path.as_str().unwrap(), &document).await;
    let took = cluster
        .until("all four", |cluster| {
            cluster.down().len() == 4 && cluster.down().values().all(|down| down.len() == 1)
        })
        .await;
    assert!(took < 20 * SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn unknown_load_balancers_and_empty_groups_are_no_error() {
    let vnet = json!({"id": format!("{GROUP}/providers/Microsoft.Network/virtualNetworks/v"), "location": "eastus", "properties": {}});
    let cluster = TestCluster::with(2, &[vnet]).await;
    cluster.taint(2, &[DRAINING]);
    sleep(60 * SECOND).await;
    assert!(
        cluster.puts().is_empty() && cluster.world.events().await.is_empty(),
        "{:?}",
        cluster.world.events().await
    );
}
