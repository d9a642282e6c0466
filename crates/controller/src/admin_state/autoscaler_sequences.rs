//! What Cluster Autoscaler 1.36.1 and Karpenter 1.14.1 and 1.9.1 write to a Node, in the measured order and time, and the verdict of
//! `/healthz` and the plan of the leader after each step.
//!
//! Times are milliseconds since the first hard signal. A leader that starts after any step plans the same as one that observed all of
//! them, because the order of arrival decides nothing.

use std::time::Duration;

use headgate_clock::{Clock, Moment};
use headgate_node::{NodeReport, SignalRules, SlimNode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::fixtures::{ledger, view};
use super::guard::{GuardInputs, GuardSettings, HeldEntries};
use super::ledger::LedgerStage;
use super::plan::{PlanInputs, Policy, plan};
use super::settings::{AdminStateMode, ForeignDown};
use super::target_states::{TargetState, TargetStates};
use crate::pool::{ClusterNodeObject, InterfaceCache};

const HARD: &str = "ToBeDeletedByClusterAutoscaler";
const SOFT: &str = "DeletionCandidateOfClusterAutoscaler";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const DISRUPTED: &str = "karpenter.sh/disrupted";
const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Before the first step.
const LEAD: i64 = 10_000;

/// One write to the Node; several in one request are several writes at the same time.
#[derive(Clone, Copy, Debug)]
enum Write {
    Taint(&'static str),
    Untaint(&'static str),
    Cordon(bool),
    Delete,
    /// Karpenter's taint and its label, in one patch.
    TaintAndLabel,
    Label,
    /// The Node object is gone.
    Gone,
    /// Nothing is written; time passes.
    Nothing,
}
use Write::{Cordon, Delete, Gone, Label, Nothing, Taint, TaintAndLabel, Untaint};

/// Time, writes, status of `/healthz`, admin state of the entry once the plan is written.
type Step = (i64, &'static [Write], u16, &'static str);

/// The name of a run and its steps.
type Sequence = (&'static str, &'static [Step]);

const SEQUENCES: [Sequence; 16] = [
    (
        "cluster-autoscaler a1: empty node",
        &[
            (-8050, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD), Cordon(true)], 503, "Down"),
            (40, &[Taint(UNSCHEDULABLE)], 503, "Down"),
            (5008, &[Gone], 503, "Down"),
        ],
    ),
    (
        "cluster-autoscaler a2: one pod to move",
        &[
            (-8100, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD), Cordon(true)], 503, "Down"),
            (12, &[Taint(UNSCHEDULABLE)], 503, "Down"),
            (10_054, &[Gone], 503, "Down"),
        ],
    ),
    (
        "cluster-autoscaler a4: without the cordon",
        &[
            (-8060, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD)], 503, "Down"),
            (5009, &[Gone], 503, "Down"),
        ],
    ),
    (
        "cluster-autoscaler: soft taint withdrawn",
        &[
            (-8050, &[Taint(SOFT)], 200, "None"),
            (-2000, &[Untaint(SOFT)], 200, "None"),
        ],
    ),
    (
        "cluster-autoscaler f1: rollback, a PDB appears during the delay",
        &[
            (-8100, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD), Cordon(true)], 503, "Down"),
            (25, &[Taint(UNSCHEDULABLE)], 503, "Down"),
            (5017, &[Untaint(HARD), Cordon(false)], 200, "Down"),
            (5025, &[Untaint(UNSCHEDULABLE)], 200, "Down"),
            (6016, &[Nothing], 200, "Down"),
            (6017, &[Nothing], 200, "None"),
            (6086, &[Untaint(SOFT)], 200, "None"),
        ],
    ),
    (
        "cluster-autoscaler f2: rollback after evictions failed for 2 min",
        &[
            (-8100, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD), Cordon(true)], 503, "Down"),
            (69, &[Taint(UNSCHEDULABLE)], 503, "Down"),
            (125_853, &[Untaint(HARD), Cordon(false)], 200, "Down"),
            (126_853, &[Untaint(UNSCHEDULABLE)], 200, "None"),
        ],
    ),
    (
        "cluster-autoscaler f3: rollback of a node that an operator had cordoned",
        &[
            (-9000, &[Cordon(true), Taint(UNSCHEDULABLE)], 200, "None"),
            (-8100, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD)], 503, "Down"),
            (5021, &[Untaint(HARD), Cordon(false)], 200, "Down"),
            (6021, &[Untaint(UNSCHEDULABLE)], 200, "None"),
        ],
    ),
    (
        "cluster-autoscaler h1: killed and restarted",
        &[
            (-8100, &[Taint(SOFT)], 200, "None"),
            (0, &[Taint(HARD), Cordon(true)], 503, "Down"),
            (7451, &[Untaint(HARD), Cordon(false)], 200, "Down"),
            (8451, &[Nothing], 200, "None"),
        ],
    ),
    (
        "karpenter k4: empty node, consolidation",
        &[
            (0, &[Taint(DISRUPTED)], 503, "Down"),
            (89, &[Delete], 503, "Down"),
            (100, &[Label], 503, "Down"),
            (5182, &[Gone], 503, "Down"),
        ],
    ),
    (
        "karpenter k6: replaced by a cheaper node",
        &[
            (0, &[Taint(DISRUPTED)], 503, "Down"),
            (2106, &[Delete], 503, "Down"),
            (2115, &[Label], 503, "Down"),
            (7462, &[Gone], 503, "Down"),
        ],
    ),
    (
        "karpenter k10: kubectl delete nodeclaim, empty node",
        &[
            (0, &[Delete], 503, "Down"),
            (16, &[TaintAndLabel], 503, "Down"),
            (4279, &[Gone], 503, "Down"),
        ],
    ),
    (
        "karpenter k1: kubectl delete nodeclaim, two pods",
        &[
            (0, &[Delete], 503, "Down"),
            (65, &[TaintAndLabel], 503, "Down"),
            (5473, &[Gone], 503, "Down"),
        ],
    ),
    (
        "karpenter k2: kubectl delete node, two pods",
        &[
            (0, &[Delete], 503, "Down"),
            (22, &[TaintAndLabel], 503, "Down"),
            (5136, &[Gone], 503, "Down"),
        ],
    ),
    (
        "karpenter k9: the replacement never registers",
        &[
            (0, &[Taint(DISRUPTED)], 503, "Down"),
            (9057, &[Untaint(DISRUPTED)], 200, "Down"),
            (10_057, &[Nothing], 200, "None"),
        ],
    ),
    (
        "karpenter 1.9.1 o3: empty node, consolidation",
        &[
            (0, &[Taint(DISRUPTED)], 503, "Down"),
            (43, &[Delete], 503, "Down"),
            (53, &[Label], 503, "Down"),
            (96, &[Gone], 503, "Down"),
        ],
    ),
    (
        "karpenter 1.9.1 o1: kubectl delete nodeclaim, empty node",
        &[
            (0, &[Delete], 503, "Down"),
            (14, &[TaintAndLabel], 503, "Down"),
            (66, &[Gone], 503, "Down"),
        ],
    ),
];

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
    let held = HeldEntries::new();
    let planned = plan(
        &view(&[("p", &[(1, entry)], true)]),
        &PlanInputs {
            guard: GuardInputs {
                settings: &GuardSettings::DISABLED,
                held: &held,
            },
            interfaces: &InterfaceCache::default(),
            targets,
            ledger: &ledger(&stage),
            policy: Policy {
                mode: AdminStateMode::Enforce,
                foreign_down: ForeignDown::Keep,
            },
            is_configured: true,
            now: now.mono,
        },
    );
    match planned.edits.first() {
        None => entry,
        Some(edit) => edit.admin_states[0].to.as_str(),
    }
}

#[test]
fn verdicts_and_plans_after_each_measured_step() {
    let (health, admin_state) = (SignalRules::default_health(), SignalRules::default_admin_state());
    for (name, steps) in SEQUENCES {
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
                report = report.with_node(read::<SlimNode>(&node).facts(&health), &health, now);
                let object = read::<ClusterNodeObject>(&node);
                let object = object.into_node(true, &admin_state, &health).unwrap();
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
