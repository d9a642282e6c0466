//! `maintenance.maxConcurrentNodes` with a real controller and the real API server: how many nodes are cordoned at once.

use headgate_test_kubernetes::{eventually, met, own_cluster};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use kube::core::DynamicObject;
use serde_json::json;

use super::{Controller, SOON, api, apply_kinds, populate};
use crate::harness::objects;

const SETTINGS: &str = "kubeProxyHealthzUrl: Disabled\noutOfLoadBalancers: {source: FailedProbes, failedProbes: 2}\nmaintenance: {enabled: true, maxConcurrentNodes: 50%}\n";

/// Cordons nodes with one maintenance.
async fn cordon(maintenances: &Api<DynamicObject>, name: &str, nodes: &[&str]) {
    let term = |node: &&str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    let terms: Vec<_> = nodes.iter().map(term).collect();
    let maintenance = json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance", "metadata": {"name": name},
        "spec": {"nodeSelector": {"nodeSelectorTerms": terms}, "stage": "Cordon"}});
    objects::create(maintenances, maintenance).await;
}

async fn cordoned(nodes: &Api<Node>) -> Vec<String> {
    let all = nodes.list(&ListParams::default()).await.unwrap();
    let is_cordoned = |node: &Node| node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    all.items
        .into_iter()
        .filter(is_cordoned)
        .filter_map(|node| node.metadata.name)
        .collect()
}

async fn are_cordoned(nodes: &Api<Node>, expected: &[&str], controller: &Controller) {
    eventually(SOON, &format!("{expected:?} are cordoned"), async || {
        let found = cordoned(nodes).await;
        met(found == expected, format!("{found:?}\n{}", controller.log()))
    })
    .await;
}

/// Waits until the status of a maintenance says that this node waits for room, and for which limit.
async fn waits_for_room(maintenances: &Api<DynamicObject>, name: &str, node: &str, controller: &Controller) {
    eventually(SOON, &format!("{node} waits for room"), async || {
        let status = maintenances.get(name).await.unwrap().data["status"].clone();
        let rows = status["nodeStatuses"].as_array().cloned().unwrap_or_default();
        let row = rows.iter().find(|row| row["nodeRef"]["name"] == node);
        match row {
            Some(row) if row["drainMessage"] == "Waiting for room: maintenance.maxConcurrentNodes is 50%" => Ok(()),
            _ => Err(format!("{status}\n{}", controller.log())),
        }
    })
    .await;
}

#[tokio::test]
async fn no_more_nodes_are_cordoned_at_once_than_the_settings_allow() {
    let (control_plane, client) = own_cluster().await;
    apply_kinds(&control_plane, &client).await;
    populate(&client).await;
    let (nodes, maintenances) = (Api::<Node>::all(client.clone()), api(&client, "NodeMaintenance"));
    let controller = Controller::start_with(SETTINGS, &[], control_plane.kubeconfig());
    cordon(&maintenances, "both", &["node-1", "node-2"]).await;
    waits_for_room(&maintenances, "both", "node-2", &controller).await;
    are_cordoned(&nodes, &["node-1"], &controller).await;
    // The older maintenance has the place until it ends.
    cordon(&maintenances, "second", &["node-2"]).await;
    waits_for_room(&maintenances, "second", "node-2", &controller).await;
    assert_eq!(cordoned(&nodes).await, ["node-1"]);
    maintenances.delete("both", &DeleteParams::default()).await.unwrap();
    are_cordoned(&nodes, &["node-2"], &controller).await;
    controller.ends().await;
    control_plane.stop().await;
}
