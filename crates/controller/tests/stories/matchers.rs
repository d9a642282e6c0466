//! Signals by other facts of a Node than its taints, and a cordon that must last before it counts.

use headgate_core::node::{SignalMatcher, SignalRules};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::rows::cluster::{DOWN, TestCluster};
use super::world::{ENFORCE, SECOND};

/// Three nodes and a leader with these matchers.
async fn cluster(matchers: &[Value]) -> TestCluster {
    let mut cluster = TestCluster::without_leader(3, &super::world::two_load_balancers(3)).await;
    cluster.world.rules = SignalRules {
        matchers: matchers
            .iter()
            .map(|matcher| SignalMatcher::parse(matcher).unwrap())
            .collect(),
    };
    cluster.lead(ENFORCE).await;
    cluster
}

/// The signal's name, how it begins and how it ends.
type Change<'a> = (&'a str, Box<dyn Fn(&mut Value) + 'a>, Box<dyn Fn(&mut Value) + 'a>);

#[tokio::test(start_paused = true)]
async fn node_goes_down_by_each_kind_of_matcher_and_comes_back() {
    let condition = |status: &str, message: &str| {
        json!([{"type": "Ready", "status": "True"},
        {"type": "VMEventScheduled", "status": status, "reason": "VMEventScheduled", "message": message}])
    };
    let notice = "Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT. DurationInSeconds: -1.";
    let cluster = cluster(&[
        json!({"taint": "aws-node-termination-handler/*"}),
        json!({"condition": {"type": "VMEventScheduled", "status": "True", "messagePrefix": "Preempt Scheduled:"}}),
        json!({"label": {"key": "example.com/state", "value": "leaving"}}),
        json!({"annotation": {"key": "example.com/leaving"}}),
    ])
    .await;
    let changes: [Change<'_>; 4] = [
        (
            "aws-node-termination-handler/spot-itn",
            Box::new(|node| {
                node["spec"]["taints"] =
                    json!([{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]);
            }),
            Box::new(|node| node["spec"]["taints"] = json!([])),
        ),
        (
            "condition:VMEventScheduled=True,message=Preempt Scheduled:*",
            Box::new(|node| node["status"]["conditions"] = condition("True", notice)),
            // The same condition is True for a freeze.
            Box::new(|node| {
                node["status"]["conditions"] = condition("True", "Freeze Scheduled: Wed, 26 Feb 2025 10:13:13 GMT.");
            }),
        ),
        (
            "label:example.com/state=leaving",
            Box::new(|node| node["metadata"]["labels"] = json!({"example.com/state": "leaving"})),
            Box::new(|node| node["metadata"]["labels"] = json!({"example.com/state": "staying"})),
        ),
        (
            "annotation:example.com/leaving",
            Box::new(|node| node["metadata"]["annotations"] = json!({"example.com/leaving": "soon"})),
            Box::new(|node| node["metadata"]["annotations"] = json!({})),
        ),
    ];
    for (times, (name, begin, end)) in (1..).zip(&changes) {
        cluster.node(2, begin);
        cluster.settle(&["node-2"]).await;
        let notes = cluster.notes(DOWN, "node-2").await;
        assert!(
            notes.len() == times && notes[times - 1].contains(name),
            "{name}: {notes:?}"
        );
        cluster.node(2, end);
        cluster.settle(&[]).await;
        // The ledger forgets what was restored, so that each change has an event of its own.
        sleep(400 * SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_and_other_facts_cost_nothing() {
    let cluster = cluster(&[json!({"label": {"key": "example.com/state", "value": "leaving"}})]).await;
    for beat in 0..50 {
        cluster.node(2, |node| {
            node["metadata"]["labels"] = json!({"example.com/other": format!("{beat}")});
            node["spec"]["unschedulable"] = json!(beat % 2 == 0);
            node["status"]["conditions"] =
                json!([{"type": "Ready", "status": "True", "message": format!("beat {beat}")}]);
        });
        sleep(SECOND).await;
    }
    assert!(cluster.puts().is_empty() && cluster.world.events().await.is_empty());
}
