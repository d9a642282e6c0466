//! Nodes that come, go or fail during a drain, and the one with the leader.

use headgate_test_kubernetes::eventually;
use serde_json::{Value, json};

use crate::cluster::{KUBELET, NODES, SOON};
use crate::scene::{Scene, condition, node_status};

/// The names of the nodes in the status of a maintenance.
fn names(maintenance: &Value) -> Vec<String> {
    let all = maintenance["status"]["nodeStatuses"].as_array().into_iter().flatten();
    all.map(|status| status["nodeRef"]["name"].as_str().unwrap().to_owned())
        .collect()
}

pub(super) async fn joining(scene: Scene) {
    let (name, [first, second]) = ("joining-nm", ["joining-1", "joining-2"]);
    scene.hold("held").await;
    scene
        .pod(first, "held", &json!({"metadata": {"labels": {"hold": "held"}}}))
        .await;
    let term = json!({"matchExpressions": [{"key": "row", "operator": "In", "values": [scene.namespace]}]});
    scene
        .maintain(name, &[], &json!({"nodeSelector": {"nodeSelectorTerms": [term]}}))
        .await;
    scene
        .until_maintenance("the first is drained", name, |object| {
            node_status(object, first)["podsEvacuating"] == 1
        })
        .await;
    scene.cluster.create_node(&scene.namespace, second).await;
    let late = scene.pod(second, "late", &json!({})).await;
    scene
        .until(
            "it is cordoned and has the taint",
            &format!("{NODES}/{second}"),
            |node| {
                node["spec"]["unschedulable"] == true
                    && node["spec"]["taints"].to_string().contains("headgate.dev/maintenance")
            },
        )
        .await;
    scene
        .gone(&format!(
            "{}/{}",
            scene.pods(),
            late["metadata"]["name"].as_str().unwrap()
        ))
        .await;
    scene.release("held").await;
    let drained = scene.drained(name).await;
    assert_eq!(names(&drained), [first, second]);
    scene.end(name).await;
}

pub(super) async fn deleted(scene: Scene) {
    let (name, [first, second]) = ("deleted-nm", ["deleted-1", "deleted-2"]);
    scene.hold("held").await;
    scene
        .pod(second, "held", &json!({"metadata": {"labels": {"hold": "held"}}}))
        .await;
    scene.maintain(name, &[first, second], &json!({})).await;
    scene
        .until_maintenance("it waits for the second", name, |object| {
            node_status(object, second)["podsEvacuating"] == 1
        })
        .await;
    scene.delete(&format!("{NODES}/{second}")).await;
    let drained = scene.drained(name).await;
    assert_eq!(names(&drained), [first]);
    scene.end(name).await;
    // kube-controller-manager removes pods of Nodes that are gone after a while; the Evacuation ends with its pod.
    scene.observer.ignore_deletions_in(&scene.namespace);
    scene
        .delete(&format!("{}/held?gracePeriodSeconds=0", scene.pods()))
        .await;
    eventually(SOON, "the Evacuation is gone", async || {
        match scene.list(&scene.evacuations()).await {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await;
}

pub(super) async fn not_ready(scene: Scene) {
    let (name, node) = ("not-ready-nm", scene.nodes[0]);
    let path = format!("{NODES}/{node}");
    scene.hold("held").await;
    scene
        .pod(node, "held", &json!({"metadata": {"labels": {"hold": "held"}}}))
        .await;
    scene.maintain(name, &[node], &json!({})).await;
    scene
        .until_maintenance("it is drained", name, |object| {
            node_status(object, node)["podsEvacuating"] == 1
        })
        .await;
    // The kubelet dies. kube-controller-manager sees that by the Lease of the Node.
    scene
        .merge(&path, json!({"metadata": {"labels": {KUBELET: null}}}))
        .await;
    scene
        .until("it is NotReady", &path, |node| condition(node, "Ready") == "Unknown")
        .await;
    scene.release("held").await;
    let maintenance = scene
        .until_maintenance("it is shown", name, |object| {
            node_status(object, node)["blockers"][0]["message"]
                .as_str()
                .is_some_and(|text| text.contains("its node is not ready"))
        })
        .await;
    assert_eq!(condition(&maintenance, "Drained"), "False");
    assert!(scene.observer.is_down(node), "still out of the load balancers");
    // The kubelet comes back and ends its pods.
    scene
        .merge(&path, json!({"metadata": {"labels": {KUBELET: "kwok"}}}))
        .await;
    scene.drained(name).await;
    scene.end(name).await;
    scene
        .until("it is Ready", &path, |node| condition(node, "Ready") == "True")
        .await;
}

/// The pod of the leader is evicted with the others. Its process ends as kubelet ends it, after it handed over.
pub(super) async fn leader(scene: Scene) {
    let before = eventually(SOON, "a leader", async || {
        scene.cluster.leader().await.ok_or_else(String::new)
    })
    .await;
    let node = scene.nodes[before];
    scene.pod(node, "controller", &json!({})).await;
    scene.maintain("leader-nm", &[node], &json!({})).await;
    let after = eventually(SOON, "the other one leads", async || {
        match scene.cluster.leader().await {
            Some(leader) if leader != before => Ok(leader),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    scene.gone(&format!("{}/controller", scene.pods())).await;
    scene.cluster.stop_controller(before).await;
    scene.drained("leader-nm").await;
    scene.cluster.start_controller(before).await;
    scene.end("leader-nm").await;
    assert_eq!(
        scene.cluster.leader().await,
        Some(after),
        "it leads until its own node is drained"
    );
}
