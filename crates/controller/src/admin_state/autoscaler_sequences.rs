//! What Cluster Autoscaler 1.36.1 and Karpenter 1.14.1 and 1.9.1 write to a Node, in the measured order and time, and the verdict of
//! `/healthz` and the plan of the leader after each step.
//!
//! Times are milliseconds since the first hard signal. A leader that starts after any step plans the same as one that observed all of
//! them, because the order of arrival decides nothing.

use std::time::Duration;

use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{NodeReader, NodeReport, SignalSettings};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::fixtures::{ledger, plan_inputs, view};
use super::ledger::LedgerStage;
use super::plan::plan;
use super::target_states::{TargetState, TargetStates};
use crate::pool::read_node;

mod measured;

use measured::Write::{self, Cordon, Delete, Gone, Label, Nothing, Taint, TaintAndLabel, Untaint};
use measured::{DISRUPTED, SEQUENCES};

const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Before the first step.
const LEAD: i64 = 10_000;

/// Applies a write to the Node object.
fn apply(node: &mut Value, write: Write) {
    let change_taints = |node: &mut Value, change: &dyn Fn(&mut Vec<Value>)| {
        change(node["spec"]["taints"].as_array_mut().unwrap());
    };
    let add_taint = |node: &mut Value, key: &str| {
        change_taints(node, &|taints| taints.push(json!({"key": key, "effect": "NoSchedule"})));
    };
    let add_label = |node: &mut Value| node["metadata"]["labels"] = json!({EXCLUDE: "karpenter"});
    match write {
        Taint(key) => add_taint(node, key),
        Untaint(key) => change_taints(node, &|taints| taints.retain(|taint| taint["key"] != key)),
        Cordon(is_cordoned) => node["spec"]["unschedulable"] = json!(is_cordoned),
        Delete => node["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        TaintAndLabel => {
            add_taint(node, DISRUPTED);
            add_label(node);
        }
        Label => add_label(node),
        Gone | Nothing => {}
    }
}

fn read<T: serde::de::DeserializeOwned>(node: &Value) -> T {
    serde_json::from_value(node.clone()).unwrap()
}

/// The admin state of the entry once what is planned is written.
fn after_plan(targets: &TargetStates, entry: &'static str, now: Moment) -> &'static str {
    let stage = if entry == "Down" {
        vec![("p", 1, LedgerStage::Down)]
    } else {
        Vec::new()
    };
    let planned = plan(
        &view(&[("p", &[(1, entry)], true)]),
        &plan_inputs(targets, &ledger(&stage), now),
    );
    match planned.edits.first() {
        None => entry,
        Some(edit) => edit.admin_states[0].to.as_str(),
    }
}

#[test]
fn verdicts_and_plans_after_each_measured_step() {
    let by_default = SignalSettings::default();
    let (health, admin_state) = (by_default.health(), by_default.admin_state());
    for (name, steps) in SEQUENCES.iter().copied() {
        let start = Clock::System.now();
        let mut node = json!({"metadata": {"name": "n1", "uid": "u1"}, "spec": {"taints": []},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}]}});
        let mut report = NodeReport::initial(None, &health, start);
        let (mut targets, mut entry) = (TargetStates::default(), "None");
        for (at, writes, verdict, state) in steps {
            let since_start = Duration::from_millis(u64::try_from(at + LEAD).unwrap());
            let now = Moment {
                wall: Timestamp::UNIX_EPOCH + since_start,
                mono: start.mono + since_start,
            };
            for write in *writes {
                apply(&mut node, *write);
            }
            let case = format!("{name}, {writes:?} at {at}");
            if matches!(writes, [Gone]) {
                report = report.without_node();
                targets.remove("n1");
            } else {
                report = report.with_node(read_node(read(&node), &NodeReader::own(health.clone())), now);
                let leader = NodeReader {
                    rules: admin_state.clone(),
                    health_rules: health.clone(),
                    ..NodeReader::default()
                };
                let object = read_node(read(&node), &leader);
                targets.apply(object.clone(), now);
                // Within the debounce a new leader does not know of the signal.
                if targets.target_state(&object, now.mono) != TargetState::Unchanged {
                    let mut new_leader = TargetStates::default();
                    new_leader.apply(object, now);
                    assert_eq!(after_plan(&new_leader, entry, now), *state, "{case}, of a new leader");
                }
            }
            entry = after_plan(&targets, entry, now);
            assert_eq!(if report.is_eligible() { 200 } else { 503 }, *verdict, "{case}");
            assert_eq!(entry, *state, "{case}");
            // Written once, it is not written again.
            assert_eq!(after_plan(&targets, entry, now), entry, "{case}");
        }
    }
}
