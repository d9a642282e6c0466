//! The gate: what opens it, what closes it again, and what never waits for it.

use headgate_maintenance::api::LoadBalancerState;
use headgate_maintenance::snapshot::LoadBalancerObservation;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{MINUTE, SECOND, World};

const NOT_CONFIRMED: &str = "LoadBalancerNotConfirmed";

/// A node with one pod under a drain, in service in its load balancers.
async fn draining(gate: serde_json::Value) -> (World, crate::world::Leader) {
    let mut world = World::new(&["one"]).await;
    world.pod("one", "web", &json!({})).await;
    world.observe_in("one");
    let leader = world.lead().await;
    world
        .maintain("m", "Drain", &["one"], &json!({"loadBalancer": gate}))
        .await;
    world
        .until("the gate", |world| world.maintenance("m").unwrap().status.is_some())
        .await;
    (world, leader)
}

fn state(world: &World) -> LoadBalancerState {
    world.node_status("m", "one").load_balancer.unwrap().state
}

#[tokio::test(start_paused = true)]
async fn proceed_after_goes_on_without_a_confirmation_and_says_so() {
    let (world, _leader) = draining(json!({"policy": "ProceedAfter", "timeoutSeconds": 120})).await;
    sleep(115 * SECOND).await;
    assert!(world.has_pod("web"));
    assert_eq!(world.notes("m", NOT_CONFIRMED).await.len(), 0);
    world.until("the pod leaves", |world| !world.has_pod("web")).await;
    let notes = world.notes("m", NOT_CONFIRMED).await;
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("in service in kubernetes/kubernetes"), "{notes:?}");
    assert_eq!(world.notes("one", NOT_CONFIRMED).await.len(), 1, "on the node as well");
    assert_eq!(state(&world), LoadBalancerState::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_the_guard_holds_back_passes_after_the_timeout_under_block() {
    let (world, _leader) = draining(json!({"timeoutSeconds": 120})).await;
    let detail = "in service in kubernetes/kubernetes".to_owned();
    world.observe("one", LoadBalancerObservation::HeldBack { detail });
    sleep(115 * SECOND).await;
    assert!(world.has_pod("web"));
    world.until("the pod leaves", |world| !world.has_pod("web")).await;
    let notes = world.notes("m", NOT_CONFIRMED).await;
    assert!(
        notes.len() == 1 && notes[0].contains("too few other nodes"),
        "{notes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_confirmation_stops_new_evacuations_and_no_running_one() {
    let (world, _leader) = draining(json!({"drainSeconds": 30})).await;
    world.budget("web", "web", 0).await;
    world.observe_out("one");
    world.until_evacuating("web").await;
    let confirmed = world.node_status("m", "one").load_balancer.unwrap().confirmed_at;
    assert!(confirmed.is_some());
    world.observe_in("one");
    world
        .until("the gate closes", |world| state(world) == LoadBalancerState::Pending)
        .await;
    assert_eq!(world.node_status("m", "one").load_balancer.unwrap().confirmed_at, None);
    world.pod("one", "late", &json!({})).await;
    sleep(20 * MINUTE).await;
    assert!(world.evacuation("late").await.is_none(), "no new one");
    world.allow("web", 1);
    world
        .until("the running one goes on", |world| !world.has_pod("web"))
        .await;
    // A new confirmation comes with a new drain window.
    world.observe_out("one");
    sleep(25 * SECOND).await;
    assert!(world.evacuation("late").await.is_none());
    world.until("the late pod leaves", |world| !world.has_pod("late")).await;
}

#[tokio::test(start_paused = true)]
async fn reads_that_are_missing_close_the_gate_and_keep_the_confirmation() {
    let (world, _leader) = draining(json!({"drainSeconds": 30})).await;
    world.observe_out("one");
    world
        .until("confirmed", |world| state(world) == LoadBalancerState::Draining)
        .await;
    let reason = "load balancers are not listed: no read".to_owned();
    world.observe("one", LoadBalancerObservation::Unknown { reason });
    sleep(10 * MINUTE).await;
    assert!(world.has_pod("web"));
    let status = world.node_status("m", "one");
    assert_eq!(
        status.drain_message,
        "Waiting for a read of the load balancers: load balancers are not listed: no read"
    );
    assert!(status.load_balancer.unwrap().confirmed_at.is_some());
    world.observe_out("one");
    sleep(10 * SECOND).await;
    assert!(!world.has_pod("web"), "the drain window is over already");
}

#[tokio::test(start_paused = true)]
async fn a_node_in_no_load_balancer_does_not_wait() {
    let (world, _leader) = draining(json!({})).await;
    world.observe("one", LoadBalancerObservation::NotUsed);
    sleep(5 * SECOND).await;
    assert!(!world.has_pod("web"));
}

#[tokio::test(start_paused = true)]
async fn before_an_eviction_notice_ends_half_of_the_time_is_the_load_balancers() {
    let (world, _leader) = draining(json!({"policy": "ProceedAfter", "timeoutSeconds": 600})).await;
    world
        .until("the taint", |world| !world.isolation("one").1.is_empty())
        .await;
    let not_before = world.now() + jiff::SignedDuration::from_secs(40);
    world
        .fake
        .change::<k8s_openapi::api::core::v1::Node>("", "one", |node| {
            let record = json!({"eventId": "A1", "notBefore": not_before}).to_string();
            node["metadata"]["annotations"]["headgate.dev/spot-notice"] = json!(record);
            let taint = json!({"key": "cloudprovider.azure.microsoft.com/draining", "effect": "NoSchedule"});
            node["spec"]["taints"].as_array_mut().unwrap().push(taint);
        });
    sleep(25 * SECOND).await;
    assert!(!world.has_pod("web"), "{:?}", world.node_status("m", "one"));
}
