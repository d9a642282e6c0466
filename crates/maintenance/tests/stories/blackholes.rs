//! Blackhole seconds of drains, and the event about annotations that register no evacuator.

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::world::{Leader, NAMESPACE, SECOND, World};

const AT_RISK: &str = "ConnectionsAtRisk";

async fn service(world: &World, name: &str, policy: &str) {
    let object = json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"type": "LoadBalancer",
        "externalTrafficPolicy": policy, "selector": {"app": "web"}, "ports": [{"port": 80}]}});
    world.create::<Service>(NAMESPACE, object).await;
}

fn ready() -> Value {
    json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// Node one is in service with a ready pod that two Services select.
async fn world_with_a_pod_of_two_services() -> (World, Leader) {
    let mut world = World::new(&["one"]).await;
    for (name, policy) in [("local", "Local"), ("cluster", "Cluster")] {
        service(&world, name, policy).await;
    }
    world.pod("one", "web", &ready()).await;
    world.observe_in("one");
    let leader = world.lead().await;
    (world, leader)
}

fn observed(world: &World, policy: &str) -> (f64, f64) {
    let series = |part: &str| {
        world.metric(&format!(
            "headgate_maintenance_blackhole_seconds_{part}{{traffic_policy=\"{policy}\"}}"
        ))
    };
    (series("count"), series("sum"))
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_waits_for_its_load_balancer_loses_nothing() {
    let (world, _leader) = world_with_a_pod_of_two_services().await;
    world.drain_one(5).await;
    sleep(30 * SECOND).await;
    assert_eq!(observed(&world, "local"), (0.0, 0.0), "in service");
    world.observe_out("one");
    world.until_gone(&["web"]).await;
    sleep(10 * SECOND).await;
    assert_eq!(observed(&world, "local"), (1.0, 0.0));
    assert_eq!(observed(&world, "cluster"), (1.0, 0.0));
    assert_eq!(world.notes("one", AT_RISK).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn pods_that_leave_before_the_load_balancer_are_counted_and_named() {
    let (world, _leader) = world_with_a_pod_of_two_services().await;
    let gate = json!({"loadBalancer": {"confirmation": "BestEffort", "confirmationTimeoutSeconds": 20, "connectionsDrainSeconds": 0}});
    world.maintain("m", "Drain", &["one"], &gate).await;
    world.until_gone(&["web"]).await;
    for about in ["m", "one"] {
        let notes = world.notes(about, "LoadBalancerNotConfirmed").await;
        assert!(
            notes.len() == 1 && notes[0].contains("in service in kubernetes/kubernetes"),
            "{about}: {notes:?}"
        );
    }
    sleep(40 * SECOND).await;
    world.observe_out("one");
    world.until("counted", |world| observed(world, "local").0 > 0.0).await;
    let (count, sum) = observed(&world, "local");
    assert_eq!(count.to_string(), "1");
    assert!((38.0..44.0).contains(&sum), "{sum}");
    assert_eq!(observed(&world, "cluster"), (1.0, 0.0), "other nodes serve it");
    sleep(5 * SECOND).await;
    let notes = world.notes("one", AT_RISK).await;
    assert!(
        notes.len() == 1 && notes[0].contains("shop/local (") && !notes[0].contains("shop/cluster"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn malformed_annotations_of_a_pod_have_one_event() {
    let mut world = World::new(&["one"]).await;
    let annotation = |class: &str| format!("evacuation.coordination.k8s.io/priority_{class}");
    let annotations =
        json!({"metadata": {"annotations": {annotation("a.example"): "many", annotation("b.example"): "5/"}}});
    world.pod("one", "web", &annotations).await;
    world.budget("web", "web", 0).await;
    world.observe_out("one");
    let _leader = world.lead().await;
    world.drain_one(0).await;
    world.until_evacuating("web").await;
    sleep(600 * SECOND).await;
    let mut about = world.events(NAMESPACE).await;
    about.retain(|event| event.reason.as_deref() == Some("EvacuatorAnnotationMalformed"));
    assert_eq!(about.len(), 1, "{about:?}");
    let (note, regarding) = (about[0].note.clone().unwrap(), about[0].regarding.clone().unwrap());
    headgate_test_kubernetes::assert_contains!(note, "a.example: \"many\" is left out", "b.example: \"5/\"");
    assert_eq!(
        (regarding.kind.as_deref(), regarding.name.as_deref()),
        (Some("Pod"), Some("web"))
    );
}
