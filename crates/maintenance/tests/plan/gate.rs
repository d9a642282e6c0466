//! No Evacuation before the load balancers, unless the policy or the guard allows it.

use headgate_core::node::{MarkerFact, MarkerStatus, NodeTraffic, Unproved};
use headgate_maintenance::api::LoadBalancerConfirmation::{BestEffort, Required};
use headgate_maintenance::api::LoadBalancerState::{Draining, Out, Pending, TimedOut};
use headgate_maintenance::api::{
    ConnectionsPolicy, LoadBalancerConfirmation, LoadBalancerGate, LoadBalancerState, PodType, Stage,
};
use headgate_maintenance::plan::action::{Action, EventReason};
use jiff::{SignedDuration, Timestamp};

use crate::world::{OUT, World, announce_eviction, in_service};

fn draining(confirmation: LoadBalancerConfirmation) -> World {
    let mut world = World::default().nodes(&["one"]).pods("one", 3, PodType::Default, 0);
    world.observe("one", in_service());
    world.maintain("m", Stage::Drain, &["one"], &[]);
    world.change("m", |one| {
        one.spec.load_balancer = LoadBalancerGate {
            confirmation,
            confirmation_timeout_seconds: 100,
            connections_drain_seconds: 20,
            connections: ConnectionsPolicy::Wait,
            connections_timeout_seconds: 60,
        };
    });
    world.settle();
    world
}

fn unknown() -> NodeTraffic {
    NodeTraffic::Unknown(Unproved::NotConfirmed("Azure answers 500".to_owned()))
}

fn held_back() -> NodeTraffic {
    NodeTraffic::HeldBack {
        detail: "pool web".to_owned(),
    }
}

fn out(world: &World) -> NodeTraffic {
    out_since(world.now)
}

fn out_since(since: Timestamp) -> NodeTraffic {
    NodeTraffic::Out { since: Some(since) }
}

/// The gate, and how many pods leave.
fn state(world: &World) -> (LoadBalancerState, usize) {
    let gate = world.status("m", "one").load_balancer.as_ref().unwrap();
    (gate.state, world.evacuated_pods().len())
}

/// The same, so many seconds later.
fn state_after(world: &mut World, seconds: i64) -> (LoadBalancerState, usize) {
    world.pass(seconds);
    state(world)
}

/// The same, so many seconds after a read shows the node so.
fn state_with(world: &mut World, observation: NodeTraffic, seconds: i64) -> (LoadBalancerState, usize) {
    world.observe("one", observation).settle();
    state_after(world, seconds)
}

fn confirmed_time(world: &World) -> Option<Timestamp> {
    let gate = world.status("m", "one").load_balancer.as_ref().unwrap();
    gate.confirmed_time.as_ref().map(|time| time.0)
}

#[test]
fn the_first_pod_leaves_after_the_confirmation_and_the_drain_window() {
    let mut world = draining(Required);
    assert!(world.node("one").unschedulable && world.node("one").maintenance_taint.is_some());
    assert_eq!(state(&world), (Pending, 0));
    let waits = "Waiting for the load balancers: pool web still sends traffic";
    assert_eq!(world.message("m", "one"), waits);
    assert_eq!(state_after(&mut world, 86_400), (Pending, 0), "Block waits");
    let confirmed = world.now;
    assert_eq!(state_with(&mut world, out_since(confirmed), 0), (Draining, 0));
    assert_eq!(world.plan().wake_at, Some(world.after(20)));
    assert_eq!(world.condition("m", "LoadBalancerOut").0, "True");
    assert_eq!(state_after(&mut world, 19), (Draining, 0));
    assert_eq!(state_after(&mut world, 1), (Out, 3));
    assert_eq!(confirmed_time(&world), Some(confirmed));
    assert_eq!(world.recorded(EventReason::LoadBalancerNotConfirmed).len(), 0);
}

/// The condition of an agent that counts so many.
pub(super) fn open(connections: u32) -> MarkerFact {
    MarkerFact {
        status: MarkerStatus::False,
        reason: "ConnectionsOpen".to_owned(),
        message: format!("{connections} connections pass through this node"),
        ..MarkerFact::default()
    }
}

