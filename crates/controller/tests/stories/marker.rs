//! The marker: the Node condition that says that a node has left its load balancers.

use std::collections::BTreeSet;
use std::time::Duration;

use headgate_core::node::{NodeTraffic, SignalMatcher, SignalRules, SignalSettings};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::guard::GUARD;
use super::rows::cluster::{DRAINING, TestCluster, entry};
use super::world::{ENFORCE, SECOND, arm_error, run_agent, two_load_balancers};

/// With a leader that writes the marker.
pub(crate) async fn cluster() -> TestCluster {
    TestCluster::configured(3, &two_load_balancers(3), |world| world.marker = true).await
}

pub(crate) fn marker(cluster: &TestCluster, node: usize) -> Value {
    let node = cluster.fake.peek::<Node>("", &format!("node-{node}")).unwrap();
    let node = serde_json::to_value(node).unwrap();
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions
        .into_iter()
        .find(|condition| condition["type"] == "headgate.dev/OutOfLoadBalancers");
    found.unwrap_or_default()
}

fn shows(cluster: &TestCluster, node: usize, status: &str, reason: &str) -> bool {
    let marker = marker(cluster, node);
    marker["status"] == status && marker["reason"] == reason
}

pub(crate) async fn until_shown(cluster: &TestCluster, node: usize, status: &str, reason: &str) -> Duration {
    cluster
        .until(&format!("node {node} is {status} {reason}"), |cluster| {
            shows(cluster, node, status, reason)
        })
        .await
}

/// Status writes of a Node so far.
fn status_writes(cluster: &TestCluster, node: usize) -> usize {
    let path = format!("/nodes/node-{node}/status");
    let requests = cluster.fake.requests().into_iter();
    requests
        .filter(|request| request.method == "PATCH" && request.path.ends_with(&path))
        .count()
}

/// Waits until the marker of node 2 is `False`; returns how long that took.
async fn until_false(cluster: &TestCluster) -> Duration {
    let is_false = |cluster: &TestCluster| marker(cluster, 2)["status"] == "False";
    cluster.until("it is False", is_false).await
}

/// Another writer sets node 2 in service.
async fn undo(cluster: &TestCluster) {
    cluster
        .foreign_state("kubernetes", "kubernetes", "node-2", "None")
        .await;
}

/// Someone else, or a request that was delayed, writes the condition of a Node.
fn overwrite(cluster: &TestCluster, node: usize, status: &str) {
    cluster.node(node, |node| {
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "headgate.dev/OutOfLoadBalancers");
        conditions.push(
            json!({"type": "headgate.dev/OutOfLoadBalancers", "status": status, "reason": "Other", "message": "m"}),
        );
    });
}

#[tokio::test(start_paused = true)]
async fn a_transition_costs_two_writes_and_an_end_one() {
    let cluster = cluster().await;
    sleep(60 * SECOND).await;
    assert!((1..=3).all(|node| marker(&cluster, node).is_null() && status_writes(&cluster, node) == 0));
    // Each pool takes a second, so the missing pools change meanwhile.
    cluster.configure(&json!({"operationDelay": "1s"}));
    cluster.taint(2, &[DRAINING]);
    until_shown(&cluster, 2, "False", "NotDown").await;
    let message = marker(&cluster, 2)["message"].to_string();
    assert!(message.contains("kubernetes-internal/kubernetes"), "{message}");
    let missing: Vec<_> = cluster
        .down()
        .into_iter()
        .filter(|(_, down)| !down.contains("node-2"))
        .map(|(pool, _)| pool)
        .collect();
    assert!(
        !missing.is_empty() && missing.iter().all(|pool| message.contains(pool)),
        "{message}, missing are {missing:?}"
    );
    let took = until_shown(&cluster, 2, "True", "AdminStateDown").await;
    assert!(took > SECOND && took < 20 * SECOND, "{took:?}");
    assert!(cluster.down().values().all(|down| down.contains("node-2")));
    assert_eq!(status_writes(&cluster, 2), 2);
    let since = marker(&cluster, 2)["lastTransitionTime"].clone();
    let beat = marker(&cluster, 2)["lastHeartbeatTime"].clone();
    sleep(150 * SECOND).await;
    assert_eq!(status_writes(&cluster, 2), 4, "one confirmation a minute");
    assert_ne!(marker(&cluster, 2)["lastHeartbeatTime"], beat);
    assert_eq!(marker(&cluster, 2)["lastTransitionTime"], since);
    cluster.taint(2, &[]);
    until_shown(&cluster, 2, "False", "NoSignal").await;
    assert!(
        cluster.down().values().any(|down| !down.is_empty()),
        "before anything is restored"
    );
    sleep(20 * 60 * SECOND).await;
    assert_eq!(
        status_writes(&cluster, 2),
        5,
        "one write at the end, and no confirmation after it"
    );
    assert_ne!(marker(&cluster, 2)["lastTransitionTime"], since);
    assert!([1, 3].iter().all(|node| status_writes(&cluster, *node) == 0));
}

