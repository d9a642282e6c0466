//! `adminState.minimumInService` and the signals for `/healthz`: of all kinds, also those that agents alone follow, and those that
//! agents count by their own clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_controller::admin_state::GuardSettings;
use headgate_core::node::{NodeReader, NodeReport, SignalMatcher, SignalRules};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::guard::GUARD;
use super::rows::cluster::TestCluster;
use super::world::{ENFORCE, SECOND, address, arm_error, entries, load_balancer, scope, two_load_balancers};

const MAINTENANCE: &str = "headgate.dev/maintenance";
const NODES: usize = 3;

fn rules(matchers: &[Value]) -> SignalRules {
    SignalRules {
        matchers: matchers
            .iter()
            .map(|matcher| SignalMatcher::parse(matcher).unwrap())
            .collect(),
    }
}

/// Three nodes without a leader, with these signals for admin states and for health answers.
async fn cluster(admin_state: &[Value], health: &[Value]) -> TestCluster {
    let mut cluster = TestCluster::without_leader(NODES, &two_load_balancers(NODES)).await;
    cluster.world.rules = rules(admin_state);
    cluster.world.guard = GuardSettings {
        health_rules: rules(health),
        ..GUARD.clone()
    };
    cluster
}

fn cordon(cluster: &TestCluster, number: usize, is_cordoned: bool) {
    cluster.node(number, |node| node["spec"]["unschedulable"] = json!(is_cordoned));
}

fn cordon_all(cluster: &TestCluster, is_cordoned: bool) {
    for number in 1..=NODES {
        cordon(cluster, number, is_cordoned);
    }
}

/// The hold on a Node.
fn hold(cluster: &TestCluster, number: usize) -> Option<Value> {
    let node: Node = cluster.fake.peek("", &format!("node-{number}"))?;
    let value = node.metadata.annotations?.remove("headgate.dev/hold")?;
    Some(serde_json::from_str(&value).unwrap())
}

/// The agents of all nodes; each counts signals by its own clock.
#[derive(Default)]
struct Agents(BTreeMap<usize, NodeReport>);

impl Agents {
    /// The nodes that answer 200.
    fn observe(&mut self, cluster: &TestCluster) -> BTreeSet<usize> {
        let (rules, now) = (&cluster.world.guard.health_rules, cluster.world.clock.now());
        let mut healthy = BTreeSet::new();
        for number in 1..=NODES {
            let node: Node = cluster.fake.peek("", &format!("node-{number}")).unwrap();
            let node = serde_json::from_value(serde_json::to_value(node).unwrap()).unwrap();
            let node = NodeReader::own(rules.clone()).read(node);
            let report = self.0.remove(&number);
            let report = report.unwrap_or_else(|| NodeReport::initial(None, rules, now));
            let report = report.with_node(node, now).at(now);
            if report.is_eligible() || report.is_held(&[], now.mono) {
                healthy.insert(number);
            }
            self.0.insert(number, report);
        }
        healthy
    }

