//! A Node that is being deleted, as Karpenter and operators do it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::world::SECOND;
use super::cluster::{DOWN, TestCluster};

const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const KARPENTER: &str = "karpenter.sh/disrupted";

/// `kubectl delete node`: Karpenter's finalizer keeps the object.
fn delete(node: &mut Value) {
    node["metadata"]["finalizers"] = json!(["karpenter.sh/termination"]);
    node["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
}

#[tokio::test(start_paused = true)]
async fn deletion_takes_the_node_out_before_karpenters_label_arrives() {
    let cluster = TestCluster::new(3).await;
    cluster.node(2, delete);
    sleep(Duration::from_millis(16)).await;
    cluster.node(2, |node| {
        node["metadata"]["labels"] = json!({EXCLUDE: "karpenter"});
        node["spec"]["taints"] = json!([{"key": KARPENTER, "effect": "NoSchedule"}]);
    });
    cluster.settle(&["node-2"]).await;
    let notes = cluster.notes(DOWN, "node-2").await;
    assert!(notes.len() == 1 && notes[0].contains("deletionTimestamp"), "{notes:?}");
    assert_eq!(cluster.puts().len(), 3);
    cluster.fake.delete::<Node>("", "node-2");
    sleep(60 * SECOND).await;
    assert_eq!(cluster.puts().len(), 3, "an entry of no Node is left alone");
}

#[tokio::test(start_paused = true)]
async fn label_exempts_no_node_that_is_being_removed() {
    for (is_deleting, label, goes_down) in [
        (true, Some("true"), true),
        (true, Some("karpenter"), true),
        (false, Some("karpenter"), true),
        (false, Some("true"), false),
        (false, Some(""), false),
        (true, None, true),
    ] {
        let cluster = TestCluster::new(3).await;
        cluster.node(2, |node| {
            node["spec"]["taints"] = json!([{"key": KARPENTER, "effect": "NoSchedule"}]);
            if let Some(value) = label {
                node["metadata"]["labels"] = json!({EXCLUDE: value});
            }
            if is_deleting {
                delete(node);
            }
        });
        sleep(30 * SECOND).await;
        let down: &[&str] = if goes_down { &["node-2"] } else { &[] };
        cluster.settle(down).await;
        assert_eq!(cluster.puts().len(), 3 * down.len(), "{is_deleting} {label:?}");
    }
}