#[tokio::test(start_paused = true)]
async fn the_shared_lease_is_requested_before_anything_is_said_about_the_node() {
    let cluster = cluster().await;
    cluster.taint(1, &[DRAINING]);
    until_shown(&cluster, 1, "True", "AdminStateDown").await;
    sleep(60 * SECOND).await;
    let before = cluster.fake.requests().len();
    cluster.taint(2, &[DRAINING]);
    until_shown(&cluster, 2, "False", "NotDown").await;
    let requests = cluster.fake.requests().split_off(before);
    let first = |method: &str, path: &str| {
        let mut sent = requests.iter();
        let found = sent.find(|request| request.method == method && request.path.ends_with(path));
        found.unwrap_or_else(|| panic!("no {method} of {path}")).at
    };
    let lease = first("PUT", "/leases/aks-managed-resource-locker");
    let marker = first("PATCH", "/nodes/node-2/status");
    assert!(lease < marker, "{:?}", lease - marker);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_cannot_be_written_keeps_it_false_and_a_confirmation_names_it() {
    let cluster = cluster().await;
    cluster.fault(
        "PUT",
        "kubernetes-internal",
        None,
        &arm_error(409, "AnotherOperationInProgress"),
    );
    cluster.taint(2, &[DRAINING]);
    sleep(40 * SECOND).await;
    assert!(shows(&cluster, 2, "False", "NotDown"), "{:#}", marker(&cluster, 2));
    let message = marker(&cluster, 2)["message"].to_string();
    assert!(
        message.contains("kubernetes-internal/kubernetes") && !message.contains("kubernetes/kubernetes-IPv6"),
        "{message}"
    );
    assert_eq!(
        status_writes(&cluster, 2),
        2,
        "the first write, and a confirmation after 30 s"
    );
    cluster.clear_faults();
    cluster.until_down(&["node-2"]).await;
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
}

#[tokio::test(start_paused = true)]
async fn after_a_foreign_write_it_is_wrong_for_a_second_or_for_fifteen_without_the_lease() {
    let cluster = cluster().await;
    cluster.taint(2, &[DRAINING]);
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    sleep(5 * SECOND).await;
    // A repair takes a while.
    cluster.configure(&json!({"operationDelay": "5s"}));
    undo(&cluster).await;
    let took = until_false(&cluster).await;
    assert!(took <= 15 * SECOND + SECOND / 2, "{took:?}");
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    sleep(10 * SECOND).await;

    assert!(cluster.take_arm_lease().await);
    undo(&cluster).await;
    // The foreign operation ends before its writer releases the Lease.
    sleep(6 * SECOND).await;
    cluster.release_arm_lease().await;
    let took = until_false(&cluster).await;
    assert!(took <= SECOND, "{took:?}");
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
}

#[tokio::test(start_paused = true)]
async fn a_foreign_write_while_the_pool_writer_waits_for_arm_is_seen_by_the_next_list() {
    let cluster = cluster().await;
    cluster.taint(2, &[DRAINING]);
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    sleep(20 * SECOND).await;
    // The writer of both pools of this load balancer waits for the answer to its PUT for another node.
    cluster.fault("PUT", "loadBalancers/kubernetes/", Some(1), &json!({"stall": "90s"}));
    cluster.taint(3, &[DRAINING]);
    sleep(5 * SECOND).await;
    assert!(shows(&cluster, 2, "True", "AdminStateDown"));
    undo(&cluster).await;
    let took = until_false(&cluster).await;
    assert!(took <= 15 * SECOND + SECOND / 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_added_while_the_pool_writer_waits_for_arm_is_seen_by_the_next_list() {
    let cluster = cluster().await;
    let mut removed = Value::Null;
    cluster
        .foreign("kubernetes", "kubernetes", |document| {
            removed = entry(document, "node-2").clone();
            let entries = document["properties"]["loadBalancerBackendAddresses"].as_array_mut();
            entries.unwrap().retain(|entry| entry["name"] != "node-2");
        })
        .await;
    cluster.taint(2, &[DRAINING]);
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    sleep(20 * SECOND).await;
    cluster.fault("PUT", "loadBalancers/kubernetes/", Some(1), &json!({"stall": "90s"}));
    cluster.taint(3, &[DRAINING]);
    sleep(5 * SECOND).await;
    assert!(shows(&cluster, 2, "True", "AdminStateDown"));
    cluster
        .foreign("kubernetes", "kubernetes", |document| {
            let entries = document["properties"]["loadBalancerBackendAddresses"].as_array_mut();
            entries.unwrap().push(removed);
        })
        .await;
    let took = until_false(&cluster).await;
    assert!(took <= 15 * SECOND + SECOND / 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_planned_before_the_node_had_its_addresses_does_not_prove_that_it_is_out() {
    // Another Node that claims its addresses until it is deleted, or none, and its own that come later.
    for is_claimed in [false, true] {
        let mut cluster = TestCluster::without_leader(4, &two_load_balancers(4)).await;
        cluster.world.marker = true;
        let mut addresses = Value::Null;
        cluster.node(2, |node| addresses = node["status"]["addresses"].clone());
        let mut name = "node-2";
        if is_claimed {
            cluster.node(1, |node| node["status"]["addresses"] = addresses.clone());
            // An entry that names a claimant is its own.
            name = "unnamed";
            for (load_balancer, pool) in [
                ("kubernetes", "kubernetes"),
                ("kubernetes", "kubernetes-IPv6"),
                ("kubernetes-internal", "kubernetes"),
            ] {
                let rename = |pool: &mut Value| entry(pool, "node-2")["name"] = json!(name);
                cluster.foreign(load_balancer, pool, rename).await;
            }
        } else {
            cluster.node(2, |node| node["status"]["addresses"] = json!([]));
        }
        cluster.lead(ENFORCE).await;
        cluster.taint(2, &[DRAINING]);
        sleep(20 * SECOND).await;
        assert_ne!(marker(&cluster, 2)["status"], "True");
        cluster.fault("PUT", "loadBalancers/kubernetes/", Some(1), &json!({"stall": "90s"}));
        cluster.taint(3, &[DRAINING]);
        sleep(5 * SECOND).await;
        if is_claimed {
            cluster.node(1, |node| node["status"]["addresses"] = json!([]));
        } else {
            cluster.node(2, |node| node["status"]["addresses"] = addresses.clone());
        }
        let began = Instant::now();
        while marker(&cluster, 2)["status"] != "True" {
            sleep(SECOND / 2).await;
            assert!(began.elapsed() < 180 * SECOND);
        }
        let down = cluster.down();
        assert!(down.values().all(|down| down.contains(name)), "{is_claimed}: {down:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_lists_and_a_new_leader_never_leave_it_true_without_proof() {
    let mut cluster = cluster().await;
    cluster.taint(2, &[DRAINING]);
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    cluster.fault("GET", "", None, &json!({"answer": {"status": 503}}));
    let took = until_shown(&cluster, 2, "False", "NotRead").await;
    assert!(took <= 46 * SECOND, "{took:?}");
    cluster.clear_faults();
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    // The next leader confirms it and writes nothing else.
    let writes = status_writes(&cluster, 2);
    cluster.kill();
    cluster.lead(ENFORCE).await;
    sleep(5 * SECOND).await;
    assert!(shows(&cluster, 2, "True", "AdminStateDown"));
    assert_eq!(status_writes(&cluster, 2) - writes, 1);
    // The signal ends while no instance leads.
    cluster.kill();
    sleep(5 * SECOND).await;
    cluster.taint(2, &[]);
    cluster.lead(ENFORCE).await;
    until_shown(&cluster, 2, "False", "NoSignal").await;
}

#[tokio::test(start_paused = true)]
async fn slow_lists_leave_it_true_until_the_last_one_is_too_old() {
    // The time for a request is a minute.
    for (stall, is_too_old) in [("30s", false), ("42s", false), ("58s", true)] {
        let cluster = cluster().await;
        cluster.fault("GET", "/loadBalancers$", None, &json!({"stall": stall}));
        cluster.taint(2, &[DRAINING]);
        until_shown(&cluster, 2, "True", "AdminStateDown").await;
        let mut messages = BTreeSet::new();
        for _ in 0..300 {
            sleep(SECOND).await;
            let marker = marker(&cluster, 2);
            if marker["status"] != "True" {
                messages.insert(marker["message"].to_string());
            }
        }
        assert_eq!(messages.len(), usize::from(is_too_old), "{stall}: {messages:?}");
        let says_so = |message: &String| message.contains("not listed: the last list is older than 45 s");
        assert!(messages.iter().all(says_so), "{stall}: {messages:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cordoned_node_stays_out_for_a_new_leader_although_its_cordon_must_last() {
    for (after, without_leader, shown) in [
        ("60s", Duration::ZERO, ("True", "AdminStateDown")),
        ("10m", Duration::ZERO, ("True", "AdminStateDown")),
        // The agent has made it unknown, and it stays so until the cordon counts again.
        ("60s", 240 * SECOND, ("Unknown", "NotConfirmed")),
    ] {
        let mut cluster = TestCluster::without_leader(3, &two_load_balancers(3)).await;
        cluster.world.marker = true;
        let matcher = SignalMatcher::parse(&json!({"signal": "cordon", "after": after})).unwrap();
        cluster.world.rules = SignalRules {
            matchers: vec![matcher],
        };
        cluster.lead(ENFORCE).await;
        let (client, _) = cluster.fake.client();
        let rules = SignalSettings::default().health();
        let agent = run_agent(client, &cluster.world.clock, 2, rules, None);
        let agent = tokio::spawn(agent);
        cluster.node(2, |node| node["spec"]["unschedulable"] = json!(true));
        sleep(600 * SECOND).await;
        until_shown(&cluster, 2, "True", "AdminStateDown").await;
        cluster.kill();
        sleep(without_leader).await;
        cluster.lead(ENFORCE).await;
        for _ in 0..50 {
            assert!(
                shows(&cluster, 2, shown.0, shown.1),
                "{after}: {:#}",
                marker(&cluster, 2)
            );
            sleep(SECOND).await;
        }
        sleep(60 * SECOND).await;
        assert!(
            shows(&cluster, 2, "True", "AdminStateDown"),
            "{:#}",
            marker(&cluster, 2)
        );
        cluster.node(2, |node| node["spec"]["unschedulable"] = json!(false));
        until_shown(&cluster, 2, "False", "NoSignal").await;
        cluster.until_down(&[]).await;
        agent.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_others_wrote_is_written_again() {
    let cluster = cluster().await;
    overwrite(&cluster, 1, "True");
    let took = until_shown(&cluster, 1, "False", "NoSignal").await;
    assert!(took <= SECOND, "{took:?}");
    cluster.taint(2, &[DRAINING]);
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    for status in ["False", "Unknown"] {
        sleep(10 * SECOND).await;
        overwrite(&cluster, 2, status);
        let took = until_shown(&cluster, 2, "True", "AdminStateDown").await;
        assert!(took <= SECOND, "{took:?}");
    }
    sleep(10 * SECOND).await;
    cluster.taint(2, &[]);
    until_shown(&cluster, 2, "False", "NoSignal").await;
    sleep(10 * SECOND).await;
    overwrite(&cluster, 2, "True");
    until_shown(&cluster, 2, "False", "NoSignal").await;
}

#[tokio::test(start_paused = true)]
async fn the_agent_makes_it_unknown_three_minutes_after_the_leader_died() {
    let mut cluster = cluster().await;
    let (client, _) = cluster.fake.client();
    let rules = SignalSettings::default().health();
    let agent = run_agent(client, &cluster.world.clock, 2, rules, None);
    let agent = tokio::spawn(agent);
    cluster.taint(2, &[DRAINING]);
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    sleep(10 * 60 * SECOND).await;
    assert!(shows(&cluster, 2, "True", "AdminStateDown"), "the leader confirms it");
    cluster.kill();
    sleep(110 * SECOND).await;
    assert!(
        shows(&cluster, 2, "True", "AdminStateDown"),
        "the last confirmation is 170 s old at most"
    );
    let unknown = async {
        while !shows(&cluster, 2, "Unknown", "NotConfirmed") {
            sleep(SECOND).await;
        }
    };
    timeout(71 * SECOND, unknown).await.unwrap();
    let count = status_writes(&cluster, 2);
    sleep(10 * 60 * SECOND).await;
    assert_eq!(status_writes(&cluster, 2), count, "once");
    cluster.lead(ENFORCE).await;
    until_shown(&cluster, 2, "True", "AdminStateDown").await;
    agent.abort();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_the_guard_holds_back_is_not_out() {
    let mut cluster = TestCluster::without_leader(2, &two_load_balancers(2)).await;
    cluster.world.marker = true;
    cluster.world.guard = GUARD.clone();
    cluster.world.publish_traffic();
    cluster.lead(ENFORCE).await;
    cluster.taint(1, &["headgate.dev/maintenance"]);
    cluster.taint(2, &["headgate.dev/maintenance"]);
    sleep(90 * SECOND).await;
    let down = cluster.down();
    let (mut held, mut out) = (0, 0);
    for node in 1..=2 {
        let is_out = down.values().all(|down| down.contains(&format!("node-{node}")));
        let marker = marker(&cluster, node);
        let read = cluster.read(&format!("node-{node}"));
        if is_out {
            out += 1;
            assert_eq!(marker["status"], "True", "{marker:#}");
            assert!(matches!(read, Some(NodeTraffic::Out { since: Some(_) })), "{read:?}");
        } else {
            held += 1;
            let is_said = |detail: &str| detail.contains("kubernetes/kubernetes-IPv6");
            assert!(
                matches!(&read, Some(NodeTraffic::HeldBack { detail }) if is_said(detail)),
                "{read:?}"
            );
            assert!(
                marker["status"] == "False" && marker["reason"] == "NotDown",
                "{marker:#}"
            );
            let message = marker["message"].as_str().unwrap();
            assert!(message.contains("The guard holds the node back"), "{marker:#}");
        }
    }
    assert!(held == 1 && out == 1, "{down:?}");
}

#[tokio::test(start_paused = true)]
async fn node_without_an_entry_is_out_and_a_recreated_node_is_not() {
    let cluster = cluster().await;
    for (load_balancer, pool) in [
        ("kubernetes", "kubernetes"),
        ("kubernetes", "kubernetes-IPv6"),
        ("kubernetes-internal", "kubernetes"),
    ] {
        cluster
            .foreign(load_balancer, pool, |document| {
                let entries = document["properties"]["loadBalancerBackendAddresses"]
                    .as_array_mut()
                    .unwrap();
                entries.retain(|entry| entry["name"] != "node-3");
            })
            .await;
    }
    sleep(20 * SECOND).await;
    cluster.taint(3, &[DRAINING]);
    until_shown(&cluster, 3, "True", "AdminStateDown").await;
    let message = marker(&cluster, 3)["message"].to_string();
    assert!(message.contains("without an entry of this node"), "{message}");
    cluster.remove_node(3).await;
    cluster.add_node(3).await;
    sleep(60 * SECOND).await;
    assert!(marker(&cluster, 3).is_null(), "{:#}", marker(&cluster, 3));
}
