//! The end of a maintenance: in each stage, and beside what others have set.

use futures::FutureExt as _;
use futures::future::join_all;
use serde_json::json;

use crate::cluster::NODES;
use crate::observer::traces;
use crate::scene::{Scene, condition, node_status};

/// A maintenance of each node is deleted in another stage; a pod that cannot be evicted stays.
pub(super) async fn cancelled_in_each_stage(scene: Scene) {
    let [idle, cordon, gate, evacuating, drained] = *scene.nodes else {
        panic!("{:?}", scene.nodes)
    };
    for node in [idle, cordon, gate, evacuating] {
        scene.hold(node).await;
        scene
            .pod(node, node, &json!({"metadata": {"labels": {"hold": node}}}))
            .await;
    }
    scene.pod(drained, drained, &json!({})).await;
    let name = |node: &str| format!("{node}-nm");
    let path = |node: &str| format!("{NODES}/{node}");
    scene.maintain(&name(idle), &[idle], &json!({"stage": "Idle"})).await;
    scene
        .maintain(&name(cordon), &[cordon], &json!({"stage": "Cordon"}))
        .await;
    let long = json!({"loadBalancer": {"connectionsDrainSeconds": 3600}});
    scene.maintain(&name(gate), &[gate], &long).await;
    for node in [evacuating, drained] {
        scene.maintain(&name(node), &[node], &json!({})).await;
    }

    let waits = [
        async {
            scene
                .until("cordoned", &path(cordon), |node| node["spec"]["unschedulable"] == true)
                .await
        }
        .boxed_local(),
        async {
            let is_draining = |object: &_| node_status(object, gate)["loadBalancer"]["state"] == "Draining";
            scene
                .until_maintenance("in its drain window", &name(gate), is_draining)
                .await
        }
        .boxed_local(),
        async {
            let is_evacuating = |object: &_| node_status(object, evacuating)["podsEvacuating"] == 1;
            scene
                .until_maintenance("evacuating", &name(evacuating), is_evacuating)
                .await
        }
        .boxed_local(),
        async { scene.drained(&name(drained)).await }.boxed_local(),
    ];
    join_all(waits).await;
    let node = scene.get(&path(idle)).await.unwrap();
    assert_eq!(traces(&node), Vec::<String>::new(), "Idle touches nothing");
    let node = scene.get(&path(cordon)).await.unwrap();
    assert_eq!(condition(&node, "MaintenancePlanned"), "True", "{node}");
    assert!(!scene.observer.is_down(cordon), "a cordon takes no node out");

    join_all(scene.nodes.iter().map(|node| async { scene.end(&name(node)).await })).await;
    for node in [idle, cordon, gate, evacuating] {
        let pod = scene.get(&format!("{}/{node}", scene.pods())).await.unwrap();
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "it stays: {pod}");
        scene.release(node).await;
    }
}

/// A cordon and a taint from before the maintenance are there after it.
pub(super) async fn what_others_set(scene: Scene) {
    let (name, node) = ("others-nm", scene.nodes[0]);
    let path = format!("{NODES}/{node}");
    let by_hand = json!([{"key": "headgate.dev/maintenance", "value": "by-hand", "effect": "NoExecute"},
        {"key": "example.com/own", "effect": "NoSchedule"}]);
    scene
        .merge(&path, json!({"spec": {"unschedulable": true, "taints": by_hand}}))
        .await;
    scene.maintain(name, &[node], &json!({})).await;
    scene.drained(name).await;
    scene.end(name).await;
    let after = scene.get(&path).await.unwrap();
    assert_eq!(after["spec"]["unschedulable"], true, "{after}");
    let keys = after["spec"]["taints"].to_string();
    assert!(keys.contains("by-hand") && keys.contains("example.com/own"), "{keys}");
    assert!(scene.observer.is_down(node), "by the taint that was set by hand");
    scene
        .merge(&path, json!({"spec": {"unschedulable": null, "taints": null}}))
        .await;
}