#[test]
fn the_first_pod_waits_for_counted_connections_within_their_bound() {
    use ConnectionsPolicy::{Ignore, Wait};
    // From the confirmation: seconds, how many the agent counts, and how many pods leave.
    for (policy, steps) in [
        (Wait, [(19, Some(9), 0), (25, Some(3), 0), (26, None, 3)].as_slice()),
        (Wait, &[(20, Some(9), 0), (79, Some(1), 0), (80, Some(1), 3)]),
        // None, before connectionsDrainSeconds are over.
        (Wait, &[(1, None, 0), (19, None, 0), (20, None, 3)]),
        (Ignore, &[(19, Some(9), 0), (20, Some(9), 3)]),
    ] {
        let mut world = draining(Required);
        world.change("m", |one| one.spec.load_balancer.connections = policy);
        world.node("one").connections = Some(open(20));
        let confirmed = world.now;
        world.observe("one", out_since(confirmed)).settle();
        for (second, connections, pods) in steps {
            world.node("one").connections = connections.map(open);
            world.now = confirmed + SignedDuration::from_secs(*second);
            world.settle();
            let expected = if *pods == 0 { Draining } else { Out };
            assert_eq!(state(&world), (expected, *pods), "{policy:?}, {second} s");
        }
        let is_cut = steps.last().is_some_and(|(_, connections, _)| connections.is_some());
        let is_reported = !world.recorded(EventReason::ConnectionsNotDrained).is_empty();
        assert_eq!(is_reported, is_cut && policy == Wait);
    }
}

#[test]
fn connections_wait_for_half_of_the_time_before_a_deadline_at_most() {
    let mut world = draining(Required);
    world.node("one").connections = Some(open(9));
    world.change("m", |one| one.spec.load_balancer.connections_drain_seconds = 0);
    announce_eviction(&mut world, "one");
    world.observe("one", out(&world)).settle();
    let message = world.message("m", "one");
    headgate_test_kubernetes::assert_contains!(message, "9 connections pass through this node");
    assert_eq!(state_after(&mut world, 14), (Draining, 0));
    assert_eq!(state_after(&mut world, 1), (Out, 3));
}

#[test]
fn a_read_that_no_longer_confirms_stops_new_evacuations_only() {
    let mut world = draining(Required);
    let first = out(&world);
    assert_eq!(state_with(&mut world, first, 20), (Out, 3));
    world = world.pods("one", 1, PodType::Default, 0);
    assert_eq!(
        state_with(&mut world, in_service(), 0),
        (Pending, 3),
        "running ones go on"
    );
    assert_eq!(confirmed_time(&world), None);
    let again = world.now;
    assert_eq!(state_with(&mut world, out_since(again), 0), (Draining, 3));
    assert_eq!(confirmed_time(&world), Some(again));
    assert_eq!(state_after(&mut world, 20), (Out, 4));
}

#[test]
fn a_missing_read_closes_the_gate_and_forgets_nothing() {
    let mut world = draining(Required);
    let confirmed = world.now;
    assert_eq!(state_with(&mut world, out_since(confirmed), 20), (Out, 3));
    world = world.pods("one", 1, PodType::Default, 0);
    assert_eq!(state_with(&mut world, unknown(), 0), (Pending, 3));
    let waits = "Waiting for a read of the load balancers: Azure answers 500";
    assert_eq!(world.message("m", "one"), waits);
    assert_eq!(state_with(&mut world, out_since(confirmed), 0), (Out, 4));
    assert_eq!(confirmed_time(&world), Some(confirmed));
}

/// A new leader knows nothing in its first turn.
#[test]
fn a_lost_proof_starts_the_time_to_wait_anew() {
    let mut world = draining(BestEffort);
    world.node("one").connections = Some(open(9));
    world.pass(90);
    let confirmed = world.now;
    world.observe("one", out_since(confirmed)).settle();
    world.pass(11);
    assert_eq!(state_with(&mut world, unknown(), 0), (Pending, 0));
    assert_eq!(confirmed_time(&world), Some(confirmed));
    assert_eq!(world.plan().wake_at, Some(world.after(100)));
    world.pass(20);
    let counted = state_with(&mut world, out_since(confirmed), 0);
    assert_eq!(counted, (Draining, 0), "connections are counted");
    // Once the pods leave, and the node is back in service after the next loss, it waits again.
    assert_eq!(state_after(&mut world, 60), (Out, 3));
    world.pass(200);
    let steps = [
        (unknown(), 99, Pending),
        (in_service(), 99, Pending),
        (unknown(), 1, TimedOut),
    ];
    for (observation, passed, expected) in steps {
        assert_eq!(state_with(&mut world, observation, passed).0, expected);
    }
}

#[test]
fn a_lost_taint_starts_the_time_to_wait_anew() {
    for (is_held_back, before) in [(false, Out), (true, TimedOut)] {
        let mut world = draining(Required);
        let first = if is_held_back { held_back() } else { out(&world) };
        assert_eq!(state_with(&mut world, first, 3600), (before, 3));
        world.node("one").maintenance_taint = None;
        world.observe("one", held_back()).settle();
        assert!(world.node("one").maintenance_taint.is_some());
        for (seconds, expected) in [(0, Pending), (99, Pending), (1, TimedOut)] {
            assert_eq!(state_after(&mut world, seconds).0, expected, "{before:?}");
        }
    }
}

