//! Random changes of a Node: whenever its signals make `/healthz` answer 503, `headgate why` names each of them, with what it means and
//! what ends it; and it names none that does not count.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{NodeReader, NodeReport, SignalMatcher, SignalRules};
use serde_json::{Value, json};

use super::*;
use crate::agent_status::SignalStatus;

const RUNS: u64 = 100;
const STEPS: usize = 40;

fn rules() -> SignalRules {
    let matchers = [
        json!({"taint": "ToBeDeletedByClusterAutoscaler"}),
        json!({"taint": "example.com/leaving-*"}),
        json!({"label": {"key": "example.com/state", "value": "leaving"}}),
        json!({"annotation": {"key": "example.com/leaving"}}),
        json!({"condition": {"type": "VMEventScheduled", "status": "True", "messagePrefix": "Preempt Scheduled:"}}),
        json!({"signal": "cordon", "after": "10s"}),
    ];
    let matchers = matchers.iter().map(|matcher| SignalMatcher::parse(matcher).unwrap());
    SignalRules {
        matchers: matchers.chain(SignalMatcher::BUILT_IN).collect(),
    }
}

fn bare_node() -> Value {
    json!({"metadata": {"name": "n", "uid": "u", "labels": {}, "annotations": {}}, "spec": {"taints": []},
        "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "VMEventScheduled", "status": "False"}]}})
}

fn pick<T: Copy>(random: &mut Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

/// Changes a fact of the Node, or makes it anew.
fn change(node: &mut Value, random: &mut Rng) {
    match random.u8(..9) {
        0..=2 => {
            let key = pick(
                random,
                &[
                    "ToBeDeletedByClusterAutoscaler",
                    "example.com/leaving-now",
                    "example.com/other",
                ],
            );
            let taints = node["spec"]["taints"].as_array_mut().unwrap();
            let before = taints.len();
            taints.retain(|taint| taint["key"] != key);
            if taints.len() == before {
                taints.push(json!({"key": key, "effect": "NoSchedule"}));
            }
        }
        3 => node["metadata"]["labels"]["example.com/state"] = json!(pick(random, &["leaving", "in-use"])),
        4 => {
            let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
            if annotations.remove("example.com/leaving").is_none() {
                annotations.insert("example.com/leaving".to_owned(), json!("x"));
            }
        }
        5 => {
            let message = pick(random, &["Preempt Scheduled: x", "Freeze Scheduled: x"]);
            let status = pick(random, &["True", "False"]);
            node["status"]["conditions"][1] = json!({"type": "VMEventScheduled", "status": status, "message": message});
        }
        6 => {
            let (status, reason, message) = pick(
                random,
                &[
                    ("True", "KubeletReady", ""),
                    ("False", "KubeletNotReady", "node is shutting down"),
                ],
            );
            node["status"]["conditions"][0] =
                json!({"type": "Ready", "status": status, "reason": reason, "message": message});
        }
        7 => node["spec"]["unschedulable"] = json!(random.bool()),
        _ if node["metadata"]["deletionTimestamp"].is_null() => {
            node["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        _ => *node = bare_node(),
    }
}

/// What the agent of this report answers at `/statusz`.
fn status(report: &NodeReport) -> AgentStatus {
    let signals = report.signals().iter().map(|(signal, since)| SignalStatus {
        signal: signal.to_string(),
        since: Some(*since),
    });
    let path = |code| Some(PathStatus { code, since: None });
    let mut status = AgentStatus::example("n");
    status.node.source = report.source;
    status.node.signals = signals.collect();
    (status.node.hold, status.node.watch_error) = (None, None);
    (status.healthz, status.livez) = (path(if report.is_eligible() { 200 } else { 503 }), path(200));
    status.listeners = [("healthz".to_owned(), "[::]:10456".to_owned())].into();
    status
}

fn node_object(status: &AgentStatus) -> ObservedNode {
    ObservedNode {
        hold: None,
        signals: status.node.signals.clone(),
        taints: Vec::new(),
        cordoned: false,
        excluded: false,
        address: None,
        marker: None,
    }
}

#[test]
fn every_503_has_its_reasons_by_name() {
    let (rules, start) = (rules(), Clock::System.now());
    let mut refused = 0;
    for seed in 0..RUNS {
        let mut random = Rng::with_seed(seed);
        let (mut node, mut elapsed) = (bare_node(), Duration::ZERO);
        let mut report = NodeReport::initial(None, &rules, start);
        for _ in 0..STEPS {
            elapsed += Duration::from_millis(random.u64(..8000));
            let now = Moment {
                wall: start.wall + elapsed,
                mono: start.mono + elapsed,
            };
            change(&mut node, &mut random);
            let read = NodeReader::own(rules.clone()).read(serde_json::from_value(node.clone()).unwrap());
            report = report.with_node(read, now).at(now);

            let status = status(&report);
            let (code, object) = (status.healthz.unwrap().code, node_object(&status));
            let expected: BTreeSet<_> = report.signals().keys().map(ToString::to_string).collect();
            assert_eq!(code == 503, !expected.is_empty(), "seed {seed}: {node}");
            refused += u32::from(code == 503);
            for agent in [Ok(status), Err("no answer".to_owned())] {
                let observed = Observations {
                    agent,
                    api: Ok(object.clone()),
                    maintenances: Ok(Vec::new()),
                };
                let explanation = explain("n", &observed, now.wall);
                let named: BTreeSet<_> = explanation.reasons.iter().map(|reason| reason.name.clone()).collect();
                assert_eq!(named, expected, "seed {seed}: {node}");
                assert_eq!(
                    explanation.sent == NewConnections::No,
                    code == 503,
                    "seed {seed}: {node}"
                );
                let text = explanation.to_string();
                for reason in &explanation.reasons {
                    assert!(
                        text.contains(&reason.name) && text.contains(&reason.meaning),
                        "seed {seed}: {text}"
                    );
                    assert!(
                        !reason.ends.is_empty() && reason.since.is_some(),
                        "seed {seed}: {reason:?}"
                    );
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}
