//! Evacuators and instigators of others.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::MAINTENANCES;
use crate::scene::{Scene, merged};

const CLASS: &str = "evacuator.example.com";

/// A pod with an evacuator of its own, which has the first turn; `fields` are merged into it.
async fn registered(scene: &Scene, fields: &Value) -> Value {
    let annotation = format!("evacuation.coordination.k8s.io/priority_{CLASS}");
    let fields = merged(json!({"metadata": {"annotations": {annotation: "20000"}}}), fields);
    scene.pod(scene.nodes[0], "database", &fields).await
}

/// The path of a pod's Evacuation, once its evacuator has its turn.
async fn its_turn(scene: &Scene, pod: &Value) -> String {
    let evacuation = scene
        .until_evacuation("its evacuator has its turn", pod, |one| {
            one["status"]["activeEvacuatorClass"] == CLASS
        })
        .await;
    format!(
        "{}/{}",
        scene.evacuations(),
        evacuation["metadata"]["name"].as_str().unwrap()
    )
}

async fn report(scene: &Scene, path: &str, status: Value) {
    scene.merge(&format!("{path}/status"), json!({"status": status})).await;
}

pub(super) async fn third_party(scene: Scene) {
    let (name, node) = ("third-party-nm", scene.nodes[0]);
    let pod = registered(&scene, &json!({})).await;
    scene.maintain(name, &[node], &json!({})).await;
    let path = its_turn(&scene, &pod).await;
    let progress = json!({"evacuationProgressTimestamp": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "message": "the data is copied"});
    report(&scene, &path, progress).await;
    let evacuation = scene
        .until("it is left alone while it works", &path, |one| {
            one["status"]["message"] == "the data is copied"
        })
        .await;
    assert_eq!(
        evacuation["status"]["failedEvictionCounter"].as_i64().unwrap_or(0),
        0,
        "{evacuation}"
    );
    assert!(scene.get(&format!("{}/database", scene.pods())).await.is_some());
    // It is done, and leaves the pod to the Eviction API.
    report(&scene, &path, json!({"activeEvacuatorCompleted": true})).await;
    scene.drained(name).await;
    scene.gone(&path).await;
    scene.end(name).await;
}

pub(super) async fn foreign_finalizer(scene: Scene) {
    let (name, node, other) = (
        "foreign-nm",
        scene.nodes[0],
        "evacuation.coordination.k8s.io/instigator_backup.example.com",
    );
    scene.hold("held").await;
    let pod = scene
        .pod(node, "held", &json!({"metadata": {"labels": {"hold": "held"}}}))
        .await;
    scene.maintain(name, &[node], &json!({})).await;
    let path = add_finalizer(&scene, &pod, other).await;
    scene.end(name).await;
    // The other instigator still wants it.
    let left = scene
        .until("only the other finalizer is left", &path, |one| {
            one["metadata"]["finalizers"] == json!([other])
        })
        .await;
    assert!(left["metadata"]["deletionTimestamp"].is_null(), "{left}");
    scene.merge(&path, json!({"metadata": {"finalizers": null}})).await;
    scene.gone(&path).await;
    let pod = scene.get(&format!("{}/held", scene.pods())).await.unwrap();
    assert!(pod["metadata"]["deletionTimestamp"].is_null(), "the pod stays: {pod}");
    scene.release("held").await;
}

/// Waits for the Evacuation of a pod and adds a finalizer to it. Returns its path.
async fn add_finalizer(scene: &Scene, pod: &Value, finalizer: &str) -> String {
    let evacuation = scene.until_evacuation("it exists", pod, |_| true).await;
    let path = format!(
        "{}/{}",
        scene.evacuations(),
        evacuation["metadata"]["name"].as_str().unwrap()
    );
    let own = evacuation["metadata"]["finalizers"][0].clone();
    scene
        .merge(&path, json!({"metadata": {"finalizers": [own, finalizer]}}))
        .await;
    path
}

/// A finalizer that is no instigator's keeps an Evacuation after its pod is gone. The maintenance does not wait for it, and a new
/// pod of the same name has an Evacuation of its own.
pub(super) async fn plain_finalizer(scene: Scene) {
    let (name, node, other) = ("plain-nm", scene.nodes[0], "example.com/audit");
    scene.hold("held").await;
    let held = json!({"metadata": {"labels": {"hold": "held"}}});
    let pod = scene.pod(node, "held", &held).await;
    scene.maintain(name, &[node], &json!({})).await;
    let path = add_finalizer(&scene, &pod, other).await;
    scene.release("held").await;
    scene.drained(name).await;
    let is_left_to_its_owner = |one: &Value| {
        one["metadata"]["finalizers"] == json!([other]) && one["metadata"]["deletionTimestamp"].is_string()
    };
    scene
        .until("it is left to its owner", &path, is_left_to_its_owner)
        .await;
    // The pods of this node leave all the same.
    let again = json!({"metadata": {"name": "held"}, "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": "none"}]}});
    let again = scene.create(&scene.pods(), &again).await;
    assert_ne!(again["metadata"]["uid"], pod["metadata"]["uid"]);
    scene.gone(&format!("{}/held", scene.pods())).await;
    scene.drained(name).await;
    scene.end(name).await;
    let left = scene.get(&path).await.expect("it outlives the maintenance");
    assert!(is_left_to_its_owner(&left), "{left}");
    scene.merge(&path, json!({"metadata": {"finalizers": null}})).await;
    scene.gone(&path).await;
}

pub(super) async fn forbid(scene: Scene) {
    let (name, node) = ("forbid-nm", scene.nodes[0]);
    scene.hold("held").await;
    let pod = registered(&scene, &json!({"metadata": {"labels": {"hold": "held"}}})).await;
    scene.maintain(name, &[node], &json!({})).await;
    let path = its_turn(&scene, &pod).await;
    report(&scene, &path, json!({"evacuationCancellationPolicy": "Forbid"})).await;
    let protection = "evacuation.headgate.dev/evacuation-protection";
    scene
        .until("it is protected", &path, |one| {
            one["metadata"]["finalizers"].to_string().contains(protection)
        })
        .await;
    // The maintenance ends, and another user deletes the Evacuation: it stays, and so does its evacuator's turn.
    scene.end(name).await;
    scene.delete(&path).await;
    let evacuation = scene.get(&path).await.unwrap();
    assert_eq!(
        evacuation["metadata"]["finalizers"],
        json!([protection]),
        "{evacuation}"
    );
    assert_eq!(evacuation["status"]["activeEvacuatorClass"], CLASS, "{evacuation}");
    assert!(scene.get(&format!("{MAINTENANCES}/{name}")).await.is_none());
    // It moves the pod in the end, through the Eviction API as well.
    scene.release("held").await;
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "database"}});
    scene
        .create(&format!("{}/database/eviction", scene.pods()), &eviction)
        .await;
    scene.gone(&path).await;
}
