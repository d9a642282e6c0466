//! The gate from reads of load balancers to evictions, events and status; `plan/gate.rs` has its rules.

use headgate_core::node::NodeTraffic;
use headgate_maintenance::api::LoadBalancerState;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{SECOND, World};

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

#[tokio::test(start_paused = true)]
async fn proceed_after_goes_on_without_a_confirmation_and_says_so() {
    let (world, _leader) = draining(json!({"confirmation": "BestEffort", "confirmationTimeoutSeconds": 120})).await;
    sleep(115 * SECOND).await;
    assert!(world.has_pod("web"));
    assert_eq!(world.notes("m", NOT_CONFIRMED).await.len(), 0);
    world.until("the pod leaves", |world| !world.has_pod("web")).await;
    let notes = world.notes("m", NOT_CONFIRMED).await;
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("in service in kubernetes/kubernetes"), "{notes:?}");
    assert_eq!(world.notes("one", NOT_CONFIRMED).await.len(), 1, "on the node as well");
    assert_eq!(
        world.node_status("m", "one").load_balancer.unwrap().state,
        LoadBalancerState::TimedOut
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_in_no_load_balancer_does_not_wait() {
    let (world, _leader) = draining(json!({})).await;
    world.observe("one", NodeTraffic::Out { since: None });
    sleep(5 * SECOND).await;
    assert!(!world.has_pod("web"));
}

#[tokio::test(start_paused = true)]
async fn before_an_eviction_notice_ends_half_of_the_time_is_the_load_balancers() {
    let (world, _leader) = draining(json!({"confirmation": "BestEffort", "confirmationTimeoutSeconds": 600})).await;
    world
        .until("the taint", |world| !world.isolation("one").1.is_empty())
        .await;
    let not_before = world.now() + jiff::SignedDuration::from_secs(40);
    world
        .fake
        .change::<k8s_openapi::api::core::v1::Node>("", "one", |node| {
            let record = json!({"eventId": "A1", "notBefore": not_before}).to_string();
            node["metadata"]["annotations"]["headgate.dev/spot-notice"] = json!(record);
            let taint = json!({"key": "cloudprovider.azure.microsoft.com/draining", "value": "spot-eviction", "effect": "NoSchedule"});
            node["spec"]["taints"].as_array_mut().unwrap().push(taint);
        });
    sleep(25 * SECOND).await;
    assert!(!world.has_pod("web"), "{:?}", world.node_status("m", "one"));
}
