use headgate_core::clock::Clock;
use headgate_core::node::{NodeHold, Signal, SignalRules};

use super::super::fixtures::{
    DRAIN, OUT, guarded_by, held_by_brake, held_for, hold, ledger, node, plan_inputs, planned, status, target_states,
    view,
};
use super::super::plan::{PlanInputs, plan};
use super::super::planner::LoadBalancerStatus;
use super::super::settings::AdminStateMode;
use super::*;
use crate::pool::Listing;
use crate::service_index::Unknown;
use headgate_core::settings::IntOrPercent;

const GUARD: GuardSettings = GuardSettings {
    minimum_in_service: IntOrPercent::Int(1),
    max_new_down: IntOrPercent::ALL,
    // The port of the probes of `fixtures::view`, which are TCP probes.
    health_port: 80,
    health_rules: SignalRules { matchers: Vec::new() },
    may_write_holds: true,
};

/// The holds of a cluster of these nodes with two pools.
fn holds(nodes: &[ClusterNode]) -> DesiredHolds {
    holds_beside(nodes, &Unplanned::Named(BTreeSet::new()), &GUARD)
}

/// The same while a leader has not planned all load balancers yet.
fn holds_beside(nodes: &[ClusterNode], unplanned: &Unplanned, guard: &GuardSettings) -> DesiredHolds {
    holds_for(nodes, unplanned, guard, false, |_| {})
}

/// The same, with other reasons for the entries.
fn holds_for(
    nodes: &[ClusterNode],
    unplanned: &Unplanned,
    guard: &GuardSettings,
    awaits_lookups: bool,
    change: impl Fn(&mut HeldFor),
) -> DesiredHolds {
    let now = Clock::System.now();
    let targets = target_states(nodes, now);
    let view = view(&[("a", &[(1, "-"), (2, "-")], true), ("b", &[(1, "-")], true)]);
    let mut plan = plan(
        &view,
        &PlanInputs {
            guard: guarded_by(guard),
            ..plan_inputs(&targets, &ledger(&[]), now)
        },
    );
    for entry in &mut plan.entries {
        change(&mut entry.held_for);
    }
    plan.pools[1].probes_headgate = true;
    let load_balancers = [planned(LoadBalancerStatus {
        planned_generation: None,
        ..status(plan, &targets)
    })];
    let (listing, ledger) = (Listing::default(), ledger(&[]));
    let reads = LastReads::new(
        &targets,
        &load_balancers,
        &ledger,
        &listing,
        AdminStateMode::Enforce,
        now,
    );
    desired_holds(&reads, unplanned, guard, awaits_lookups)
}

#[test]
fn hold_names_its_pools_and_the_signals_of_its_node() {
    let all = holds(&[node(1, &["other", DRAIN]), node(2, &[DRAIN])]);
    let hold = &all["n1"].hold;
    assert_eq!(all.len(), 1, "the same node in both pools: {all:?}");
    assert_eq!(hold.pools, ["lb/a".to_owned(), "lb/b".to_owned()].into());
    assert_eq!(hold.signals, [DRAIN.to_owned()].into());
    assert!(hold.probes_headgate);
    assert_eq!(hold.reason, "too few others can serve");
    let one = holds(&[node(1, &[DRAIN]), node(2, &[])]);
    assert_eq!(one["n1"].hold.pools, ["lb/b".to_owned()].into());
    assert!(holds(&[node(1, &[]), node(2, &[DRAIN])]).is_empty());
}

#[test]
fn what_a_rule_needs_turns_no_answer_and_what_waits_does() {
    let nodes = [node(1, &[DRAIN]), node(2, &[])];
    let of = |held_for: HeldFor| {
        let planned = Unplanned::Named(BTreeSet::new());
        let mut holds = holds_for(&nodes, &planned, &GUARD, false, |of_entry| *of_entry = held_for.clone());
        let has_no_event = HoldTracker::default().evaluate(&holds, &GUARD).is_empty();
        has_no_event
            .then(|| holds.remove("n1"))
            .flatten()
            .map(|desired| desired.hold)
    };
    let unknown = |why| HeldFor {
        unknown: Some(why),
        ..HeldFor::default()
    };
    let stale = "the list of services is stale";
    for (held_for, turns_answer, reason) in [
        (held_for("default/web"), false, "default/web"),
        (unknown(Unknown::Stale("services")), false, stale),
        (held_by_brake(), true, "adminState.maxNewDown"),
    ] {
        let hold = of(held_for).unwrap();
        assert_eq!(hold.probes_headgate, turns_answer, "{hold:?}");
        assert!(hold.reason.contains(reason), "{hold:?}");
        assert_eq!(hold.pools, ["lb/a".to_owned(), "lb/b".to_owned()].into());
    }
    assert!(of(unknown(Unknown::Listing)).is_none(), "the first lists take a moment");
}

#[test]
fn event_is_recorded_once_for_each_hold() {
    let mut tracker = HoldTracker::default();
    let both = holds(&[node(1, &[DRAIN]), node(2, &[DRAIN])]);
    let events = tracker.evaluate(&both, &GUARD);
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0].note,
        "Kept in service in lb/a, lb/b despite drain: without this node, fewer than 1 of its addresses would serve \
         (adminState.minimumInService)."
    );
    assert!(tracker.evaluate(&both, &GUARD).is_empty());
    assert!(tracker.evaluate(&DesiredHolds::new(), &GUARD).is_empty());
    let without_right = GuardSettings {
        may_write_holds: false,
        ..GUARD
    };
    let note = &tracker.evaluate(&both, &without_right)[0].note;
    assert!(note.ends_with("may record a hold on a Node."), "{note}");
}

