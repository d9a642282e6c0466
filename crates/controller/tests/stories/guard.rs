//! `adminState.minimumInService`: what leader and agents together leave in service, whatever the signals.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use headgate_controller::admin_state::GuardSettings;
use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{NodeReader, NodeReport, SignalMatcher, SignalRules, SignalSettings};
use headgate_core::settings::IntOrPercent;
use headgate_test_kubernetes::{Fault, RecordedRequest};
use hyper::Method;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::rows::cluster::{DOWN, DRAINING, OUT_OF_SERVICE, TestCluster};
use super::world::{ENFORCE, SECOND, World, entries, load_balancer, one_pool, scope, two_load_balancers};

const MAINTENANCE: &str = "headgate.dev/maintenance";
const HELD_BACK: &str = "NodeKeptInService";

/// What ships.
pub(crate) static SHIPPED_GUARD: LazyLock<GuardSettings> = LazyLock::new(|| GuardSettings {
    max_new_down: IntOrPercent::Percent(25),
    ..GUARD.clone()
});

/// The same without the brake, which delays a change of many nodes by minutes.
pub(crate) static GUARD: LazyLock<GuardSettings> = LazyLock::new(|| GuardSettings {
    minimum_in_service: IntOrPercent::Int(1),
    max_new_down: IntOrPercent::ALL,
    health_port: 10456,
    health_rules: SignalSettings::default().health(),
    may_write_holds: true,
});

/// What an agent with the settings of the leader would answer at `/healthz` right after it read its Node.
pub(crate) async fn is_healthy(world: &World, number: usize) -> bool {
    let nodes = Api::<Node>::all(world.client.clone());
    let node = nodes.get(&format!("node-{number}")).await.unwrap();
    let rules = world.guard.health_rules.clone();
    let node =
        NodeReader::own(rules.clone()).read(serde_json::from_value(serde_json::to_value(node).unwrap()).unwrap());
    let now = world.clock.now();
    let hold = node.hold.as_ref();
    let is_stale = hold.is_some_and(|hold| now.wall.duration_since(hold.renewed_at).as_secs() >= 300);
    let report = NodeReport::initial(None, &rules, Clock::System.now()).with_node(node, now);
    // A cordon has lasted.
    let report = report.at(Moment {
        mono: now.mono + 3600 * SECOND,
        ..now
    });
    report.is_eligible() || (!is_stale && report.is_held(&[], now.mono))
}

async fn healthy(cluster: &TestCluster, nodes: usize) -> BTreeSet<usize> {
    let mut healthy = BTreeSet::new();
    for number in 1..=nodes {
        if is_healthy(&cluster.world, number).await {
            healthy.insert(number);
        }
    }
    healthy
}

async fn cluster(nodes: usize, resources: &[Value], guard: GuardSettings) -> TestCluster {
    TestCluster::configured(nodes, resources, |world| world.guard = guard).await
}

/// The value of the annotation on a Node.
async fn annotation(cluster: &TestCluster, number: usize) -> Option<Value> {
    let nodes = Api::<Node>::all(cluster.world.client.clone());
    let node = nodes.get(&format!("node-{number}")).await.unwrap();
    let value = node.metadata.annotations?.remove("headgate.dev/hold")?;
    Some(serde_json::from_str(&value).unwrap())
}

#[tokio::test(start_paused = true)]
async fn taint_on_all_nodes_leaves_one_in_service_on_both_paths() {
    let cluster = cluster(3, &two_load_balancers(3), GUARD.clone()).await;
    for number in 1..=3 {
        cluster.taint(number, &[MAINTENANCE]);
    }
    cluster.until_down(&["node-2", "node-3"]).await;
    sleep(5 * SECOND).await;
    assert_eq!(healthy(&cluster, 3).await, [1].into());
    let hold = annotation(&cluster, 1).await.unwrap();
    assert_eq!(
        hold["pools"],
        json!([
            "kubernetes-internal/kubernetes",
            "kubernetes/kubernetes",
            "kubernetes/kubernetes-IPv6"
        ])
    );
    assert_eq!(
        (&hold["signals"], &hold["probesHeadgate"]),
        (&json!([MAINTENANCE]), &json!(true))
    );
    assert_eq!(cluster.notes(HELD_BACK, "node-1").await.len(), 1);
    assert!(cluster.notes(DOWN, "node-1").await.is_empty());
    assert_eq!(
        cluster.metric("headgate_pool_held_back", &["kubernetes-IPv6"]),
        Some(1.0)
    );
    // An hour later it is still so, with the same choice and one event.
    sleep(3600 * SECOND).await;
    cluster.until_down(&["node-2", "node-3"]).await;
    assert_eq!(healthy(&cluster, 3).await, [1].into());
    assert_eq!(cluster.notes(HELD_BACK, "node-1").await.len(), 1);
    // The first node without a signal takes over, and the hold ends.
    cluster.taint(3, &[]);
    cluster.settle(&["node-1", "node-2"]).await;
    assert_eq!(healthy(&cluster, 3).await, [3].into());
    assert_eq!(annotation(&cluster, 1).await, None);
    let observed = || cluster.metric("headgate_admin_state_signal_to_down_seconds_count", &[]);
    assert_eq!(observed(), Some(2.0), "the first node was held back");
    for number in 1..=3 {
        cluster.taint(number, &[]);
    }
    cluster.settle(&[]).await;
    cluster.taint(1, &[MAINTENANCE]);
    cluster.settle(&["node-1"]).await;
    assert_eq!(observed(), Some(3.0));
}

