use headgate_core::clock::Clock;
use headgate_core::node::{ENDED_PERIOD_TTL, MarkerStatus, SignalRules};

use super::super::fixtures::hold;
use super::*;
use crate::pool::{NodeMatcher, Taint};

const SECOND: Duration = Duration::from_secs(1);

fn node(uid: &str, taints: &[&str]) -> ClusterNode {
    let node = ClusterNode {
        name: "n".into(),
        uid: uid.into(),
        taints: taints.iter().map(|key| Taint::new(key, "NoExecute")).collect(),
        ready: true,
        ..ClusterNode::default()
    };
    node.with_signals(&rules())
}

fn named(name: &str, taints: &[&str]) -> ClusterNode {
    ClusterNode {
        name: name.into(),
        ..node(name, taints)
    }
}

fn later(start: Moment, seconds: u32) -> Moment {
    Moment {
        mono: start.mono + seconds * SECOND,
        ..start
    }
}

fn target_of_u(states: &TargetStates, now: Instant) -> TargetState {
    states.target_state(&node("u", &[]), now)
}

fn rules() -> SignalRules {
    SignalRules::new(["drain", OUT_OF_SERVICE_TAINT], &[])
}

#[tokio::test(start_paused = true)]
async fn ends_of_a_signal_that_flaps_count_half_a_minute_apart() {
    let clock = Clock::anchored(Timestamp::UNIX_EPOCH);
    let mut states = TargetStates::default();
    let mut changes = Vec::new();
    let (start, mut last) = (clock.now().mono, TargetState::None);
    for step in 0..120_u32 {
        // On for two seconds, off for three.
        let taints: &[&str] = if step % 5 < 2 { &["drain"] } else { &[] };
        let node = node("u", taints);
        states.apply(node.clone(), clock.now());
        let now = clock.now().mono;
        let target = states.target_state(&node, now);
        if target == TargetState::None && last != TargetState::None {
            changes.push((now - start).as_secs());
        }
        last = target;
        let deadline = states.next_deadline(now);
        tokio::time::advance(SECOND).await;
        let next = states.target_state(&node, clock.now().mono);
        let is_due = deadline.is_some_and(|deadline| deadline <= clock.now().mono);
        assert!(next == target || is_due, "no deadline at {step}");
    }
    assert_eq!(changes, [3, 33, 63, 93]);
}

#[test]
fn a_signal_that_flapped_damps_from_the_debounce_to_the_end_that_counts() {
    let start = Clock::System.now();
    let at = |second| later(start, second);
    let guards = |states: &TargetStates, second| {
        let guarded = states.guarded_nodes(at(second).mono);
        guarded.may_match(&NodeMatcher::Name("n".into()), &InterfaceCache::default())
    };
    let mut states = TargetStates::default();
    for (second, taints) in [(0, &["drain"][..]), (10, &[]), (20, &["drain"]), (21, &[])] {
        let node = node("u", taints);
        states.apply(node.clone(), at(second));
        assert!(!states.is_damped(&node, at(second).mono), "{second}");
        assert_eq!(guards(&states, second), !taints.is_empty(), "{second}");
    }
    let node = node("u", &[]);
    // The end at 10 counted, so this one counts 30 s after that.
    for (second, is_damped) in [(21, false), (22, true), (40, true), (41, false)] {
        assert_eq!(states.is_damped(&node, at(second).mono), is_damped, "{second}");
        assert_eq!(guards(&states, second), is_damped, "{second}");
    }
    states.set_stale_since(Some(start.wall));
    assert!(!states.is_damped(&node, at(22).mono), "nothing is known");
}

