//! No Evacuation before the load balancers, unless the policy or the guard allows it.

use headgate_core::node::{DRAINING_TAINT, MarkerFact, MarkerStatus, NodeTraffic, RecordedNotice, Taint, Unproved};
use headgate_maintenance::api::{
    ConnectionsPolicy, LoadBalancerConfirmation, LoadBalancerGate, LoadBalancerState, PodType, Stage,
};
use headgate_maintenance::plan::action::{Action, EventReason};
use jiff::{SignedDuration, Timestamp};

use crate::world::{World, pass};

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

fn in_service() -> NodeTraffic {
    NodeTraffic::InService {
        detail: "pool web still sends traffic".to_owned(),
    }
}

fn unknown() -> NodeTraffic {
    NodeTraffic::Unknown(Unproved::NotConfirmed("Azure answers 500".to_owned()))
}

fn out(world: &World) -> NodeTraffic {
    NodeTraffic::Out { since: Some(world.now) }
}

fn state(world: &World) -> (LoadBalancerState, usize) {
    (
        world.status("m", "one").load_balancer.clone().unwrap().state,
        world.evacuated_pods().len(),
    )
}

fn confirmed_time(world: &World) -> Option<Timestamp> {
    let status = world.status("m", "one").load_balancer.clone().unwrap();
    status.confirmed_time.map(|time| time.0)
}

#[test]
fn the_first_pod_leaves_after_the_confirmation_and_the_drain_window() {
    let mut world = draining(LoadBalancerConfirmation::Required);
    assert!(world.node("one").unschedulable && world.node("one").maintenance_taint.is_some());
    assert_eq!(state(&world), (LoadBalancerState::Pending, 0));
    assert_eq!(
        world.message("m", "one"),
        "Waiting for the load balancers: pool web still sends traffic"
    );
    pass(&mut world, 86_400);
    assert_eq!(state(&world), (LoadBalancerState::Pending, 0), "Block waits");
    world.observe("one", out(&world));
    world.settle();
    let confirmed = world.now;
    assert_eq!(state(&world), (LoadBalancerState::Draining, 0));
    assert_eq!(world.plan().wake_at, Some(confirmed + SignedDuration::from_secs(20)));
    assert_eq!(world.condition("m", "LoadBalancerOut").unwrap().0, "True");
    pass(&mut world, 19);
    assert_eq!(state(&world), (LoadBalancerState::Draining, 0));
    pass(&mut world, 1);
    assert_eq!(state(&world), (LoadBalancerState::Out, 3));
    assert_eq!(confirmed_time(&world), Some(confirmed));
    assert!(
        world
            .events
            .iter()
            .all(|event| event.reason != EventReason::LoadBalancerNotConfirmed)
    );
}

/// The condition of an agent that counts so many.
fn open(connections: u32) -> MarkerFact {
    MarkerFact {
        status: MarkerStatus::False,
        reason: "ConnectionsOpen".to_owned(),
        message: format!("{connections} connections pass through this node"),
        ..MarkerFact::default()
    }
}

#[test]
fn the_first_pod_waits_for_counted_connections_within_their_bound() {
    // From the confirmation: seconds, what the agent says, and whether the pods leave.
    for (policy, steps) in [
        (
            ConnectionsPolicy::Wait,
            [(19, Some(open(9)), 0), (25, Some(open(3)), 0), (26, None, 3)].as_slice(),
        ),
        (
            ConnectionsPolicy::Wait,
            [(20, Some(open(9)), 0), (79, Some(open(1)), 0), (80, Some(open(1)), 3)].as_slice(),
        ),
        // None, before connectionsDrainSeconds are over.
        (
            ConnectionsPolicy::Wait,
            [(1, None, 0), (19, None, 0), (20, None, 3)].as_slice(),
        ),
        (
            ConnectionsPolicy::Ignore,
            [(19, Some(open(9)), 0), (20, Some(open(9)), 3)].as_slice(),
        ),
    ] {
        let mut world = draining(LoadBalancerConfirmation::Required);
        world.change("m", |one| one.spec.load_balancer.connections = policy);
        world.node("one").connections = Some(open(20));
        world.observe("one", out(&world));
        world.settle();
        let confirmed = world.now;
        for (second, connections, pods) in steps {
            world.node("one").connections.clone_from(connections);
            world.now = confirmed + SignedDuration::from_secs(*second);
            world.settle();
            let expected = if *pods == 0 {
                LoadBalancerState::Draining
            } else {
                LoadBalancerState::Out
            };
            assert_eq!(state(&world), (expected, *pods), "{policy:?}, {second} s");
        }
        let is_cut = steps.last().is_some_and(|(_, connections, _)| connections.is_some());
        let mut events = world.events.iter();
        let is_reported = events.any(|event| event.reason == EventReason::ConnectionsNotDrained);
        assert_eq!(is_reported, is_cut && policy == ConnectionsPolicy::Wait);
    }
}

