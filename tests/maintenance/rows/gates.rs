//! What may open the gate without a confirmation, each with an event.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::time::sleep;

use crate::scene::{Scene, node_status};

const EVENT: &str = "LoadBalancerNotConfirmed";

/// The guard keeps the only node of a pool in service; the maintenance goes on after its timeout, under either policy.
pub(super) async fn guard(scene: Scene) {
    let (name, node) = ("guard-nm", scene.nodes[0]);
    scene.pod(node, "web", &json!({})).await;
    scene
        .maintain(
            name,
            &[node],
            &json!({"loadBalancer": {"confirmationTimeoutSeconds": 40}}),
        )
        .await;
    let waiting = scene
        .until_maintenance("it waits", name, |object| {
            node_status(object, node)["drainMessage"]
                .as_str()
                .is_some_and(|text| text.contains("too few other nodes"))
        })
        .await;
    assert_eq!(
        node_status(&waiting, node)["loadBalancer"]["state"],
        "Pending",
        "{waiting}"
    );
    scene.gone(&format!("{}/web", scene.pods())).await;
    let object = scene
        .until_maintenance("it timed out", name, |object| {
            node_status(object, node)["loadBalancer"]["state"] == "TimedOut"
        })
        .await;
    assert!(!scene.observer.is_down(node), "{object}");
    assert_eq!(scene.events(name, EVENT).await, 1);
    scene.end(name).await;
}

/// Azure refuses the write: `Required` waits, `BestEffort` continues after its timeout.
pub(super) async fn policy(scene: Scene) {
    let node = crate::rows::STUBBORN;
    scene.pod(node, "web", &json!({})).await;
    let block = json!({"loadBalancer": {"confirmation": "Required", "confirmationTimeoutSeconds": 1}});
    scene.maintain("block-nm", &[node], &block).await;
    let since = Timestamp::now();
    scene
        .until_maintenance("it states for what", "block-nm", |object| {
            node_status(object, node)["drainMessage"]
                .as_str()
                .is_some_and(|text| text.contains("stubborn"))
        })
        .await;
    // Real seconds, because the leader is another process.
    while since.duration_since(Timestamp::now()).as_secs() > -10 {
        let evacuations = scene.list(&scene.evacuations()).await;
        assert!(evacuations.is_empty(), "{evacuations:?}");
        sleep(Duration::from_millis(500)).await;
    }
    scene.end("block-nm").await;
    let proceed = json!({"loadBalancer": {"confirmation": "BestEffort", "confirmationTimeoutSeconds": 5}});
    scene.maintain("proceed-nm", &[node], &proceed).await;
    scene.gone(&format!("{}/web", scene.pods())).await;
    assert_eq!(scene.events("proceed-nm", EVENT).await, 1);
    scene.end("proceed-nm").await;
}