#[tokio::test(start_paused = true)]
async fn next_leader_keeps_the_choice_and_renews_the_hold() {
    let mut cluster = cluster(3, &two_load_balancers(3), GUARD.clone()).await;
    cluster.taint(3, &[MAINTENANCE]);
    cluster.taint(2, &[MAINTENANCE]);
    cluster.settle(&["node-2", "node-3"]).await;
    cluster.taint(1, &[OUT_OF_SERVICE]);
    cluster.settle(&["node-1", "node-3"]).await;
    let first = annotation(&cluster, 2).await.unwrap();
    cluster.kill();
    cluster.taint(1, &[MAINTENANCE]);
    cluster.lead(ENFORCE).await;
    sleep(30 * SECOND).await;
    cluster.until_down(&["node-1", "node-3"]).await;
    let second = annotation(&cluster, 2).await.unwrap();
    assert!(
        second["renewedAt"].as_str() > first["renewedAt"].as_str(),
        "{first} {second}"
    );
    assert_eq!(cluster.notes(HELD_BACK, "node-2").await.len(), 1);
    assert_eq!(cluster.notes(HELD_BACK, "node-1").await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn leader_without_the_right_to_write_holds_says_so() {
    let guard = GuardSettings {
        may_write_holds: false,
        ..GUARD.clone()
    };
    let cluster = cluster(2, &two_load_balancers(2), guard).await;
    for number in 1..=2 {
        cluster.taint(number, &[MAINTENANCE]);
    }
    cluster.settle(&["node-2"]).await;
    assert_eq!(annotation(&cluster, 1).await, None);
    let notes = cluster.notes(HELD_BACK, "node-1").await;
    assert!(notes[0].contains("only a leader of headgate-controller"), "{notes:?}");
    let refusals = cluster.world.events().await;
    let refusals = refusals.iter().filter(|(reason, ..)| reason == "ControllerRequired");
    assert_eq!(refusals.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn maintenance_of_every_node_takes_a_quarter_of_the_pool_at_a_time() {
    let pools = [load_balancer("kubernetes", &[("kubernetes", entries(1..=8, true))])];
    let mut cluster = cluster(8, &pools, SHIPPED_GUARD.clone()).await;
    for number in 1..=8 {
        cluster.taint(number, &[MAINTENANCE]);
    }
    let down = |cluster: &TestCluster| cluster.down()["kubernetes/kubernetes"].len();
    sleep(10 * SECOND).await;
    assert_eq!(down(&cluster), 2);
    assert_eq!(
        healthy(&cluster, 8).await.len(),
        6,
        "what waits is held, so agents answer 200"
    );
    sleep(60 * SECOND).await;
    // The next leader has the times from the ledger.
    cluster.kill();
    cluster.lead(ENFORCE).await;
    sleep(200 * SECOND).await;
    assert_eq!(down(&cluster), 2);
    let notes = cluster.notes(HELD_BACK, "node-7").await;
    assert!(
        notes.iter().any(|note| note.contains("adminState.maxNewDown")),
        "{notes:?}"
    );
    sleep(60 * SECOND).await;
    assert_eq!(down(&cluster), 4, "five minutes later, and one list");
    // A node that goes away anyway does not wait.
    cluster.taint(8, &[MAINTENANCE, OUT_OF_SERVICE]);
    sleep(10 * SECOND).await;
    assert_eq!(down(&cluster), 5);
    sleep(10 * 60 * SECOND).await;
    assert_eq!(down(&cluster), 7, "adminState.minimumInService keeps one");
    assert_eq!(healthy(&cluster, 8).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn place_of_what_is_given_back_is_free_at_once() {
    // While the operation is under way, and after it.
    for millis in (0..2000).step_by(100) {
        let cluster = cluster(4, &one_pool(4), SHIPPED_GUARD.clone()).await;
        cluster.taint(1, &[MAINTENANCE]);
        cluster.settle(&["node-1"]).await;
        cluster.taint(1, &[]);
        cluster.until("a PUT", |cluster| cluster.puts().len() == 2).await;
        sleep(Duration::from_millis(millis)).await;
        cluster.taint(2, &[MAINTENANCE]);
        let took = cluster.until_down(&["node-2"]).await;
        assert!(took < 4 * SECOND, "{millis} ms after the PUT: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn condition_of_every_node_takes_a_quarter_of_the_pool_at_a_time() {
    let pools = [load_balancer("kubernetes", &[("kubernetes", entries(1..=8, true))])];
    let mut cluster = TestCluster::without_leader(8, &pools).await;
    let matcher = json!({"condition": {"type": "Bad", "status": "True"}});
    let rules = SignalRules {
        matchers: vec![SignalMatcher::parse(&matcher).unwrap()],
    };
    cluster.world.rules = rules.clone();
    cluster.world.guard = GuardSettings {
        health_rules: rules,
        ..SHIPPED_GUARD.clone()
    };
    cluster.lead(ENFORCE).await;
    for number in 1..=8 {
        cluster.node(number, |node| {
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.push(json!({"type": "Bad", "status": "True"}));
        });
    }
    sleep(10 * SECOND).await;
    assert_eq!(cluster.down()["kubernetes/kubernetes"].len(), 2);
    assert_eq!(healthy(&cluster, 8).await.len(), 6, "what waits answers 200");
}

#[tokio::test(start_paused = true)]
async fn hold_of_what_waits_covers_no_condition_of_health_alone() {
    let pools = [load_balancer("kubernetes", &[("kubernetes", entries(1..=8, true))])];
    let mut cluster = TestCluster::without_leader(8, &pools).await;
    let matcher = json!({"condition": {"type": "Bad", "status": "True"}});
    let mut health_rules = SignalSettings::default().health();
    health_rules.matchers.push(SignalMatcher::parse(&matcher).unwrap());
    cluster.world.guard = GuardSettings {
        health_rules,
        ..SHIPPED_GUARD.clone()
    };
    cluster.lead(ENFORCE).await;
    cluster.node(8, |node| {
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": "Bad", "status": "True"}));
    });
    sleep(10 * SECOND).await;
    for number in 1..=8 {
        cluster.taint(number, &[MAINTENANCE]);
    }
    sleep(10 * SECOND).await;
    assert_eq!(cluster.down()["kubernetes/kubernetes"].len(), 2);
    let healthy = healthy(&cluster, 8).await;
    assert!(healthy.len() == 5 && !healthy.contains(&8), "{healthy:?}");
}

#[tokio::test(start_paused = true)]
async fn next_leader_renews_the_hold_while_arm_does_not_answer() {
    let mut cluster = cluster(1, &two_load_balancers(1), GUARD.clone()).await;
    cluster.taint(1, &[MAINTENANCE]);
    sleep(10 * SECOND).await;
    let first = annotation(&cluster, 1).await.unwrap();
    cluster.kill();
    let rule = json!({"match": {"method": "GET", "path": "/loadBalancers$", "caller": "headgate"},
        "action": {"answer": {"status": 500}}});
    cluster.control("POST", "faults", &rule);
    cluster.lead(ENFORCE).await;
    sleep(20 * 60 * SECOND).await;
    assert_eq!(healthy(&cluster, 1).await, [1].into());
    let second = annotation(&cluster, 1).await.unwrap();
    assert_eq!(
        (&second["pools"], &second["signals"], &second["probesHeadgate"]),
        (&first["pools"], &first["signals"], &first["probesHeadgate"])
    );
    // A signal that makes the end certain ends the hold all the same.
    cluster.taint(1, &[MAINTENANCE, OUT_OF_SERVICE]);
    sleep(10 * SECOND).await;
    assert_eq!(annotation(&cluster, 1).await, None);
}

#[tokio::test(start_paused = true)]
async fn hold_is_renewed_while_nodes_are_stale() {
    let cluster = cluster(2, &two_load_balancers(2), GUARD.clone()).await;
    for number in 1..=2 {
        cluster.taint(number, &[MAINTENANCE]);
    }
    cluster.settle(&["node-2"]).await;
    cluster
        .line
        .set_for(Fault::Status(403), |request| request.path == "/api/v1/nodes");
    cluster.line.cut_watches();
    for _ in 0..20 {
        sleep(60 * SECOND).await;
        assert_eq!(healthy(&cluster, 2).await, [1].into());
    }
    cluster.line.set(Fault::None);
    for _ in 0..90 {
        sleep(SECOND).await;
        assert_eq!(healthy(&cluster, 2).await, [1].into());
    }
    cluster.until_down(&["node-2"]).await;
    assert_eq!(cluster.notes(HELD_BACK, "node-1").await.len(), 1);
}

/// Two pools with one node each, so that both nodes are held.
fn two_small_pools() -> Vec<Value> {
    vec![load_balancer(
        "kubernetes",
        &[("a", entries([1], false)), ("b", entries([2], false))],
    )]
}

fn patches_node_1(request: &RecordedRequest) -> bool {
    request.method == Method::PATCH && request.path == "/api/v1/nodes/node-1"
}

/// The patches of node-1 that a fault was applied to.
static FAILED_PATCHES: AtomicUsize = AtomicUsize::new(0);

fn counts_patches_of_node_1(request: &RecordedRequest) -> bool {
    let is_one = patches_node_1(request);
    FAILED_PATCHES.fetch_add(usize::from(is_one), Ordering::Relaxed);
    is_one
}

#[tokio::test(start_paused = true)]
async fn late_write_of_an_earlier_leader_changes_no_hold() {
    let mut cluster = cluster(1, &two_load_balancers(1), GUARD.clone()).await;
    cluster.line.set_for(Fault::Late(90 * SECOND), patches_node_1);
    cluster.taint(1, &[MAINTENANCE]);
    sleep(15 * SECOND).await;
    assert_eq!(annotation(&cluster, 1).await, None);
    cluster.kill();
    cluster.taint(1, &[MAINTENANCE, DRAINING]);
    cluster.lead(ENFORCE).await;
    sleep(10 * SECOND).await;
    let hold = annotation(&cluster, 1).await.unwrap();
    assert_eq!(hold["signals"], json!([DRAINING, MAINTENANCE]));
    for _ in 0..240 {
        sleep(SECOND / 2).await;
        let hold = annotation(&cluster, 1).await.unwrap();
        assert_eq!(hold["signals"], json!([DRAINING, MAINTENANCE]));
        assert_eq!(healthy(&cluster, 1).await, [1].into());
    }
}

#[tokio::test(start_paused = true)]
async fn hold_that_cannot_be_written_delays_no_other() {
    for fault in [Fault::Status(403), Fault::CutOff] {
        let cluster = cluster(2, &two_small_pools(), GUARD.clone()).await;
        cluster.line.set_for(fault, counts_patches_of_node_1);
        FAILED_PATCHES.store(0, Ordering::Relaxed);
        cluster.taint(1, &[MAINTENANCE]);
        sleep(SECOND).await;
        cluster.taint(2, &[MAINTENANCE]);
        sleep(SECOND).await;
        assert!(annotation(&cluster, 2).await.is_some(), "{fault:?}");
        // Renewals and removals do not wait, either.
        for _ in 0..20 {
            sleep(30 * SECOND).await;
            assert_eq!(healthy(&cluster, 2).await, [2].into(), "{fault:?}");
        }
        cluster.taint(2, &[]);
        sleep(4 * SECOND).await;
        assert_eq!(annotation(&cluster, 2).await, None, "{fault:?}");
        assert_eq!(annotation(&cluster, 1).await, None, "{fault:?}");
        let patches = FAILED_PATCHES.load(Ordering::Relaxed);
        assert!((15..40).contains(&patches), "a backoff of its own: {patches}");
        cluster.line.set(Fault::None);
        sleep(35 * SECOND).await;
        assert_eq!(healthy(&cluster, 2).await, [1, 2].into(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_configuration_ends_no_hold() {
    let mut far = load_balancer("far", &[("pool", entries([1], false))]);
    far["id"] = json!("/subscriptions/sub/resourceGroups/other/providers/Microsoft.Network/loadBalancers/far");
    let resources = [two_load_balancers(3), vec![far]].concat();
    let cluster = cluster(3, &resources, GUARD.clone()).await;
    for number in 1..=3 {
        cluster.taint(number, &[MAINTENANCE]);
    }
    let is_settled = |cluster: &TestCluster| {
        let down = cluster.down().into_iter().filter(|(pool, _)| pool != "far/pool");
        down.into_iter()
            .all(|(_, nodes)| nodes == ["node-2".to_owned(), "node-3".to_owned()].into())
    };
    cluster.until("two nodes Down", is_settled).await;
    sleep(5 * SECOND).await;
    // Another `azure.clusterName`, and another resource group: the other two nodes stay `Down`, so the held one must serve.
    for wrong in [scope("rg", &["wrong"]), scope("other", &["kubernetes"])] {
        cluster.reconfigure(Some(wrong));
        for _ in 0..30 {
            sleep(20 * SECOND).await;
            assert_eq!(healthy(&cluster, 3).await, [1].into());
            assert!(is_settled(&cluster));
        }
    }
    // A hold does not outlive the signals, whatever the configuration is.
    cluster.taint(1, &[]);
    sleep(700 * SECOND).await;
    assert_eq!(annotation(&cluster, 1).await, None);
    cluster.reconfigure(None);
    sleep(60 * SECOND).await;
    assert!(is_settled(&cluster));
    assert_eq!(healthy(&cluster, 3).await, [1].into());
}
