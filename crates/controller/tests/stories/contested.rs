//! Addresses that several Nodes claim in `status.addresses`: a claimant neither causes nor blocks a drain of another node.

use serde_json::{Value, json};
use tokio::time::sleep;

use super::marker::until_shown;
use super::rows::cluster::{DOWN, SECOND, TestCluster};
use super::world::{address, two_load_balancers};

const DRAIN: &str = "ToBeDeletedByClusterAutoscaler";
const CONTESTED: &str = "NodeAddressNotUnique";

/// Makes a node list the addresses of others beside its own.
fn claim(cluster: &TestCluster, number: usize, others: &[usize]) {
    let nodes = std::iter::once(&number).chain(others);
    let addresses: Value = nodes
        .flat_map(|node| [false, true].map(|v6| json!({"type": "InternalIP", "address": address(*node, v6)})))
        .collect();
    cluster.node(number, |node| node["status"]["addresses"] = addresses);
}

#[tokio::test(start_paused = true)]
async fn claimant_with_a_signal_takes_out_only_itself() {
    let cluster = TestCluster::configured(3, &two_load_balancers(3), |world| world.marker = true).await;
    claim(&cluster, 3, &[1, 2]);
    // The claim keeps no other node from being out.
    cluster.taint(2, &[DRAIN]);
    cluster.settle(&["node-2"]).await;
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    cluster.taint(3, &[DRAIN]);
    cluster.settle(&["node-3"]).await;
    assert_eq!(cluster.notes(DOWN, "node-1").await.len(), 0);
    for node in ["node-1", "node-3"] {
        let notes = cluster.notes(CONTESTED, node).await;
        assert!(
            notes
                .iter()
                .all(|note| note.contains("node-1, node-3") || note.contains("node-2, node-3")),
            "{notes:?}"
        );
        assert!(!notes.is_empty());
    }
    // The address of each family of each node, on both claimants; not again while it lasts.
    sleep(3600 * SECOND).await;
    let events = cluster.world.events().await;
    assert_eq!(events.iter().filter(|(reason, ..)| reason == CONTESTED).count(), 8);
    claim(&cluster, 3, &[]);
    cluster.taint(3, &[]);
    cluster.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn replaced_machine_with_the_same_address_follows_the_name_until_the_old_node_is_gone() {
    let cluster = TestCluster::with(2, &two_load_balancers(2)).await;
    cluster.taint(1, &["node.kubernetes.io/out-of-service"]);
    cluster.settle(&["node-1"]).await;
    claim(&cluster, 2, &[1]);
    sleep(30 * SECOND).await;
    cluster.until_down(&["node-1"]).await;
    cluster.remove_node(1).await;
    cluster.settle(&[]).await;
}
