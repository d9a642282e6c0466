//! Objects that a kube-apiserver stores and that no Rust type represents: the others stay in use.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::rows::cluster::{DRAINING, SECOND, TestCluster};
use super::world::{ENFORCE, two_load_balancers};

/// What `DateTime.MaxValue` of .NET is as text. `jiff::Timestamp` ends a few hours before.
const FAR: &str = "9999-12-31T23:59:59Z";
const FAR_MICRO: &str = "9999-12-31T23:59:59.999999Z";

/// What a kubelet can write to its own Node.
fn write_odd_times(node: &mut Value) {
    node["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Update", "apiVersion": "v1", "time": FAR,
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:annotations": {"f:a": {}}}}}]);
    let conditions = node["status"]["conditions"].as_array_mut().unwrap();
    for condition in conditions {
        condition["lastHeartbeatTime"] = json!(FAR);
        condition["lastTransitionTime"] = json!(FAR);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_starts_and_works_whatever_times_one_node_has() {
    let mut cluster = TestCluster::without_leader(3, &two_load_balancers(3)).await;
    cluster.node(1, write_odd_times);
    cluster.lead(ENFORCE).await;
    // The odd Node is a Node like the others.
    cluster.taint(1, &[DRAINING]);
    cluster.settle(&["node-1"]).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-1", "node-2"]).await;
    cluster.taint(1, &[]);
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
    // Its ledger and its Lease have odd times as well when the next one starts.
    let odd = json!([{"manager": "x", "operation": "Update", "time": FAR}]);
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    cluster.kill();
    cluster
        .fake
        .change::<ConfigMap>("kube-system", "headgate-admin-state", |ledger| {
            ledger["metadata"]["managedFields"] = odd.clone();
        });
    cluster.fake.change::<Lease>("kube-system", "headgate-leader", |lease| {
        lease["metadata"]["managedFields"] = odd.clone();
        lease["spec"]["acquireTime"] = json!(FAR_MICRO);
        lease["spec"]["renewTime"] = json!(FAR_MICRO);
    });
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[]);
    cluster.settle(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_node_is_reported_and_its_entries_are_untouched() {
    let mut cluster = TestCluster::without_leader(3, &two_load_balancers(3)).await;
    cluster.node(3, |node| node["spec"] = json!({"taints": 7}));
    cluster.lead(ENFORCE).await;
    cluster.taint(2, &[DRAINING]);
    cluster.settle(&["node-2"]).await;
    let notes = cluster.notes("ObjectUndecodable", "node-3").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    cluster.node(3, |node| node["metadata"]["annotations"]["a"] = json!("b"));
    sleep(30 * SECOND).await;
    assert_eq!(
        cluster.notes("ObjectUndecodable", "node-3").await.len(),
        1,
        "once for each reason"
    );
    // It was Down, becomes undecodable and is gone: what was known of it stays until its Node is deleted.
    cluster.node(2, |node| node["spec"]["unschedulable"] = json!("x"));
    sleep(60 * SECOND).await;
    cluster.settle(&["node-2"]).await;
    cluster.node(2, |node| node["spec"] = json!({}));
    cluster.settle(&[]).await;
    cluster.node(3, |node| node["spec"] = json!({}));
    cluster.taint(3, &[DRAINING]);
    cluster.settle(&["node-3"]).await;
}
