//! Objects that cannot be decoded, or that have times which no Rust type represents: other maintenances go on.

use headgate_core::node::AUTOSCALER_TAINT;
use headgate_maintenance::api::NodeMaintenance;
use headgate_maintenance::automatic::{AutomaticMaintenances, Cause};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::world::{MINUTE, NAMESPACE, World, at_once};

const FAR: &str = "9999-12-31T23:59:59Z";

fn write_odd_times(object: &mut Value) {
    object["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Update", "time": FAR}]);
    let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        condition["lastTransitionTime"] = json!(FAR);
    }
}

#[tokio::test(start_paused = true)]
async fn odd_times_of_any_object_stop_no_drain() {
    let mut world = World::new(&["one", "two"]).await;
    for pod in ["web-1", "web-2"] {
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        world
            .pod("one", pod, &json!({"status": {"conditions": conditions}}))
            .await;
    }
    world.budget("web", "web-1", 0).await;
    world.observe_out("one");
    world.fake.change::<Node>("", "one", write_odd_times);
    world.fake.change::<Node>("", "two", write_odd_times);
    world.fake.change::<Pod>(NAMESPACE, "web-1", write_odd_times);
    let leader = world.lead().await;
    world.drain_one(0).await;
    world.until_gone(&["web-2"]).await;
    leader.kill();
    // An evacuator that says "never".
    world
        .change_evacuation("web-1", |evacuation| {
            write_odd_times(evacuation);
            evacuation["status"]["expectedEvacuationFinishTime"] = json!(FAR);
        })
        .await;
    world.fake.change::<NodeMaintenance>("", "m", |object| {
        object["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Update", "time": FAR}]);
    });
    world.allow("web", 1);
    let _leader = world.lead().await;
    world.until_gone(&["web-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_maintenance_exists_and_stops_no_other() {
    let mut world = World::new(&["one", "two"]).await;
    world.pod("one", "web-1", &json!({})).await;
    world.pod("two", "web-2", &json!({})).await;
    let leader = world.lead().await;
    // The gate keeps the pod of the first one.
    world.observe_in("one");
    world.observe_out("two");
    world.maintain("odd", "Drain", &["one"], &json!({})).await;
    world.until("isolated", |world| world.isolation("one").0).await;
    sleep(MINUTE).await;
    let before = world.isolation("one");
    assert_eq!((before.0, before.1.len()), (true, 1));
    // A newer headgate knows more policies.
    world.fake.change::<NodeMaintenance>("", "odd", |object| {
        object["spec"]["loadBalancer"]["confirmation"] = json!("Newer");
    });
    leader.kill();
    let leader = world.lead().await;
    let spec = at_once();
    world.maintain("other", "Drain", &["two"], &spec).await;
    world.until_gone(&["web-2"]).await;
    world.delete_maintenance("other").await;
    let is_gone = |world: &World| world.maintenance("other").is_none();
    world.until("gone", is_gone).await;
    sleep(10 * MINUTE).await;
    assert!(world.is_given_back("two"));
    assert_eq!(world.isolation("one"), before, "its cordon and taint stay");
    assert_eq!(world.notes("one", "MaintenanceTaintOrphaned").await.len(), 0);
    assert_eq!(world.notes("odd", "ObjectUndecodable").await.len(), 1);
    // Deleted while it cannot be decoded, its traces go.
    leader.kill();
    let _leader = world.lead().await;
    sleep(MINUTE).await;
    world.fake.delete::<NodeMaintenance>("", "odd");
    let is_undone = |world: &World| world.is_given_back("one");
    world.until("undone", is_undone).await;
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_pod_has_to_leave_its_node() {
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web-1", &json!({})).await;
    world.observe_out("one");
    world
        .fake
        .change::<Pod>(NAMESPACE, "web-1", |pod| pod["spec"]["priority"] = json!("high"));
    let _leader = world.lead().await;
    world.drain_one(0).await;
    world.until_gone(&["web-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_maintenance_with_the_name_of_an_automatic_one_keeps_no_node_from_being_drained() {
    let mut world = World::new(&["one"]).await;
    world.automatic = AutomaticMaintenances {
        causes: [(Cause::Autoscaler, None)].into(),
    };
    world.pod("one", "web-1", &json!({})).await;
    world.observe_out("one");
    world.maintain("automatic-one", "Idle", &["one"], &json!({})).await;
    world.fake.change::<NodeMaintenance>("", "automatic-one", |object| {
        object["spec"]["loadBalancer"]["confirmation"] = json!("Newer");
    });
    let _leader = world.lead().await;
    world.fake.change::<Node>("", "one", |node| {
        node["spec"]["taints"] = json!([{"key": AUTOSCALER_TAINT, "effect": "NoSchedule"}]);
    });
    world.until_gone(&["web-1"]).await;
}