#[test]
fn connections_wait_for_half_of_the_time_before_a_deadline_at_most() {
    let mut world = draining(LoadBalancerConfirmation::Required);
    world.node("one").connections = Some(open(9));
    world.change("m", |one| one.spec.load_balancer.connections_drain_seconds = 0);
    announce_eviction(&mut world, "one");
    world.observe("one", out(&world));
    world.settle();
    assert!(
        world
            .message("m", "one")
            .contains("9 connections pass through this node")
    );
    pass(&mut world, 14);
    assert_eq!(state(&world), (LoadBalancerState::Draining, 0));
    pass(&mut world, 1);
    assert_eq!(state(&world), (LoadBalancerState::Out, 3));
}

#[test]
fn a_read_that_no_longer_confirms_stops_new_evacuations_only() {
    let mut world = draining(LoadBalancerConfirmation::Required);
    world.observe("one", out(&world));
    world.settle();
    pass(&mut world, 20);
    assert_eq!(state(&world), (LoadBalancerState::Out, 3));
    world.observe("one", in_service());
    world = world.pods("one", 1, PodType::Default, 0);
    world.settle();
    assert_eq!(state(&world), (LoadBalancerState::Pending, 3), "running ones go on");
    assert_eq!(confirmed_time(&world), None);
    world.observe("one", out(&world));
    world.settle();
    let again = world.now;
    assert_eq!(
        (state(&world), confirmed_time(&world)),
        ((LoadBalancerState::Draining, 3), Some(again))
    );
    pass(&mut world, 20);
    assert_eq!(state(&world), (LoadBalancerState::Out, 4));
}

#[test]
fn a_missing_read_closes_the_gate_and_forgets_nothing() {
    let mut world = draining(LoadBalancerConfirmation::Required);
    world.observe("one", out(&world));
    world.settle();
    let confirmed = world.now;
    pass(&mut world, 20);
    world.observe("one", unknown());
    world = world.pods("one", 1, PodType::Default, 0);
    world.settle();
    assert_eq!(state(&world), (LoadBalancerState::Pending, 3));
    assert_eq!(
        world.message("m", "one"),
        "Waiting for a read of the load balancers: Azure answers 500"
    );
    world.observe("one", NodeTraffic::Out { since: Some(confirmed) });
    world.settle();
    assert_eq!(
        (state(&world), confirmed_time(&world)),
        ((LoadBalancerState::Out, 4), Some(confirmed))
    );
}

/// A new leader knows nothing in its first turn.
#[test]
fn a_lost_proof_starts_the_time_to_wait_anew() {
    let mut world = draining(LoadBalancerConfirmation::BestEffort);
    world.node("one").connections = Some(open(9));
    pass(&mut world, 90);
    world.observe("one", out(&world));
    world.settle();
    let confirmed = world.now;
    pass(&mut world, 11);
    world.observe("one", unknown());
    world.settle();
    let lost = world.now;
    assert_eq!(state(&world), (LoadBalancerState::Pending, 0));
    assert_eq!(confirmed_time(&world), Some(confirmed));
    assert_eq!(world.plan().wake_at, Some(lost + SignedDuration::from_secs(100)));
    pass(&mut world, 20);
    world.observe("one", NodeTraffic::Out { since: Some(confirmed) });
    world.settle();
    assert_eq!(
        state(&world),
        (LoadBalancerState::Draining, 0),
        "connections are counted"
    );
    // Once the pods leave, and the node is back in service after the next loss, it waits again.
    pass(&mut world, 60);
    assert_eq!(state(&world), (LoadBalancerState::Out, 3));
    pass(&mut world, 200);
    for (observation, passed, expected) in [
        (unknown(), 99, LoadBalancerState::Pending),
        (in_service(), 99, LoadBalancerState::Pending),
        (unknown(), 1, LoadBalancerState::TimedOut),
    ] {
        world.observe("one", observation);
        world.settle();
        pass(&mut world, passed);
        assert_eq!(state(&world).0, expected);
    }
}