    /// Observes everything for this time; fails if a pool is without an entry that is neither `Down` nor 503 for longer than `gap`.
    /// Returns the nodes that answer 200 at the end.
    async fn run(&mut self, cluster: &TestCluster, time: Duration, gap: Duration) -> BTreeSet<usize> {
        let (end, mut served_at) = (Instant::now() + time, Instant::now());
        loop {
            let healthy = self.observe(cluster);
            let down = cluster.down();
            let serves = |down: &BTreeSet<String>| healthy.iter().any(|node| !down.contains(&format!("node-{node}")));
            if down.values().all(serves) {
                served_at = Instant::now();
            }
            assert!(
                served_at.elapsed() <= gap,
                "nothing in service for {:?}, {:?} before the end: {healthy:?} answer 200, {down:?} are Down",
                served_at.elapsed(),
                end - Instant::now()
            );
            if Instant::now() >= end {
                return healthy;
            }
            sleep(SECOND / 4).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn signal_of_any_kind_that_only_agents_follow_leaves_one_in_service() {
    let mut cluster = cluster(
        &[json!({"taint": MAINTENANCE})],
        &[
            json!({"taint": "aws-node-termination-handler/*"}),
            json!({"label": {"key": "example.com/state", "value": "leaving"}}),
            json!({"annotation": {"key": "example.com/leaving"}}),
            json!({"signal": "cordon", "after": "0s"}),
        ],
    )
    .await;
    cluster.lead(ENFORCE).await;
    let mut agents = Agents::default();
    let taint = json!([{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]);
    for (name, pointer, begin, end) in [
        ("aws-node-termination-handler/spot-itn", "taints", taint, json!([])),
        ("unschedulable", "unschedulable", json!(true), json!(false)),
        (
            "label:example.com/state=leaving",
            "labels",
            json!("leaving"),
            json!("staying"),
        ),
        (
            "annotation:example.com/leaving",
            "annotations",
            json!("soon"),
            Value::Null,
        ),
    ] {
        let set = |number: usize, value: &Value| {
            cluster.node(number, |node| match pointer {
                "labels" => node["metadata"]["labels"] = json!({"example.com/state": value}),
                "annotations" if value.is_null() => {
                    node["metadata"]["annotations"]
                        .as_object_mut()
                        .unwrap()
                        .remove("example.com/leaving");
                }
                "annotations" => node["metadata"]["annotations"]["example.com/leaving"] = value.clone(),
                field => node["spec"][field] = value.clone(),
            });
        };
        for number in 1..=NODES {
            set(number, &begin);
        }
        let healthy = agents.run(&cluster, 60 * SECOND, 3 * SECOND).await;
        assert_eq!(healthy, [1].into(), "{name}");
        assert_eq!(hold(&cluster, 1).unwrap()["signals"], json!([name]));
        set(3, &end);
        let healthy = agents.run(&cluster, 20 * SECOND, Duration::ZERO).await;
        assert_eq!((healthy, hold(&cluster, 1)), ([3].into(), None), "{name}");
        for number in 1..=NODES {
            set(number, &end);
        }
        agents.run(&cluster, 10 * SECOND, Duration::ZERO).await;
    }
    assert!(cluster.puts().is_empty(), "no admin state follows from these signals");
}

#[tokio::test(start_paused = true)]
async fn hold_beside_no_down_outlasts_lists_that_lack_its_load_balancer() {
    let mut far = load_balancer("far", &[("pool", entries([1], false))]);
    far["id"] = json!("/subscriptions/sub/resourceGroups/other/providers/Microsoft.Network/loadBalancers/far");
    let resources = [two_load_balancers(NODES), vec![far]].concat();
    let mut cluster = TestCluster::without_leader(NODES, &resources).await;
    cluster.world.rules = rules(&[json!({"taint": MAINTENANCE})]);
    cluster.world.guard = GuardSettings {
        health_rules: rules(&[json!({"signal": "cordon", "after": "0s"})]),
        ..GUARD.clone()
    };
    cluster.lead(ENFORCE).await;
    let mut agents = Agents::default();
    cordon_all(&cluster, true);
    assert_eq!(agents.run(&cluster, 60 * SECOND, 3 * SECOND).await, [1].into());
    assert!(cluster.puts().is_empty(), "no ledger entry names the load balancers");
    // Another resource group, whose list has none of them.
    cluster.reconfigure(Some(scope("other", &["kubernetes"])));
    assert_eq!(agents.run(&cluster, 600 * SECOND, Duration::ZERO).await, [1].into());
    cluster.reconfigure(None);
    assert_eq!(agents.run(&cluster, 60 * SECOND, Duration::ZERO).await, [1].into());
    // One list, of those that are due every five minutes.
    cluster.fault("GET", "/loadBalancers$", Some(1), &arm_error(404, "ResourceNotFound"));
    assert_eq!(agents.run(&cluster, 660 * SECOND, Duration::ZERO).await, [1].into());
    cordon_all(&cluster, false);
    agents.run(&cluster, 10 * SECOND, Duration::ZERO).await;
    assert_eq!(hold(&cluster, 1), None, "a hold ends with the signals");
}

/// The ledger has names in lower case.
#[tokio::test(start_paused = true)]
async fn hold_in_a_load_balancer_with_capital_letters_outlasts_lists_that_lack_it() {
    let internal = load_balancer("Prod-internal", &[]);
    let resources = [
        load_balancer("Prod", &[("Prod", entries(1..=NODES, false))]),
        internal.clone(),
    ];
    let mut cluster = TestCluster::without_leader(NODES, &resources).await;
    cluster.world.managed = vec!["Prod"];
    cluster.world.rules = rules(&[json!({"taint": MAINTENANCE})]);
    cluster.world.guard = GuardSettings {
        health_rules: rules(&[json!({"signal": "cordon", "after": "0s"})]),
        ..GUARD.clone()
    };
    cluster.lead(ENFORCE).await;
    let mut agents = Agents::default();
    cordon_all(&cluster, true);
    cluster.taint(2, &[MAINTENANCE]);
    agents.run(&cluster, 60 * SECOND, 3 * SECOND).await;
    assert_eq!(cluster.puts().len(), 1);
    let listed = json!({"answer": {"status": 200, "body": {"value": [internal]}}});
    cluster.fault("GET", "/loadBalancers$", None, &listed);
    agents.run(&cluster, 660 * SECOND, Duration::ZERO).await;
    assert_eq!(hold(&cluster, 1).unwrap()["pools"], json!(["Prod/Prod"]));
}

#[tokio::test(start_paused = true)]
async fn cordoned_cluster_stays_in_service_while_the_leader_changes() {
    let cordons = [json!({"signal": "cordon", "after": "60s"})];
    let mut cluster = cluster(&cordons, &cordons).await;
    cluster.lead(ENFORCE).await;
    let mut agents = Agents::default();
    cordon_all(&cluster, true);
    assert_eq!(agents.run(&cluster, 50 * SECOND, Duration::ZERO).await.len(), NODES);
    cluster.kill();
    cluster.start_leader(ENFORCE).await;
    assert_eq!(agents.run(&cluster, 600 * SECOND, Duration::ZERO).await, [1].into());
    cluster.until_down(&["node-2", "node-3"]).await;
    cordon_all(&cluster, false);
    cluster.settle(&[]).await;
    assert_eq!(agents.run(&cluster, SECOND, Duration::ZERO).await.len(), NODES);
}

#[tokio::test(start_paused = true)]
async fn new_leader_brings_a_cordoned_cluster_back_before_it_has_counted() {
    let cordons = [json!({"signal": "cordon", "after": "10m"})];
    let mut cluster = cluster(&cordons, &cordons).await;
    let mut agents = Agents::default();
    cordon_all(&cluster, true);
    let healthy = agents.run(&cluster, 601 * SECOND, 2 * SECOND).await;
    assert_eq!(healthy, BTreeSet::new(), "there is no guard without a leader");
    cluster.lead(ENFORCE).await;
    assert_eq!(agents.run(&cluster, 300 * SECOND, 5 * SECOND).await, [1].into());
    let found = hold(&cluster, 1).unwrap();
    assert_eq!(
        (&found["signals"], &found["pending"]),
        (&json!(["unschedulable"]), &json!(["unschedulable"]))
    );
    assert!(cluster.puts().is_empty(), "the leader has not counted yet");
}

#[tokio::test(start_paused = true)]
async fn held_node_is_not_set_down_before_its_cordon_has_lasted() {
    let cordons = [json!({"signal": "cordon", "after": "60s"})];
    let mut cluster = cluster(&cordons, &cordons).await;
    cluster.lead(ENFORCE).await;
    let mut agents = Agents::default();
    cordon_all(&cluster, true);
    agents.run(&cluster, 10 * SECOND, Duration::ZERO).await;
    assert!(hold(&cluster, 1).is_some());
    // The next leader takes over with the hold on the Node.
    cluster.stop().await;
    cluster.lead(ENFORCE).await;
    for number in 2..=NODES {
        cordon(&cluster, number, false);
    }
    agents.run(&cluster, 40 * SECOND, Duration::ZERO).await;
    assert!(cluster.puts().is_empty() && hold(&cluster, 1).is_none());
    agents.run(&cluster, 60 * SECOND, Duration::ZERO).await;
    cluster.until_down(&["node-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn claimant_that_is_not_ready_neither_holds_back_nor_hides_a_node() {
    let mut unnamed = entries(1..=NODES, false);
    for (number, entry) in (1..).zip(unnamed.as_array_mut().unwrap()) {
        entry["name"] = json!(format!("entry-{number}"));
    }
    let resources = [
        load_balancer("kubernetes", &[("kubernetes", entries(1..=NODES, false))]),
        load_balancer("kubernetes-internal", &[("kubernetes", unnamed)]),
    ];
    let cluster = TestCluster::configured(NODES, &resources, |world| world.guard = GUARD.clone()).await;
    cluster.node(3, |node| {
        node["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        node["status"]["addresses"] =
            json!([3, 1].map(|number| json!({"type": "InternalIP", "address": address(number, false)})));
    });
    cluster.taint(2, &[MAINTENANCE]);
    sleep(30 * SECOND).await;
    let expected: BTreeSet<String> = ["node-2".to_owned()].into();
    let unnamed: BTreeSet<String> = ["entry-2".to_owned()].into();
    let down = cluster.down();
    assert_eq!(
        (&down["kubernetes/kubernetes"], &down["kubernetes-internal/kubernetes"]),
        (&expected, &unnamed),
        "node-1 serves, although another node claims its address"
    );
    // The node that the entry names does not work: the claimant does not replace it.
    cluster.node(1, |node| {
        node["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    });
    cluster.node(3, |node| {
        node["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    });
    cluster.taint(3, &[MAINTENANCE]);
    sleep(30 * SECOND).await;
    assert_eq!(cluster.down()["kubernetes/kubernetes"], expected);
}
