//! Nodes that are taken: from the notice to the last pod.

use headgate_core::node::{DRAINING_TAINT, SPOT_NOTICE_ANNOTATION};
use headgate_maintenance::automatic::{AutomaticMaintenances, Cause};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::world::{MINUTE, NAMESPACE, SECOND, World, is_about};

const AUTOMATIC: &str = "automatic-one";

async fn world(nodes: &[&str]) -> World {
    let mut world = World::new(nodes).await;
    world.automatic = AutomaticMaintenances {
        causes: Cause::ALL.map(|cause| (cause, None)).into(),
    };
    world
}

/// The agent records an eviction in so many seconds.
fn announce(world: &World, node: &str, seconds: i64) {
    let at = world.now() + SignedDuration::from_secs(seconds);
    let record = json!({"eventId": "e", "notBefore": at.to_string(), "bootId": "b"}).to_string();
    world.fake.change::<Node>("", node, |node| {
        node["metadata"]["annotations"] = json!({SPOT_NOTICE_ANNOTATION: record});
        node["spec"]["taints"] = json!([{"key": DRAINING_TAINT, "value": "spot-eviction", "effect": "NoSchedule"}]);
    });
}

/// The notes of the events about a pod that say that its grace period was cut.
async fn cuts(world: &World, pod: &str) -> Vec<String> {
    let mut events = world.events(NAMESPACE).await;
    events.retain(|event| event.reason.as_deref() == Some("GracePeriodCut") && is_about(event, pod));
    events.into_iter().filter_map(|event| event.note).collect()
}

/// The first number of seconds after a text.
fn seconds_after(note: &str, text: &str) -> i64 {
    let rest = note.split_once(text).unwrap().1;
    rest.split(' ').next().unwrap().parse().unwrap()
}

fn grace(seconds: i64) -> Value {
    json!({"spec": {"terminationGracePeriodSeconds": seconds}})
}

#[tokio::test(start_paused = true)]
async fn a_spot_node_leaves_its_load_balancer_first_and_its_pods_have_the_rest_of_the_notice() {
    let mut world = world(&["one", "two"]).await;
    world.pod("one", "short", &grace(5)).await;
    world.pod("one", "long", &grace(600)).await;
    world.daemon_pod("one", "log", false).await;
    let _leader = world.lead().await;
    world.observe_in("one");
    sleep(10 * SECOND).await;
    assert!(world.maintenance(AUTOMATIC).is_none());

    let noticed = Instant::now();
    announce(&world, "one", 30);
    world.until_tainted("one").await;
    assert!(noticed.elapsed() <= 2 * SECOND, "{:?}", noticed.elapsed());
    let maintenance = world.maintenance(AUTOMATIC).unwrap();
    assert_eq!(maintenance.spec.reason, "Azure evicts the VM");
    assert_eq!(world.event_counts("one").await["MaintenanceCreated"], 1);
    sleep(SECOND).await;
    assert_eq!(world.requests("POST", "/eviction"), 0, "in service");
    world.observe_out("one");
    world.until_gone(&["short", "long"]).await;
    let told = noticed.elapsed().as_secs();
    assert!((3..10).contains(&told), "{told}");
    assert_eq!(cuts(&world, "short").await, [""; 0], "there is time for 5 s");
    let [note] = &cuts(&world, "long").await[..] else {
        panic!("one event")
    };
    assert!(note.starts_with("the grace period of 600 s is cut to "), "{note}");
    let left = seconds_after(note, "cut to ");
    assert!((20..=27).contains(&left), "{note}");
    world.until_gone(&["log"]).await;
    assert!(noticed.elapsed() < 30 * SECOND);
    let scale_down = &world.node("one").metadata.annotations.unwrap_or_default();
    assert!(!scale_down.contains_key("cluster-autoscaler.kubernetes.io/scale-down-disabled"));

    // The machine goes, and its Node with it.
    world.fake.delete::<Node>("", "one");
    world
        .until("nothing is left", |world| world.maintenance(AUTOMATIC).is_none())
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_holds_and_the_other_pods_leave_at_half_of_the_time() {
    let mut world = world(&["one"]).await;
    world.pod("one", "web", &json!({})).await;
    world
        .pod("one", "late", &json!({"spec": {"priority": 2_000_000_000}}))
        .await;
    world.budget("web", "web", 0).await;
    let leader = world.lead().await;
    world.observe_out("one");
    announce(&world, "one", 300);
    world.until_evacuating("web").await;
    let created = world.now();
    // The leader dies meanwhile.
    leader.kill();
    let _next = world.lead().await;
    world.until_gone(&["late"]).await;
    let after = world.now().duration_since(created).as_secs();
    assert!((100..=160).contains(&after), "{after}");
    let message = world.node_status(AUTOMATIC, "one").drain_message;
    assert!(
        message.starts_with("Evacuating all pods at once: the node is expected to be gone at"),
        "{message}"
    );
    sleep(5 * MINUTE).await;
    assert!(world.has_pod("web"), "also after the deadline");
    // It was wrong.
    sleep(5 * MINUTE).await;
    let before = world.requests("POST", "web/eviction");
    sleep(60 * MINUTE).await;
    let evictions = world.requests("POST", "web/eviction") - before;
    assert!(evictions <= 6, "{evictions}");
    world.allow("web", 1);
    world.until_gone(&["web"]).await;
    assert_eq!(cuts(&world, "web").await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_registered_again_and_taken_while_nobody_leads_is_drained() {
    let mut world = world(&["one"]).await;
    let leader = world.lead().await;
    announce(&world, "one", 600);
    world.until_tainted("one").await;
    leader.kill();
    world.fake.delete::<Node>("", "one");
    let node = json!({"metadata": {"name": "one"}, "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    world.create::<Node>("", node).await;
    announce(&world, "one", 600);
    let uid = world.node("one").metadata.uid.unwrap();
    let _leader = world.lead().await;
    world.until_tainted("one").await;
    world
        .until("the one before is gone", |world| world.maintenance(AUTOMATIC).is_none())
        .await;
    let second = world.maintenance(&format!("{AUTOMATIC}-{}", &uid[..8])).unwrap();
    assert_eq!(second.metadata.owner_references.unwrap()[0].uid, uid);
}