#[test]
fn a_lost_taint_starts_the_time_to_wait_anew() {
    let held_back = || NodeTraffic::HeldBack {
        detail: "pool web".to_owned(),
    };
    for (first, before) in [
        (None, LoadBalancerState::Out),
        (Some(held_back()), LoadBalancerState::TimedOut),
    ] {
        let mut world = draining(LoadBalancerConfirmation::Required);
        let first = first.unwrap_or_else(|| out(&world));
        world.observe("one", first);
        world.settle();
        pass(&mut world, 3600);
        assert_eq!(state(&world), (before, 3));
        world.node("one").maintenance_taint = None;
        world.observe("one", held_back());
        world.settle();
        assert!(world.node("one").maintenance_taint.is_some());
        assert_eq!(state(&world).0, LoadBalancerState::Pending, "{before:?}");
        pass(&mut world, 99);
        assert_eq!(state(&world).0, LoadBalancerState::Pending, "{before:?}");
        pass(&mut world, 1);
        assert_eq!(state(&world).0, LoadBalancerState::TimedOut, "{before:?}");
    }
}

#[test]
fn proceed_after_goes_on_without_and_says_so() {
    for observation in [in_service(), unknown()] {
        let mut world = draining(LoadBalancerConfirmation::BestEffort);
        world.observe("one", observation);
        pass(&mut world, 99);
        assert_eq!(state(&world), (LoadBalancerState::Pending, 0));
        pass(&mut world, 1);
        assert_eq!(state(&world), (LoadBalancerState::TimedOut, 3));
        let events: Vec<_> = world
            .events
            .iter()
            .filter(|event| event.reason == EventReason::LoadBalancerNotConfirmed)
            .collect();
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(events[0].reason.is_warning());
        assert_eq!(world.condition("m", "LoadBalancerOut"), Some(("False", "TimedOut")));
        world.observe("one", out(&world));
        world.settle();
        assert_eq!(
            state(&world),
            (LoadBalancerState::Out, 3),
            "a late confirmation closes nothing"
        );
    }
}

#[test]
fn a_node_that_the_guard_holds_back_passes_under_either_policy() {
    for confirmation in [LoadBalancerConfirmation::Required, LoadBalancerConfirmation::BestEffort] {
        let mut world = draining(confirmation);
        world.observe(
            "one",
            NodeTraffic::HeldBack {
                detail: "pool web".to_owned(),
            },
        );
        world.settle();
        pass(&mut world, 99);
        assert_eq!(state(&world), (LoadBalancerState::Pending, 0));
        assert_eq!(
            world.message("m", "one"),
            "Waiting for the load balancers, where too few other nodes are in service: pool web"
        );
        pass(&mut world, 1);
        assert_eq!(state(&world), (LoadBalancerState::TimedOut, 3));
        assert!(
            world
                .events
                .iter()
                .any(|event| event.reason == EventReason::LoadBalancerNotConfirmed)
        );
    }
}

#[test]
fn required_counts_only_the_time_for_which_the_guard_holds_the_node_back() {
    let held_back = || NodeTraffic::HeldBack {
        detail: "pool web".to_owned(),
    };
    let mut world = draining(LoadBalancerConfirmation::Required);
    pass(&mut world, 1000);
    let not_listed = NodeTraffic::Unknown(Unproved::NotListed(None));
    // A moment at the end of a long wait, and then without a read.
    for (observation, seconds, expected) in [
        (held_back(), 99, LoadBalancerState::Pending),
        (in_service(), 1, LoadBalancerState::Pending),
        (held_back(), 99, LoadBalancerState::Pending),
        (not_listed, 1000, LoadBalancerState::Pending),
        (held_back(), 99, LoadBalancerState::Pending),
        (held_back(), 1, LoadBalancerState::TimedOut),
    ] {
        world.observe("one", observation);
        world.settle();
        pass(&mut world, seconds);
        assert_eq!(state(&world).0, expected);
    }
}

