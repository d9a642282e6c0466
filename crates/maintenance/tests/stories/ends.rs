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
            world.isolation("one") == (false, Vec::new(), None) && !world.isolation("two").0
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
async fn a_leader_killed_at_any_time_leaves_a_maintenance_that_the_next_one_ends() {
    // Each round kills the leader a little later in the drain, and in its end.
    for round in 0..12_u32 {
        let mut world = World::new(&["one"]).await;
        for pod in ["web-1", "web-2"] {
            world.pod("one", pod, &json!({})).await;
        }
        world.observe_out("one");
        let leader = world.lead().await;
        world.drain_one(0).await;
        if round >= 6 {
            world
                .until("drained", |world| !world.has_pod("web-1") && !world.has_pod("web-2"))
                .await;
            world.delete_maintenance("m").await;
        }
        sleep(SECOND / 30 * (round % 6) * 4).await;
        leader.kill();
        let _leader = world.lead().await;
        if round < 6 {
            world
                .until("drained", |world| !world.has_pod("web-1") && !world.has_pod("web-2"))
                .await;
            world.delete_maintenance("m").await;
        }
        world.until("gone", |world| world.maintenance("m").is_none()).await;
        assert_eq!(world.isolation("one"), (false, Vec::new(), None), "round {round}");
        assert_eq!(world.node_conditions("one"), Vec::<String>::new(), "round {round}");
        sleep(20 * SECOND).await;
        for pod in ["web-1", "web-2"] {
            assert!(world.evacuation(pod).await.is_none(), "round {round}: {pod}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_stage_keeps_no_status_back() {
    let mut world = World::new(&["one"]).await;
    world.observe_out("one");
    let leader = world.lead().await;
    world.drain_one(0).await;
    let progressing = |world: &World| world.condition("m", "Progressing").unwrap_or_default();
    world
        .until("in Drain", |world| {
            progressing(world) == ("True".to_owned(), "Drain".to_owned())
        })
        .await;
    leader.faults.set_for(Fault::Status(403), |request| {
        request.method == "PATCH" && request.path.ends_with("/nodemaintenances/m")
    });
    world.delete_maintenance("m").await;
    world
        .until("completed", |world| {
            progressing(world) == ("False".to_owned(), "Completed".to_owned())
        })
        .await;
    leader.faults.set(Fault::None);
    world.until("gone", |world| world.maintenance("m").is_none()).await;
}