#[test]
fn recorded_hold_stays_until_its_load_balancer_is_planned() {
    let mut recorded = node(2, &[DRAIN, "new"]);
    recorded.hold = Some(hold(&["lb/a", "other/p"], &[DRAIN]));
    let nodes = [node(1, &[]), recorded];
    let named = |name: &str| Unplanned::Named([name.to_owned()].into());
    for (unplanned, expected) in [
        (Unplanned::All, vec!["lb/a", "other/p"]),
        (named("other"), vec!["other/p"]),
        (named("OTHER"), vec!["other/p"]),
        (named("third"), Vec::new()),
    ] {
        let kept = holds_beside(&nodes, &unplanned, &GUARD);
        let pools: Option<Vec<String>> = kept.get("n2").map(|hold| hold.hold.pools.iter().cloned().collect());
        assert_eq!(pools.unwrap_or_default(), expected, "{unplanned:?}");
        // A signal that came later is not covered before a plan.
        assert!(kept.values().all(|hold| hold.hold.signals == [DRAIN.to_owned()].into()));
    }
    let disabled = GuardSettings {
        minimum_in_service: IntOrPercent::Int(0),
        ..GUARD
    };
    assert!(holds_beside(&nodes, &Unplanned::All, &disabled).is_empty());
    let mut ending = nodes[1].clone();
    ending.ends = true;
    assert!(holds_beside(&[ending], &Unplanned::All, &GUARD).is_empty());
}

#[test]
fn load_balancer_with_interfaces_that_are_not_looked_up_keeps_recorded_holds_and_asks_for_none() {
    let mut recorded = node(2, &[DRAIN]);
    recorded.hold = Some(hold(&["lb/a"], &[DRAIN]));
    let nodes = [node(1, &[DRAIN]), recorded];
    let unplanned = Unplanned::Named(["lb".to_owned()].into());
    for (awaits_lookups, expected) in [(false, vec!["n1", "n2"]), (true, vec!["n2"])] {
        let holds = holds_for(&nodes, &unplanned, &GUARD, awaits_lookups, |_| {});
        assert!(holds.keys().eq(&expected), "{awaits_lookups}: {holds:?}");
    }
}

#[test]
fn recorded_hold_stays_as_it_was_while_its_node_has_a_signal_of_any_kind() {
    let recorded = NodeHold {
        pending: ["unschedulable".to_owned()].into(),
        reason: "too few others can serve".to_owned(),
        ..hold(&["lb/a"], &[DRAIN])
    };
    let kept = |change: fn(&mut ClusterNode)| {
        let mut third = node(3, &[]);
        third.hold = Some(recorded.clone());
        change(&mut third);
        let mut kept = holds_beside(&[node(1, &[]), third], &Unplanned::All, &GUARD);
        kept.remove("n3")?.record(Timestamp::UNIX_EPOCH)
    };
    let same = NodeHold {
        node_uid: node(3, &[]).uid,
        renewed_at: Timestamp::UNIX_EPOCH,
        ..recorded.clone()
    };
    assert_eq!(kept(|_| {}), None, "it has no signal any more");
    let signals: [fn(&mut ClusterNode); 2] = [
        |node| node.health_signals = [Signal::Taint("probe-only".to_owned())].into(),
        |node| node.signals = [(Signal::Unschedulable, std::time::Duration::from_secs(10))].into(),
    ];
    for signal in signals {
        assert_eq!(kept(signal), Some(same.clone()));
    }
}

#[test]
fn hold_covers_the_signals_of_probes_too() {
    let mut probe_only = node(1, &[DRAIN, "probe-only", "other"]);
    probe_only.health_signals = [Signal::Taint("probe-only".to_owned())].into();
    let all = holds(&[probe_only, node(2, &[DRAIN, OUT])]);
    assert_eq!(
        all["n1"].hold.signals,
        [DRAIN.to_owned(), "probe-only".to_owned()].into()
    );
}

#[test]
fn event_says_that_a_hold_has_too_many_signals() {
    let keys: Vec<String> = (0..100).map(|number| format!("example.com/{number:040}")).collect();
    let mut many = node(1, &[DRAIN]);
    many.health_signals = keys.into_iter().map(Signal::Taint).collect();
    let all = holds(&[many, node(2, &[OUT])]);
    assert_eq!(all["n1"].record(Timestamp::now()), None);
    let mut fewer = all["n1"].clone();
    fewer.hold.signals = [DRAIN.to_owned()].into();
    assert!(fewer.record(Timestamp::now()).is_some());
    let text = &HoldTracker::default().evaluate(&all, &GUARD)[0].note;
    assert!(text.len() <= 1024 && text.contains("exceed the 4096 bytes"), "{text}");
    assert!(text.contains("Kept in service in lb/a, lb/b despite"), "{text}");
}

#[test]
fn hold_of_an_earlier_leader_has_its_event_already() {
    let mut recorded = node(1, &[DRAIN]);
    recorded.hold = Some(hold(&["lb/a"], &[DRAIN]));
    let held = holds(&[recorded, node(2, &[DRAIN])]);
    let mut tracker = HoldTracker::default();
    assert!(tracker.evaluate(&held, &GUARD).is_empty());
    assert_eq!(held["n1"].hold.pools.len(), 2);
}