pub(super) fn announce_eviction(world: &mut World, node: &str) {
    let at = world.now + SignedDuration::from_secs(30);
    world.node(node).notice = Some(RecordedNotice {
        is_tainted: true,
        not_before: Some(at),
        ..RecordedNotice::default()
    });
    world.node(node).taints = vec![Taint::new(DRAINING_TAINT, "NoSchedule")];
}

#[test]
fn before_a_deadline_half_of_the_time_is_for_the_load_balancer() {
    let mut world = draining(LoadBalancerConfirmation::BestEffort);
    announce_eviction(&mut world, "one");
    pass(&mut world, 14);
    assert_eq!(state(&world), (LoadBalancerState::Pending, 0));
    pass(&mut world, 1);
    assert_eq!(state(&world), (LoadBalancerState::TimedOut, 3));

    let mut world = draining(LoadBalancerConfirmation::Required);
    announce_eviction(&mut world, "one");
    pass(&mut world, 10);
    world.observe("one", out(&world));
    pass(&mut world, 0);
    pass(&mut world, 9);
    assert_eq!(state(&world), (LoadBalancerState::Draining, 0));
    pass(&mut world, 1);
    assert_eq!(
        state(&world),
        (LoadBalancerState::Out, 3),
        "half of 20 s is shorter than the window"
    );
}

#[test]
fn times_of_a_leader_whose_clock_was_ahead_make_nothing_wait_longer() {
    for (observation, seconds, before, after) in [
        (
            in_service(),
            100,
            LoadBalancerState::Pending,
            LoadBalancerState::TimedOut,
        ),
        (
            NodeTraffic::Out {
                since: Some(Timestamp::UNIX_EPOCH),
            },
            20,
            LoadBalancerState::Draining,
            LoadBalancerState::Out,
        ),
    ] {
        let mut world = draining(LoadBalancerConfirmation::BestEffort);
        world.observe("one", observation);
        world.settle();
        pass(&mut world, -3600);
        pass(&mut world, seconds - 1);
        assert_eq!(state(&world), (before, 0));
        pass(&mut world, 1);
        assert_eq!(state(&world), (after, 3));
    }
}

/// It terminates for another reason, and has no Evacuation: the gate is closed, or its namespace is being deleted.
#[test]
fn a_pod_without_an_evacuation_that_does_not_end_blocks() {
    let mut world = draining(LoadBalancerConfirmation::Required);
    let now = world.now;
    for (pod, seconds) in [(0, -1), (1, 60)] {
        world.snapshot.pods[pod].terminating_until = Some(now + SignedDuration::from_secs(seconds));
    }
    world.settle();
    let status = world.status("m", "one");
    assert_eq!((status.pods_pending_evacuation, status.blockers_total), (3, 1));
    assert_eq!(status.blockers[0].pod_ref.name, "pod-0001");
    assert_eq!(world.condition("m", "Blocked"), Some(("True", "Terminating")));
    assert_eq!(world.plan().wake_at, Some(now + SignedDuration::from_secs(61)));
    pass(&mut world, 61);
    assert_eq!(world.status("m", "one").blockers_total, 2);
}

#[test]
fn every_maintenance_of_a_node_has_to_let_pods_go() {
    let mut world = draining(LoadBalancerConfirmation::BestEffort);
    world.maintain("strict", Stage::Drain, &["one"], &[]);
    world.settle();
    pass(&mut world, 200);
    assert_eq!(state(&world), (LoadBalancerState::TimedOut, 0));
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
    world.maintain("m", Stage::Drain, &["one"], &[]);
    world.settle();
    assert_eq!(world.condition("m", "Drained"), Some(("False", "LoadBalancer")));
    world.observe("one", NodeTraffic::Out { since: None });
    world.settle();
    assert_eq!(world.condition("m", "Drained").unwrap().0, "True");
}

