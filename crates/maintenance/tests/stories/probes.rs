//! Gates in a cluster whose load balancers no leader reads: they follow the condition that each agent writes after failed probes.

use headgate_maintenance::api::LoadBalancerState;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{Leader, MINUTE, World, at_once};

const MARKER: &str = "headgate.dev/OutOfLoadBalancers";

/// Two nodes with a pod each, of which the first is drained.
async fn draining() -> (World, Leader) {
    let mut world = World::new(&["one", "two"]).await;
    world.is_probed = true;
    world.pod("one", "web", &json!({})).await;
    world.pod("two", "db", &json!({})).await;
    let leader = world.lead().await;
    let gate = at_once();
    world.maintain("m", "Drain", &["one"], &gate).await;
    world.until_tainted("one").await;
    (world, leader)
}

/// The agent of the first node confirms that enough probes have failed.
fn confirm(world: &World) {
    let now = format!("{:.0}", world.now());
    world.fake.change::<Node>("", "one", |node| {
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        let before = conditions.iter().position(|one| one["type"] == MARKER);
        let before = before.map(|index| conditions.remove(index));
        let since = before.map_or(json!(now), |before| before["lastTransitionTime"].clone());
        conditions.push(
            json!({"type": MARKER, "status": "True", "reason": "ProbesFailed", "message": "m",
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
async fn an_agent_that_confirms_nothing_closes_the_gate_and_a_confirmation_opens_it() {
    let (world, _leader) = draining().await;
    sleep(10 * MINUTE).await;
    let waits_for = "which its agent writes with outOfLoadBalancers.failedProbes";
    assert!(message(&world).contains(waits_for), "{}", message(&world));
    assert!(world.has_pod("web"));
    confirm(&world);
    world.until_gone(&["web"]).await;
    world.until("out", |world| state(world) == LoadBalancerState::Out).await;
    let gate = world.node_status("m", "one").load_balancer.unwrap();
    assert!(gate.down_time.is_some() && gate.confirmed_time.is_some(), "{gate:?}");
    let confirmed = gate.confirmed_time;
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
    confirm(&world);
    world.until_gone(&["late"]).await;
    assert!(world.has_pod("db"));
}
