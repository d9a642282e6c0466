//! Pods and what keeps them on their node.

use serde_json::{Value, json};

use crate::scene::{Scene, node_status};

/// Whether a blocker of a node has this reason, and a text in its message.
pub(super) fn is_blocked(maintenance: &Value, node: &str, reason: &str, text: &str) -> bool {
    let blockers = node_status(maintenance, node)["blockers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let message = |blocker: &Value| blocker["message"].as_str().unwrap_or_default().to_owned();
    blockers
        .iter()
        .any(|blocker| blocker["reason"] == reason && message(blocker).contains(text))
}

/// Whether the last eviction failed for this reason.
fn has_failed(evacuation: &Value, reason: &str) -> bool {
    let conditions = evacuation["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .filter(|condition| condition["type"] == "EvictionFailed")
        .any(|condition| condition["reason"] == reason)
}

/// The pods of an application on a node.
pub(super) async fn on_node(scene: &Scene, app: &str, node: &str) -> Vec<Value> {
    let selector = format!("?labelSelector=app={app}&fieldSelector=spec.nodeName={node}");
    scene.list(&format!("{}{selector}", scene.pods())).await
}

pub(super) async fn budget_gains_room(scene: Scene) {
    let name = format!("{}-nm", scene.namespace);
    scene.workload("deployments", "web", 2, &json!({})).await;
    scene
        .budget("web", json!({"app": "web"}), &json!({"spec": {"minAvailable": 2}}), 0)
        .await;
    let first = scene.list(&scene.pods()).await[0]["spec"]["nodeName"]
        .as_str()
        .unwrap()
        .to_owned();
    scene.maintain(&name, &[&first], &json!({})).await;
    let blocked = |object: &Value| {
        is_blocked(
            object,
            &first,
            "DisruptionBudget",
            "PodDisruptionBudget web allows 0 disruptions",
        )
    };
    scene.until_maintenance("the budget blocks", &name, blocked).await;
    let pods = on_node(&scene, "web", &first).await;
    scene
        .until_evacuation("429", &pods[0], |evacuation| {
            evacuation["status"]["failedEvictionCounter"].as_i64() > Some(0)
                && has_failed(evacuation, "DisruptionBudget")
        })
        .await;
    assert!(!on_node(&scene, "web", &first).await.is_empty());
    // With more replicas there is room for one pod at a time.
    let path = scene.path("apps/v1", "deployments/web");
    scene.merge(&path, json!({"spec": {"replicas": 3}})).await;
    scene.drained(&name).await;
    assert_eq!(on_node(&scene, "web", &first).await, Vec::<Value>::new());
    scene.end(&name).await;
}

pub(super) async fn two_budgets(scene: Scene) {
    let node = scene.nodes[0];
    let name = "two-budgets-nm";
    scene.pod(node, "web", &json!({})).await;
    for budget in ["first", "second"] {
        scene
            .budget(budget, json!({"app": "web"}), &json!({"spec": {"minAvailable": 0}}), 1)
            .await;
    }
    let pod = on_node(&scene, "web", node).await.remove(0);
    scene.maintain(name, &[node], &json!({})).await;
    scene
        .until_evacuation("500", &pod, |evacuation| {
            has_failed(evacuation, "MultipleDisruptionBudgets")
        })
        .await;
    let blocked = |object: &Value| is_blocked(object, node, "MultipleDisruptionBudgets", "first, second");
    scene.until_maintenance("both budgets are named", name, blocked).await;
    scene.release("second").await;
    scene.drained(name).await;
    scene.end(name).await;
}

pub(super) async fn daemon_sets(scene: Scene) {
    let node = scene.nodes[0];
    let name = format!("{}-nm", scene.namespace);
    scene.workload("daemonsets", "plain", 1, &json!({})).await;
    let everything = json!({"tolerations": [{"operator": "Exists"}]});
    scene.workload("daemonsets", "everywhere", 1, &everything).await;
    let before = on_node(&scene, "everywhere", node).await.remove(0);
    scene.maintain(&name, &[node], &json!({})).await;
    let drained = scene.drained(&name).await;
    assert_eq!(node_status(&drained, node)["podsExempt"], 1, "{drained}");
    assert_eq!(
        on_node(&scene, "plain", node).await,
        Vec::<Value>::new(),
        "it is not recreated"
    );
    let after = on_node(&scene, "everywhere", node).await.remove(0);
    assert_eq!(
        before["metadata"]["uid"], after["metadata"]["uid"],
        "it was not touched"
    );
    scene.end(&name).await;
    let path = scene.path("apps/v1", "daemonsets/plain");
    scene
        .until("the plain one is back", &path, |set| set["status"]["numberReady"] == 1)
        .await;
}

pub(super) async fn bare(scene: Scene) {
    let node = scene.nodes[0];
    scene.pod(node, "alone", &json!({})).await;
    scene
        .pod(
            node,
            "with-data",
            &json!({"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}}),
        )
        .await;
    scene.maintain("bare-nm", &[node], &json!({})).await;
    scene.drained("bare-nm").await;
    for pod in ["alone", "with-data"] {
        assert!(scene.get(&format!("{}/{pod}", scene.pods())).await.is_none());
    }
    scene.end("bare-nm").await;
}

pub(super) async fn stuck_terminating(scene: Scene) {
    let node = scene.nodes[0];
    let finalizer = json!({"metadata": {"finalizers": ["example.com/backup"]}});
    let pod = scene.pod(node, "stuck", &finalizer).await;
    scene.maintain("stuck-nm", &[node], &json!({})).await;
    let blocked = |object: &Value| is_blocked(object, node, "Terminating", "finalizers: example.com/backup");
    let maintenance = scene.until_maintenance("it is shown", "stuck-nm", blocked).await;
    assert_eq!(node_status(&maintenance, node)["podsEvacuating"], 1, "{maintenance}");
    scene.until_evacuation("it stays", &pod, |_| true).await;
    scene
        .merge(
            &format!("{}/stuck", scene.pods()),
            json!({"metadata": {"finalizers": null}}),
        )
        .await;
    scene.drained("stuck-nm").await;
    scene.end("stuck-nm").await;
}