/// A new leader, whose first turn comes before its first read, takes nothing back.
#[test]
fn a_drained_node_stays_drained_while_no_read_shows_it() {
    let mut world = World::default().nodes(&["one", "two"]);
    for node in ["one", "two"] {
        world.observe(node, in_service());
    }
    world.maintain("m", Stage::Drain, &["one", "two"], &[]);
    world.change("m", |one| one.spec.load_balancer.connections_drain_seconds = 20);
    world.settle();
    let conditions = |world: &mut World, node: &str| world.node(node).conditions.keys().cloned().collect::<Vec<_>>();
    let drained = ["Drained", "MaintenanceInProgress"];
    let draining = ["DrainInProgress", "MaintenancePlanned"];
    let drained_events = |world: &World| {
        let events = world.events.iter();
        events.filter(|event| event.reason == EventReason::Drained).count()
    };

    // Before its connections are gone a node is not drained.
    let since = NodeTraffic::Out { since: Some(world.now) };
    world.observe("one", since.clone());
    pass(&mut world, 0);
    pass(&mut world, 19);
    world.observe("one", unknown());
    pass(&mut world, 10);
    assert_eq!(conditions(&mut world, "one"), draining);

    // One of two.
    world.observe("one", since.clone());
    world.settle();
    assert_eq!(conditions(&mut world, "one"), drained);
    world.observe("one", unknown());
    pass(&mut world, 3600);
    let count = |world: &World| world.maintenance("m").status.as_ref().unwrap().drained_nodes;
    assert_eq!(
        (conditions(&mut world, "one"), count(&world)),
        (drained.map(str::to_owned).to_vec(), 1)
    );
    assert_eq!(conditions(&mut world, "two"), draining);

    // Both.
    for node in ["one", "two"] {
        world.observe(node, since.clone());
    }
    world.settle();
    pass(&mut world, 3600);
    assert_eq!(world.condition("m", "Drained").unwrap().0, "True");
    for node in ["one", "two"] {
        world.observe(node, unknown());
    }
    world.settle();
    assert_eq!(world.condition("m", "Drained").unwrap().0, "True");
    assert_eq!(world.condition("m", "Blocked").unwrap().0, "False");
    assert_eq!(world.condition("m", "LoadBalancerOut"), Some(("False", "Waiting")));
    for node in ["one", "two"] {
        assert_eq!(conditions(&mut world, node), drained);
        world.observe(node, since.clone());
    }
    world.settle();
    assert_eq!(drained_events(&world), 1);

    // What says that it may serve again is more than a missing read.
    for why in [Unproved::ModeOff, Unproved::EntryNotPlanned, Unproved::NotIdentified] {
        world.observe("two", NodeTraffic::Unknown(why));
        world.settle();
        assert_eq!(conditions(&mut world, "two"), draining);
        world.observe("two", since.clone());
        pass(&mut world, 0);
        pass(&mut world, 20);
        assert_eq!(conditions(&mut world, "two"), drained);
    }

    // A pod, or a read that shows it in service.
    world.observe("one", unknown());
    world = world.pods("one", 1, PodType::Default, 0);
    world.settle();
    assert_eq!(conditions(&mut world, "one"), draining);
    assert_eq!(world.evacuated_pods().len(), 0, "the gate is closed");
    world.snapshot.pods.clear();
    world.observe("one", since.clone());
    world.settle();
    assert_eq!(conditions(&mut world, "one"), drained);
    // Another maintenance waits for its own connections, and takes nothing back of the first.
    let events = drained_events(&world);
    world.maintain("other", Stage::Drain, &["one"], &[]);
    for observation in [since, unknown()] {
        world.observe("one", observation);
        world.settle();
        assert_eq!(world.condition("m", "Drained").unwrap().0, "True");
        assert_eq!(world.condition("other", "Drained"), Some(("False", "LoadBalancer")));
        // A machine that others take for drained may go.
        assert_eq!(conditions(&mut world, "one"), draining);
    }
    assert_eq!(drained_events(&world), events);
    world.observe("two", in_service());
    world.settle();
    assert_eq!(conditions(&mut world, "two"), draining);
}