#[test]
fn own_condition_leads_to_no_other_plan_and_is_published() {
    let now = Clock::anchored(Timestamp::UNIX_EPOCH).now();
    let marked = |status: &str, taints: &[&str]| ClusterNode {
        marker: Some(MarkerFact {
            status: MarkerStatus::read(status),
            ..MarkerFact::default()
        }),
        ..node("u", taints)
    };
    let mut states = TargetStates::default();
    states.apply(node("u", &["drain"]), now);
    let generation = states.generation;
    assert!(states.apply(marked("True", &["drain"]), now), "it is published");
    assert_eq!(states.generation, generation);
    let published = states.nodes.by_name("n").unwrap().marker.as_ref();
    assert_eq!(published.unwrap().status, MarkerStatus::True);
    assert!(!states.apply(marked("True", &["drain"]), now));
    assert_eq!(states.unsettled_nodes().count(), 1);
    // With anything else it counts.
    assert!(states.apply(marked("False", &[]), now));
    assert_eq!(states.generation, generation + 1);
    assert_eq!(target_of_u(&states, now.mono), TargetState::Unchanged);
    assert!(states.apply(node("other", &[]), now) && states.generation == generation + 2);
    assert_eq!(states.unsettled_nodes().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn signal_counts_at_once_and_its_end_after_the_debounce() {
    let clock = Clock::anchored(Timestamp::UNIX_EPOCH);
    let mut states = TargetStates::default();
    let start = clock.now();
    assert!(states.apply(node("u", &["other"]), start));
    assert_eq!(target_of_u(&states, start.mono), TargetState::None);
    assert!(states.apply(node("u", &["drain"]), start));
    assert!(!states.apply(node("u", &["drain"]), start), "unchanged");
    assert_eq!(target_of_u(&states, start.mono), TargetState::Down);

    tokio::time::advance(SECOND).await;
    states.apply(node("u", &[]), clock.now());
    let cleared = clock.now().mono;
    assert!(!states.left_out_of_service_while_ready(&node("u", &[])));
    assert_eq!(target_of_u(&states, cleared), TargetState::Unchanged);
    assert_eq!(states.next_deadline(cleared), Some(cleared + DEBOUNCE));
    // Another taint takes its place: the same period continues.
    states.apply(node("u", &[OUT_OF_SERVICE_TAINT]), clock.now());
    assert_eq!(target_of_u(&states, cleared), TargetState::Down);
    assert_eq!(states.signal_period(&node("u", &[])).unwrap().since, start);
    states.apply(node("u", &[]), clock.now());
    assert_eq!(target_of_u(&states, cleared + DEBOUNCE), TargetState::None);
    assert!(states.left_out_of_service_while_ready(&node("u", &[])));
    let mut excluded = node("u", &[]);
    excluded.excluded = Some("label");
    states.apply(excluded, clock.now());
    assert!(states.left_out_of_service_while_ready(&node("u", &[])));
    assert!(states.has_signal_periods());
    let deadline = states.next_deadline(cleared + DEBOUNCE);
    assert_eq!(deadline, Some(cleared + ENDED_PERIOD_TTL));
    states.drop_ended_periods(cleared + ENDED_PERIOD_TTL - SECOND);
    assert!(states.has_signal_periods());
    states.drop_ended_periods(cleared + ENDED_PERIOD_TTL);
    assert!(!states.has_signal_periods());
}

#[test]
fn recreated_node_inherits_no_signal() {
    let mut states = TargetStates::default();
    let now = Clock::System.now();
    states.apply(node("u1", &["drain"]), now);
    assert_eq!(states.target_state(&node("u1", &[]), now.mono), TargetState::Down);
    // The watch may show the new object without the deletion of the old one.
    states.apply(node("u2", &[]), now);
    assert_eq!(states.target_state(&node("u2", &[]), now.mono), TargetState::None);
    states.apply(node("u1", &["drain"]), now);
    states.remove("n");
    assert!(!states.has_signal_periods());
    states.apply(node("u2", &[]), now);
    assert_eq!(states.target_state(&node("u2", &[]), now.mono), TargetState::None);
}

#[tokio::test(start_paused = true)]
async fn cordon_counts_once_it_has_lasted_and_restores_nothing_before() {
    let clock = Clock::anchored(Timestamp::UNIX_EPOCH);
    let cordoned = |uid: &str| ClusterNode {
        signals: [(Signal::Unschedulable, 10 * SECOND)].into(),
        ..node(uid, &[])
    };
    let mut states = TargetStates::default();
    states.apply(cordoned("u"), clock.now());
    let start = clock.now().mono;
    // An earlier leader may have set the entries `Down`.
    assert_eq!(states.target_state(&cordoned("u"), start), TargetState::Unchanged);
    assert_eq!(states.next_deadline(start), Some(start + 10 * SECOND));
    tokio::time::advance(9 * SECOND).await;
    let mut not_ready = cordoned("u");
    not_ready.ready = false;
    states.apply(not_ready, clock.now());
    assert_eq!(states.next_deadline(start), Some(start + 10 * SECOND), "observed again");
    tokio::time::advance(SECOND).await;
    states.advance_generation(clock.now());
    assert_eq!(states.target_state(&cordoned("u"), clock.now().mono), TargetState::Down);
    states.apply(cordoned("u"), clock.now());
    assert_eq!(states.target_state(&cordoned("u"), clock.now().mono), TargetState::Down);
    let names = states.signal_period(&cordoned("u")).unwrap().names();
    assert_eq!(names, ["unschedulable".to_owned()].into());
    states.apply(node("u", &[]), clock.now());
    tokio::time::advance(SECOND).await;
    assert_eq!(target_of_u(&states, clock.now().mono), TargetState::None);
    // The end of a cordon that did not count changes nothing.
    states.apply(cordoned("u"), clock.now());
    states.apply(node("u", &[]), clock.now());
    tokio::time::advance(60 * SECOND).await;
    assert_eq!(target_of_u(&states, clock.now().mono), TargetState::None);
    states.apply(cordoned("u"), clock.now());
    states.apply(cordoned("v"), clock.now());
    states.remove("n");
    assert_eq!(states.target_state(&cordoned("v"), clock.now().mono), TargetState::None);
}

#[tokio::test(start_paused = true)]
async fn cordon_under_a_hold_counts_at_once_for_a_new_leader() {
    let clock = Clock::anchored(Timestamp::UNIX_EPOCH);
    let held = |signal: &str| ClusterNode {
        signals: [(Signal::Unschedulable, 10 * SECOND)].into(),
        hold: Some(hold(&["lb/pool"], &[signal])),
        ..node("u", &[])
    };
    for (signal, target) in [("unschedulable", TargetState::Down), ("other", TargetState::Unchanged)] {
        let mut states = TargetStates::default();
        states.apply(held(signal), clock.now());
        assert_eq!(states.target_state(&held(signal), clock.now().mono), target, "{signal}");
    }
    // A hold that was recorded before the cordon counted proves nothing.
    let mut pending = held("unschedulable");
    pending.hold.as_mut().unwrap().pending = ["unschedulable".to_owned()].into();
    let mut states = TargetStates::default();
    states.apply(pending.clone(), clock.now());
    assert_eq!(states.target_state(&pending, clock.now().mono), TargetState::Unchanged);
    assert_eq!(states.pending_signals(&pending), ["unschedulable".to_owned()].into());
}

#[test]
fn condition_of_a_node_that_is_down_proves_to_a_new_leader_that_its_cordon_counts() {
    let now = Clock::System.now();
    let shown = |status: &str, reason: &str, after: u32| {
        let mut node = node("u", &[]);
        node.signals = [(Signal::Unschedulable, after * SECOND)].into();
        node.marker = Some(MarkerFact {
            status: MarkerStatus::read(status),
            reason: reason.to_owned(),
            ..MarkerFact::default()
        });
        node
    };
    let down = shown("True", ADMIN_STATE_DOWN, 3600);
    let mut other = down.clone();
    other.signals.insert(Signal::Deletion, Duration::ZERO);
    for (what, node, is_pending) in [
        ("read Down", &down, false),
        ("probes failed", &shown("True", "ProbesFailed", 3600), true),
        ("in service", &shown("False", "NotDown", 3600), true),
        ("expired", &shown("Unknown", "NotConfirmed", 3600), true),
        ("down because of a signal that counts at once", &other, true),
    ] {
        let mut states = TargetStates::new(false, true);
        states.apply(node.clone(), now);
        assert_eq!(!states.pending_signals(node).is_empty(), is_pending, "{what}");
    }
    let mut states = TargetStates::new(false, false);
    states.apply(down.clone(), now);
    assert!(
        !states.pending_signals(&down).is_empty(),
        "nobody writes it: it was left behind"
    );
    // What began under this leader must last.
    let mut states = TargetStates::new(false, true);
    states.apply(node("u", &["drain"]), now);
    states.apply(down.clone(), now);
    assert_eq!(states.target_state(&down, now.mono), TargetState::Unchanged);
    assert!(!states.pending_signals(&down).is_empty());
}

#[test]
fn what_only_maintenances_read_leads_to_no_other_plan() {
    let now = Clock::System.now();
    let changes: [fn(&mut ClusterNode); 5] = [
        |node| node.labels = [("a".to_owned(), "b".to_owned())].into(),
        |node| node.unschedulable = true,
        |node| node.connections = Some(MarkerFact::default()),
        |node| node.is_upgrade_paused = true,
        |node| node.cluster_api_machine = Some("namespace/name".into()),
    ];
    let mut states = TargetStates::default();
    let mut one = node("u", &[]);
    states.apply(one.clone(), now);
    for change in changes {
        change(&mut one);
        assert!(states.apply(one.clone(), now), "it is published");
        assert_eq!(states.generation, 1);
    }
    let condition = headgate_core::node::Condition::default();
    one.conditions = [("A".to_owned(), condition)].into();
    assert!(states.apply(one.clone(), now));
    assert_eq!(states.generation, 1);
    // By these the brake knows a maintenance with a deadline.
    let changes: [fn(&mut ClusterNode); 3] = [
        |node| node.was_unschedulable = Some(true),
        |node| node.maintenance_taint = Some("uid".into()),
        |node| node.is_kept_from_scale_down = true,
    ];
    for (change, generation) in changes.into_iter().zip(2..) {
        change(&mut one);
        assert!(states.apply(one.clone(), now));
        assert_eq!(states.generation, generation);
    }
}

#[test]
fn a_hold_alone_leads_to_plans_of_those_that_chose_by_holds() {
    let now = Clock::System.now();
    let held = |taints: &[&str], signals: &[&str]| ClusterNode {
        hold: Some(hold(&[], signals)),
        ..node("u", taints)
    };
    let mut states = TargetStates::default();
    states.apply(node("u", &["drain"]), now);
    for (number, hold) in [
        (1, held(&["drain"], &["drain"])),
        (2, held(&["drain"], &[])),
        (3, node("u", &["drain"])),
    ] {
        let is_held = hold.hold.is_some();
        assert!(states.apply(hold, now), "it is published");
        assert_eq!((states.generation, states.hold_generation), (1, number));
        assert_eq!(states.held_nodes().count(), usize::from(is_held));
    }
    // With anything else it counts.
    assert!(states.apply(held(&[], &[]), now));
    assert_eq!((states.generation, states.hold_generation), (2, 3));
    // The signal must last, and the hold says that it did.
    let mut pending = node("v", &[]);
    pending.signals = [(Signal::Unschedulable, SECOND)].into();
    states.apply(pending.clone(), now);
    assert_eq!(states.target_state(&pending, now.mono), TargetState::Unchanged);
    pending.hold = held(&[], &["unschedulable"]).hold;
    states.apply(pending.clone(), now);
    assert_eq!((states.generation, states.hold_generation), (4, 3));
    assert_eq!(states.target_state(&pending, now.mono), TargetState::Down);
    assert!(states.held_nodes().all(|held| **held == pending) && states.held_nodes().count() == 1);
    states.remove("n");
    assert_eq!(states.held_nodes().count(), 0);
}

#[test]
fn a_list_adds_changes_and_removes_nodes() {
    let now = Clock::System.now();
    let list = |nodes: &[ClusterNode]| -> BTreeMap<String, Arc<ClusterNode>> {
        let nodes = nodes.iter().cloned();
        nodes.map(|node| (node.name.clone(), Arc::new(node))).collect()
    };
    let mut states = TargetStates::default();
    let first = list(&[named("b", &["drain"]), named("c", &[]), named("d", &[])]);
    states.update(&first, now);
    let later = later(now, 1);
    let mut second = list(&[named("a", &[]), named("b", &["drain", "other"])]);
    second.insert("d".into(), Arc::clone(&first["d"]));
    states.update(&second, later);
    let present: Vec<_> = states.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(present, ["a", "b", "d"]);
    assert_eq!(states.nodes.by_name("b").unwrap().taints.len(), 2);
    let period = states.signal_period(&named("b", &[])).unwrap();
    assert_eq!(period.since, now, "it is the same Node");
    let generation = states.generation;
    states.update(&second, later);
    assert_eq!(states.generation, generation);
    assert!(states.remove("a") && !states.remove("a"));
    assert_eq!(states.generation, generation + 1);
    states.update(&BTreeMap::new(), later);
    assert!(states.nodes.is_empty() && !states.has_signal_periods());
}

#[test]
fn a_node_that_is_not_ready_is_lost_after_a_while_and_a_new_one_of_its_name_is_not() {
    let now = Clock::System.now();
    let at = |second| later(now, second);
    let not_ready = |uid: &str, taints: &[&str]| ClusterNode {
        ready: false,
        not_ready_since: Some(now.wall - jiff::SignedDuration::from_secs(50)),
        ..node(uid, taints)
    };
    let is_lost = |states: &TargetStates, uid: &str, second| states.is_lost(&not_ready(uid, &[]), at(second).mono);
    let mut states = TargetStates::default();
    states.apply(not_ready("u", &[]), at(0));
    states.apply(not_ready("u", &["other"]), at(30));
    assert!(
        !is_lost(&states, "u", 9) && is_lost(&states, "u", 10),
        "the first counts from before"
    );
    states.apply(not_ready("v", &[]), at(40));
    assert!(!is_lost(&states, "v", 99) && is_lost(&states, "v", 100));
    assert!(!is_lost(&states, "u", 100));
    states.apply(node("v", &[]), at(100));
    states.apply(not_ready("v", &[]), at(110));
    assert!(!is_lost(&states, "v", 169) && is_lost(&states, "v", 170));
}

#[test]
fn only_nodes_that_can_have_an_agent_are_candidates() {
    let now = Clock::System.now();
    let mut states = TargetStates::default();
    for (other, lacks_agent, nodes, has_healthy_peer) in [
        ("own", false, 1, false),
        ("windows", true, 1, false),
        ("linux", false, 2, true),
    ] {
        let mut other_node = named(other, &[]);
        other_node.lacks_agent = lacks_agent;
        states.apply(other_node, now);
        let expected = NodeSummary {
            nodes,
            has_healthy_peer,
        };
        assert_eq!(states.summary("own", now.mono), expected, "{other}");
    }
}

#[test]
fn signals_are_counted_by_their_nodes() {
    let now = Clock::System.now();
    let mut states = TargetStates::default();
    for (name, taints) in [
        ("a", &["drain"][..]),
        ("b", &["drain", OUT_OF_SERVICE_TAINT]),
        ("c", &[]),
    ] {
        states.apply(named(name, taints), now);
    }
    let counts = [("drain".to_owned(), 2), (OUT_OF_SERVICE_TAINT.to_owned(), 1)];
    assert_eq!(states.nodes_by_signal(), counts.into());
    assert_eq!((states.last_signal_generation(), states.generation), (2, 3));
    states.advance_generation(now);
    states.set_stale_since(Some(now.wall));
    assert_eq!((states.stale_since(), states.generation), (Some(now.wall), 5));
}