#[test]
fn proceed_after_goes_on_without_and_says_so() {
    for observation in [in_service(), unknown()] {
        let mut world = draining(BestEffort);
        world.observe("one", observation);
        assert_eq!(state_after(&mut world, 99), (Pending, 0));
        assert_eq!(state_after(&mut world, 1), (TimedOut, 3));
        let events = world.recorded(EventReason::LoadBalancerNotConfirmed);
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(events[0].reason.is_warning());
        assert_eq!(world.condition("m", "LoadBalancerOut"), ("False", "TimedOut"));
        let late = out(&world);
        assert_eq!(
            state_with(&mut world, late, 0),
            (Out, 3),
            "a late confirmation closes nothing"
        );
    }
}

#[test]
fn a_node_that_the_guard_holds_back_passes_under_either_policy() {
    for confirmation in [Required, BestEffort] {
        let mut world = draining(confirmation);
        assert_eq!(state_with(&mut world, held_back(), 99), (Pending, 0));
        assert_eq!(
            world.message("m", "one"),
            "Waiting for the load balancers, where too few other nodes are in service: pool web"
        );
        assert_eq!(state_after(&mut world, 1), (TimedOut, 3));
        assert!(!world.recorded(EventReason::LoadBalancerNotConfirmed).is_empty());
    }
}

#[test]
fn required_counts_only_the_time_for_which_the_guard_holds_the_node_back() {
    let mut world = draining(Required);
    world.pass(1000);
    let not_listed = NodeTraffic::Unknown(Unproved::NotListed(None));
    // A moment at the end of a long wait, and then without a read.
    for (observation, seconds, expected) in [
        (held_back(), 99, Pending),
        (in_service(), 1, Pending),
        (held_back(), 99, Pending),
        (not_listed, 1000, Pending),
        (held_back(), 99, Pending),
        (held_back(), 1, TimedOut),
    ] {
        assert_eq!(state_with(&mut world, observation, seconds).0, expected);
    }
}

#[test]
fn before_a_deadline_half_of_the_time_is_for_the_load_balancer() {
    let mut world = draining(BestEffort);
    announce_eviction(&mut world, "one");
    assert_eq!(state_after(&mut world, 14), (Pending, 0));
    assert_eq!(state_after(&mut world, 1), (TimedOut, 3));

    let mut world = draining(Required);
    announce_eviction(&mut world, "one");
    world.pass(10);
    let confirmed = out(&world);
    assert_eq!(state_with(&mut world, confirmed, 9), (Draining, 0));
    assert_eq!(
        state_after(&mut world, 1),
        (Out, 3),
        "half of 20 s is shorter than the window"
    );
}

#[test]
fn times_of_a_leader_whose_clock_was_ahead_make_nothing_wait_longer() {
    for (observation, seconds, before, after) in [
        (in_service(), 100, Pending, TimedOut),
        (out_since(Timestamp::UNIX_EPOCH), 20, Draining, Out),
    ] {
        let mut world = draining(BestEffort);
        state_with(&mut world, observation, -3600);
        assert_eq!(state_after(&mut world, seconds - 1), (before, 0));
        assert_eq!(state_after(&mut world, 1), (after, 3));
    }
}

/// It terminates for another reason, and has no Evacuation: the gate is closed, or its namespace is being deleted.
#[test]
fn a_pod_without_an_evacuation_that_does_not_end_blocks() {
    let mut world = draining(Required);
    for (pod, seconds) in [(0, -1), (1, 60)] {
        world.snapshot.pods[pod].terminating_until = Some(world.after(seconds));
    }
    world.settle();
    let status = world.status("m", "one");
    assert_eq!((status.pods_pending_evacuation, status.blockers_total), (3, 1));
    assert_eq!(status.blockers[0].pod_ref.name, "pod-0001");
    assert_eq!(world.condition("m", "Blocked"), ("True", "Terminating"));
    assert_eq!(world.plan().wake_at, Some(world.after(61)));
    world.pass(61);
    assert_eq!(world.status("m", "one").blockers_total, 2);
}

#[test]
fn every_maintenance_of_a_node_has_to_let_pods_go() {
    let mut world = draining(BestEffort);
    world.maintain("strict", Stage::Drain, &["one"], &[]).settle();
    world.pass(200);
    assert_eq!(state(&world), (TimedOut, 0));
    assert_eq!(
        world.message("m", "one"),
        "Waiting for the load balancers: pool web still sends traffic (strict)"
    );
}

