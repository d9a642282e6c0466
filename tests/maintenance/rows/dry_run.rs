//! `spec.dryRun`: the status says what a drain would do, and nothing else changes until it is switched off.

use serde_json::{Value, json};

use crate::cluster::NODES;
use crate::observer::traces;
use crate::scene::{Scene, condition, node_status};

/// What a dry run must not change.
async fn is_untouched(scene: &Scene, node: &str, pods: usize) {
    let object = scene.get(&format!("{NODES}/{node}")).await.unwrap();
    assert_eq!(traces(&object), Vec::<String>::new(), "{object}");
    assert!(!scene.observer.is_down(node), "{node} is in its load balancers");
    assert_eq!(scene.list(&scene.evacuations()).await, Vec::<Value>::new());
    let all = scene.list(&scene.pods()).await;
    let here: Vec<_> = all.iter().filter(|pod| pod["spec"]["nodeName"] == node).collect();
    assert_eq!(here.len(), pods, "{here:?}");
    let terminating = here
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(terminating.count(), 0, "{here:?}");
}

pub(super) async fn dry_run(scene: Scene) {
    let [node, ended] = *scene.nodes else {
        panic!("{:?}", scene.nodes)
    };
    let (name, dry) = ("dry-nm", json!({"dryRun": true}));
    scene.hold("held").await;
    scene
        .pod(node, "held", &json!({"metadata": {"labels": {"hold": "held"}}}))
        .await;
    scene.workload("daemonsets", "plain", 2, &json!({})).await;
    scene.pod(ended, "other", &json!({})).await;
    scene.maintain(name, &[node], &dry).await;
    scene.maintain("ended-nm", &[ended], &dry).await;

    let says = |object: &Value, message: &str| node_status(object, node)["drainMessage"] == message;
    let shown = scene
        .until_maintenance("it says what would leave", name, |object| {
            says(object, "Dry run: 2 pods would leave")
        })
        .await;
    let status = node_status(&shown, node);
    assert_eq!(
        (&status["podsPendingEvacuation"], &shown["status"]["podsLeft"]),
        (&json!(2), &json!(2)),
        "{shown}"
    );
    assert_eq!(
        status["blockers"][0]["reason"], "DisruptionBudget",
        "what would block: {shown}"
    );
    assert_eq!(condition(&shown, "Progressing"), "False", "{shown}");
    assert_eq!(condition(&shown, "Drained"), "False", "{shown}");
    is_untouched(&scene, node, 2).await;

    // It follows the node, and still does nothing.
    scene.pod(node, "late", &json!({})).await;
    scene
        .until_maintenance("it follows", name, |object| says(object, "Dry run: 3 pods would leave"))
        .await;
    is_untouched(&scene, node, 3).await;

    // Deleted, it is gone, and nothing was done.
    scene.end("ended-nm").await;
    let object = scene.get(&format!("{NODES}/{ended}")).await.unwrap();
    assert_eq!(traces(&object), Vec::<String>::new(), "{object}");
    assert!(!scene.observer.is_down(ended));

    // Switched off, it becomes a drain.
    scene.release("held").await;
    let path = format!("{}/{name}", crate::cluster::MAINTENANCES);
    scene.merge(&path, json!({"spec": {"dryRun": false}})).await;
    scene.drained(name).await;
    assert!(scene.observer.is_down(node), "out of its load balancers first");
    scene.end(name).await;
}
