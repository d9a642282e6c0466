//! A Node's signals are read once for each of its changes and kept beside it. Whatever happens, they are those that a fresh evaluation of
//! the last object gives, by the rules of the present settings, and each counts from the time that its matcher asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_core::clock::{Clock, Moment};
use headgate_core::node::{NodeReader, SignalMatcher, SignalPeriod, SignalRules};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{SignalledNodes, TargetState, TargetStates};
use crate::pool::{InterfaceCache, NodeMatcher, read_node};

/// What a Node may have, each of which is or may be a signal.
const FACTS: usize = 8;

#[derive(Clone, Debug)]
enum Step {
    /// The Node gets or loses a fact.
    Toggle(usize),
    /// A heartbeat, or another list: the same object again.
    Again,
    /// The Node is deleted and created again without facts.
    MadeAgain,
    Pass(Duration),
    /// The leader starts again with other settings.
    Reload(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..FACTS).prop_map(Step::Toggle),
        1 => Just(Step::Again),
        1 => Just(Step::MadeAgain),
        4 => (0..25_000_u64).prop_map(|millis| Step::Pass(Duration::from_millis(millis))),
        1 => (0..3_usize).prop_map(Step::Reload),
    ]
}

/// The rules of three versions of the settings.
fn rules(version: usize) -> SignalRules {
    let all = [
        json!({"taint": "example.com/drain"}),
        json!({"taint": "example.com/leaving-*"}),
        json!({"label": {"key": "state", "value": "leaving"}}),
        json!({"annotation": {"key": "leaving"}}),
        json!({"condition": {"type": "VMEventScheduled", "status": "True", "messagePrefix": "Preempt"}}),
        json!({"signal": "cordon", "after": "20s"}),
    ];
    let chosen = match version {
        0 => &all[..],
        1 => &all[..3],
        _ => &all[3..],
    };
    let matchers = chosen.iter().map(|matcher| SignalMatcher::parse(matcher).unwrap());
    SignalRules {
        matchers: matchers
            .chain((version != 1).then_some(SignalMatcher::Deletion))
            .collect(),
    }
}

fn object(uid: u32, facts: [bool; FACTS]) -> Value {
    let [drain, leaving, soon, label, annotation, condition, cordon, deleting] = facts;
    let taints = [
        (drain, "example.com/drain"),
        (leaving, "example.com/leaving-now"),
        (soon, "example.com/leaving-soon"),
    ];
    let taints: Vec<_> = taints
        .into_iter()
        .filter(|(has_it, _)| *has_it)
        .map(|(_, key)| json!({"key": key, "effect": "NoSchedule"}))
        .collect();
    let text = |has_it: bool| if has_it { "leaving" } else { "in-use" };
    let mut object = json!({
        "metadata": {"name": "n", "uid": format!("u{uid}"), "labels": {"state": text(label)}, "annotations": {"other": "x"}},
        "spec": {"taints": taints, "unschedulable": cordon},
        "status": {"conditions": [{"type": "VMEventScheduled", "status": "True",
            "message": if condition { "Preempt Scheduled: x" } else { "Freeze Scheduled: x" }}]}});
    if annotation {
        object["metadata"]["annotations"]["leaving"] = json!("x");
    }
    if deleting {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    object
}

/// What the rules say of the object alone, and since when.
#[derive(Default)]
struct Fresh(BTreeMap<String, (Instant, Duration)>);

impl Fresh {
    fn evaluate(&mut self, object: &Value, rules: &SignalRules, now: Instant) {
        let reader = NodeReader::own(rules.clone());
        let node = reader.read(serde_json::from_value(object.clone()).unwrap());
        let found = node.signals.into_iter();
        let since = |name: &String| self.0.get(name).map_or(now, |(since, _)| *since);
        self.0 = found
            .map(|(signal, after)| {
                let name = signal.to_string();
                let since = since(&name);
                (name, (since, after))
            })
            .collect();
    }

    fn split(&self, now: Instant) -> [BTreeSet<String>; 2] {
        let (counting, pending): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|(_, (since, after))| *since + *after <= now);
        [counting, pending].map(|signals| signals.into_iter().map(|(name, _)| name.clone()).collect())
    }
}

proptest! {
    #[test]
    fn kept_signals_are_those_of_a_fresh_evaluation(steps in prop::collection::vec(step(), 1..60)) {
        let start = Clock::System.now();
        let mut now = start.mono;
        let (mut uid, mut facts, mut version) = (0, [false; FACTS], 0);
        let (mut targets, mut fresh) = (TargetStates::default(), Fresh::default());
        for step in steps {
            match &step {
                Step::Toggle(fact) => facts[*fact] ^= true,
                Step::Again => {}
                Step::MadeAgain => {
                    uid += 1;
                    facts = [false; FACTS];
                    fresh = Fresh::default();
                }
                Step::Pass(time) => {
                    let end = now + *time;
                    // As the watch of the Nodes does: at each deadline.
                    let mut applied_until = now;
                    while let Some(deadline) = targets.next_deadline(applied_until).filter(|deadline| *deadline <= end) {
                        applied_until = deadline;
                        targets.advance_generation(Moment { mono: deadline, ..start });
                        targets.drop_ended_periods(deadline);
                    }
                    now = end;
                }
                Step::Reload(other) => {
                    version = *other;
                    (targets, fresh) = (TargetStates::default(), Fresh::default());
                }
            }
            let (rules, object) = (rules(version), object(uid, facts));
            if !matches!(step, Step::Pass(_)) {
                let reader = NodeReader { rules: rules.clone(), ..NodeReader::default() };
                let node = read_node(serde_json::from_value(object.clone()).unwrap(), &reader);
                targets.apply(node, Moment { mono: now, ..start });
                fresh.evaluate(&object, &rules, now);
            }
            let Some(node) = targets.nodes.by_name("n").cloned() else { continue };
            let [counting, pending] = fresh.split(now);
            let present = targets.signal_period(&node).filter(|period| period.ended_at.is_none());
            let kept = present.map(SignalPeriod::names).unwrap_or_default();
            prop_assert_eq!(&kept, &counting, "{:?}", step);
            prop_assert_eq!(targets.pending_signals(&node), pending, "{:?}", step);
            let target = targets.target_state(&node, now);
            prop_assert_eq!(target == TargetState::Down, !counting.is_empty());
            // The filters of plans are kept as well, and are those of this time.
            let named = NodeMatcher::Name("n".into());
            let is_in = |nodes: &SignalledNodes| nodes.may_match(&named, &InterfaceCache::default());
            let has_period = targets.signal_period(&node).is_some();
            prop_assert_eq!(is_in(&targets.signalled_nodes(now)), has_period && target != TargetState::None);
            let is_guarded = target == TargetState::Down || targets.is_damped(&node, now);
            prop_assert_eq!(is_in(&targets.guarded_nodes(now)), is_guarded);
        }
    }
}