#[test]
fn a_read_from_before_the_cordon_confirms_nothing() {
    for by_somebody in [false, true] {
        let mut world = World::default().nodes(&["one"]).pods("one", 1, PodType::Default, 0);
        world.node("one").unschedulable = by_somebody;
        world.observe("one", out(&world));
        world.maintain("m", Stage::Drain, &["one"], &[]);
        let first = world.plan();
        for action in first.actions {
            world.apply(action);
        }
        // The finalizer is there, the node is not cordoned yet.
        let second = world.plan();
        let statuses = format!("{:?}", second.actions);
        headgate_test_kubernetes::assert_contains!(statuses, "Waiting for the cordon and the maintenance taint");
        let creates = |action: &Action| matches!(action, Action::ChangeEvacuation { .. });
        assert!(!second.actions.iter().any(creates), "{statuses}");
    }
}

#[test]
fn an_empty_node_is_drained_only_once_it_is_out() {
    let mut world = World::default().nodes(&["one"]);
    world.observe("one", in_service());
    world.maintain("m", Stage::Drain, &["one"], &[]).settle();
    assert_eq!(world.condition("m", "Drained"), ("False", "LoadBalancer"));
    world.observe("one", OUT).settle();
    assert!(world.is_drained("m"));
}

/// A new leader, whose first turn comes before its first read, takes nothing back.
#[test]
fn a_drained_node_stays_drained_while_no_read_shows_it() {
    const DRAINED: [&str; 2] = ["Drained", "MaintenanceInProgress"];
    const DRAINING: [&str; 2] = ["DrainInProgress", "MaintenancePlanned"];
    let mut world = World::default().nodes(&["one", "two"]);
    let both = |world: &mut World, observation: &NodeTraffic| {
        for node in ["one", "two"] {
            world.observe(node, observation.clone());
        }
        world.settle();
    };
    both(&mut world, &in_service());
    world.maintain("m", Stage::Drain, &["one", "two"], &[]);
    world.change("m", |one| one.spec.load_balancer.connections_drain_seconds = 20);
    world.settle();
    let conditions = |world: &mut World, node: &str| world.node(node).conditions.keys().cloned().collect::<Vec<_>>();

    // Before its connections are gone a node is not drained.
    let since = out(&world);
    world.observe("one", since.clone()).settle();
    world.pass(19);
    world.observe("one", unknown());
    world.pass(10);
    assert_eq!(conditions(&mut world, "one"), DRAINING);

    // One of two.
    world.observe("one", since.clone()).settle();
    assert_eq!(conditions(&mut world, "one"), DRAINED);
    world.observe("one", unknown());
    world.pass(3600);
    assert_eq!(conditions(&mut world, "one"), DRAINED);
    assert_eq!(world.maintenance_status("m").drained_nodes, 1);
    assert_eq!(conditions(&mut world, "two"), DRAINING);

    // Both.
    both(&mut world, &since);
    world.pass(3600);
    assert!(world.is_drained("m"));
    both(&mut world, &unknown());
    assert!(world.is_drained("m"));
    assert_eq!(world.condition("m", "Blocked").0, "False");
    assert_eq!(world.condition("m", "LoadBalancerOut"), ("False", "Waiting"));
    for node in ["one", "two"] {
        assert_eq!(conditions(&mut world, node), DRAINED);
    }
    both(&mut world, &since);
    assert_eq!(world.recorded(EventReason::Drained).len(), 1);

    // What says that it may serve again is more than a missing read.
    for why in [Unproved::ModeOff, Unproved::EntryNotPlanned, Unproved::NotIdentified] {
        world.observe("two", NodeTraffic::Unknown(why)).settle();
        assert_eq!(conditions(&mut world, "two"), DRAINING);
        world.observe("two", since.clone()).settle();
        world.pass(20);
        assert_eq!(conditions(&mut world, "two"), DRAINED);
    }

    // A pod, or a read that shows it in service.
    world.observe("one", unknown());
    world = world.pods("one", 1, PodType::Default, 0);
    world.settle();
    assert_eq!(conditions(&mut world, "one"), DRAINING);
    assert_eq!(world.evacuated_pods().len(), 0, "the gate is closed");
    world.snapshot.pods.clear();
    world.observe("one", since.clone()).settle();
    assert_eq!(conditions(&mut world, "one"), DRAINED);
    // Another maintenance waits for its own connections, and takes nothing back of the first.
    let events = world.recorded(EventReason::Drained).len();
    world.maintain("other", Stage::Drain, &["one"], &[]);
    for observation in [since, unknown()] {
        world.observe("one", observation).settle();
        assert!(world.is_drained("m"));
        assert_eq!(world.condition("other", "Drained"), ("False", "LoadBalancer"));
        // A machine that others take for drained may go.
        assert_eq!(conditions(&mut world, "one"), DRAINING);
    }
    assert_eq!(world.recorded(EventReason::Drained).len(), events);
    world.observe("two", in_service()).settle();
    assert_eq!(conditions(&mut world, "two"), DRAINING);
}
