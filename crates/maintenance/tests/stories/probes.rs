//! Gates in a cluster whose load balancers no leader reads: they follow the condition that each agent writes after failed probes.

use headgate_maintenance::api::LoadBalancerState;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::world::{Leader, MINUTE, SECOND, World};

const MARKER: &str = "headgate.dev/OutOfLoadBalancers";

/// Two nodes with a pod each, of which the first is drained.
async fn draining(gate: &Value) -> (World, Leader) {
    let mut world = World::new(&["one", "two"]).await;
    world.is_probed = true;
    world.pod("one", "web", &json!({})).await;
    world.pod("two", "db", &json!({})).await;
    let leader = world.lead().await;
    world
        .maintain("m", "Drain", &["one"], &json!({"loadBalancer": gate}))
        .await;
    world
        .until("the taint", |world| !world.isolation("one").1.is_empty())
        .await;
    (world, leader)
}

/// What the agent of a node writes now.
fn mark(world: &World, node: &str, status: &str, reason: &str, message: &str) {
    let now = format!("{:.0}", world.now());
    world.fake.change::<Node>("", node, |node| {
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        let before = conditions.iter().position(|one| one["type"] == MARKER);
        let before = before.map(|index| conditions.remove(index));
        let is_same = before.as_ref().is_some_and(|before| before["status"] == status);
        let since = before
            .filter(|_| is_same)
            .map_or(json!(now), |before| before["lastTransitionTime"].clone());
        conditions.push(
            json!({"type": MARKER, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since, "lastHeartbeatTime": now}),
        );
    });
}

fn message(world: &World) -> String {
    world.node_status("m", "one").drain_message
}

fn state(world: &World) -> LoadBalancerState {
    world.node_status("m", "one").load_balancer.unwrap().state
}

#[tokio::test(start_paused = true)]
async fn pods_leave_after_enough_failed_probes_and_the_drain_window() {
    let (world, _leader) = draining(&json!({"connectionsDrainSeconds": 30})).await;
    sleep(10 * MINUTE).await;
    assert!(
        message(&world).contains("which its agent writes with outOfLoadBalancers.failedProbes"),
        "{}",
        message(&world)
    );
    mark(
        &world,
        "one",
        "False",
        "ProbesNotFailed",
        "Not yet: 1 of 2 probes of /healthz were answered with 503.",
    );
    world
        .until("the message", |world| message(world).contains("1 of 2 probes"))
        .await;
    sleep(10 * SECOND).await;
    assert!(world.has_pod("web"));
    mark(
        &world,
        "one",
        "True",
        "ProbesFailed",
        "2 probes of /healthz or more were answered with 503.",
    );
    world
        .until("confirmed", |world| state(world) == LoadBalancerState::Draining)
        .await;
    let gate = world.node_status("m", "one").load_balancer.unwrap();
    assert!(gate.down_time.is_some() && gate.confirmed_time.is_some(), "{gate:?}");
    sleep(25 * SECOND).await;
    assert!(world.has_pod("web"), "the drain window");
    world.until("the pod leaves", |world| !world.has_pod("web")).await;
    assert!(world.has_pod("db"));
    assert_eq!(world.condition("m", "LoadBalancerOut").unwrap().0, "True");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_confirms_nothing_closes_the_gate_and_a_confirmation_opens_it() {
    let (world, _leader) = draining(&json!({"connectionsDrainSeconds": 0})).await;
    mark(&world, "one", "True", "ProbesFailed", "m");
    world.until("the pod leaves", |world| !world.has_pod("web")).await;
    let confirmed = world.node_status("m", "one").load_balancer.unwrap().confirmed_time;
    sleep(3 * MINUTE).await;
    world
        .until("the gate closes", |world| state(world) == LoadBalancerState::Pending)
        .await;
    assert!(message(&world).contains("has not confirmed"), "{}", message(&world));
    assert_eq!(
        world.node_status("m", "one").load_balancer.unwrap().confirmed_time,
        confirmed,
        "it stays"
    );
    world.pod("one", "late", &json!({})).await;
    sleep(MINUTE).await;
    assert!(world.evacuation("late").await.is_none());
    mark(&world, "one", "True", "ProbesFailed", "m");
    world.until("the late pod leaves", |world| !world.has_pod("late")).await;
}
