//! How maintenances end: what was there before comes back, and what another one still needs stays.

use headgate_test_kubernetes::Fault;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{MINUTE, SECOND, World};

#[tokio::test(start_paused = true)]
async fn a_taint_of_a_maintenance_that_is_gone_is_removed_with_an_event() {
    const GONE: &str = "0b6e1f52-4c1d-4d53-9d0a-7a3c5f3f9a11";
    let mut world = World::new(&["one", "two"]).await;
    for (node, value) in [("one", GONE), ("two", "kernel")] {
        world.fake.change::<Node>("", node, |node| {
            node["spec"]["unschedulable"] = json!(true);
            node["metadata"]["annotations"] = json!({"headgate.dev/unschedulable-before-maintenance": "false"});
            node["spec"]["taints"] =
                json!([{"key": "headgate.dev/maintenance", "value": value, "effect": "NoSchedule"}]);
        });
    }
    let _leader = world.lead().await;
    world
        .until("given back", |world| {
            world.is_given_back("one") && !world.isolation("two").0
        })
        .await;
    sleep(MINUTE).await;
    let notes = world.notes("one", "MaintenanceTaintOrphaned").await;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains(GONE), "{notes:?}");
    assert_eq!(world.isolation("two"), (false, vec!["kernel".to_owned()], None));
    assert_eq!(world.notes("two", "MaintenanceTaintOrphaned").await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_stage_keeps_no_status_back() {
    let mut world = World::new(&["one"]).await;
    world.observe_out("one");
    let leader = world.lead().await;
    world.drain_one(0).await;
    let progressing = |world: &World| world.condition("m", "Progressing");
    world
        .until("in Drain", |world| progressing(world) == "True Drain")
        .await;
    leader.faults.set_for(Fault::Status(403), |request| {
        request.method == "PATCH" && request.path.ends_with("/nodemaintenances/m")
    });
    world.delete_maintenance("m").await;
    world
        .until("completed", |world| progressing(world) == "False Completed")
        .await;
    leader.faults.set(Fault::None);
    world.until("gone", |world| world.maintenance("m").is_none()).await;
}

/// A webhook or a policy of someone else.
#[tokio::test(start_paused = true)]
async fn a_node_whose_writes_are_refused_is_named_until_they_are_not() {
    let mut world = World::new(&["one", "two"]).await;
    let leader = world.lead().await;
    for node in ["one", "two"] {
        world.observe_out(node);
    }
    let refuse = || {
        leader.faults.set_for(Fault::Status(403), |request| {
            request.method == "PATCH" && request.path.starts_with("/api/v1/nodes/one")
        });
    };
    let message = |world: &World, kind: &str| {
        let status = world.maintenance("m").and_then(|object| object.status).unwrap();
        let mut conditions = status.conditions.into_iter();
        conditions.find(|condition| condition.type_ == kind).unwrap().message
    };
    let reason = |world: &World, kind: &str| {
        let condition = world.condition("m", kind);
        condition
            .split_once(' ')
            .map_or_else(String::new, |(_, reason)| reason.to_owned())
    };
    refuse();
    world.maintain("m", "Drain", &["one", "two"], &json!({})).await;
    sleep(MINUTE / 12).await;
    assert_ne!(reason(&world, "Blocked"), "NodeWriteFailed", "it may pass");
    sleep(MINUTE).await;
    let waiting = world.node_status("m", "one").drain_message;
    assert!(
        waiting.starts_with("Waiting for the cordon and the maintenance taint: ") && waiting.contains("a fault"),
        "{waiting}"
    );
    assert_eq!(world.node_status("m", "two").drain_message, "");
    assert_eq!(reason(&world, "Blocked"), "NodeWriteFailed");
    assert!((world.metric("headgate_maintenances_blocked") - 1.0).abs() < 0.1);
    for kind in ["Blocked", "Progressing"] {
        let message = message(&world, kind);
        assert!(
            message.starts_with("Nodes that cannot be changed: one: ") && message.contains("a fault"),
            "{kind}: {message}"
        );
    }
    leader.faults.set(Fault::None);
    world
        .until("drained", |world| reason(world, "Drained") == "DrainCompleted")
        .await;
    sleep(10 * SECOND).await;
    assert_eq!(reason(&world, "Blocked"), "NotBlocked");
    assert_eq!(message(&world, "Progressing"), "");

    refuse();
    world.delete_maintenance("m").await;
    sleep(MINUTE).await;
    assert_eq!(reason(&world, "Progressing"), "Completing");
    let completing = message(&world, "Progressing");
    assert!(
        completing.contains("one: ") && completing.contains("a fault"),
        "{completing}"
    );
    assert_eq!(reason(&world, "Blocked"), "NotBlocked");
    leader.faults.set(Fault::None);
    world.until("gone", |world| world.maintenance("m").is_none()).await;
}
