//! `spec.deadline`: load balancer first, then the pods in order, and at half of the time all of them.

use headgate_maintenance::api::{LoadBalancerConfirmation, LoadBalancerState, NodeMaintenance, PodType, Stage};
use jiff::{SignedDuration, Timestamp};

use crate::world::{OUT, World, announce_eviction, in_service};

/// A node with a pod of each step of the order, and a maintenance that has so many seconds.
fn taken(seconds: i64) -> (World, Timestamp) {
    let mut world = World::default()
        .nodes(&["one", "two"])
        .pods("one", 1, PodType::Default, 0)
        .pods("one", 1, PodType::Default, 2_000_000_000)
        .pods("one", 1, PodType::DaemonSet, 0);
    world.maintain("m", Stage::Drain, &["one"], &[]);
    let created = world.now;
    world.set_deadline("m", seconds);
    (world, created)
}

#[test]
fn the_order_holds_for_half_of_the_time() {
    let (mut world, created) = taken(60);
    world.settle();
    assert_eq!(world.evacuated_pods().len(), 1, "the first step");
    assert_eq!(world.message("m", "one"), "Evacuating");
    assert_eq!(world.plan().wake_at, Some(created + SignedDuration::from_secs(30)));
    world.pass(29);
    assert_eq!(world.evacuated_pods().len(), 1);
    world.pass(1);
    assert_eq!(world.evacuated_pods().len(), 3);
    assert_eq!(
        world.message("m", "one"),
        "Evacuating all pods at once: the node is expected to be gone at 2026-01-01T00:01:01Z"
    );
    assert_eq!(world.plan().wake_at, None);
    world.leave("one", 3).settle();
    assert_eq!(world.message("m", "one"), "");
    assert!(world.is_drained("m"));
}

#[test]
fn a_later_deadline_gives_the_order_back() {
    let (mut world, _) = taken(60);
    world.settle();
    world.pass(30);
    world.set_deadline("m", 600).settle();
    assert_eq!(world.evacuated_pods().len(), 1);
}

#[test]
fn the_load_balancer_has_half_of_what_is_left_at_most() {
    let (mut world, _) = taken(60);
    world.observe("one", in_service()).settle();
    world.change("m", best_effort);
    world.pass(29);
    assert_eq!(world.evacuated_pods().len(), 0);
    world.pass(1);
    let state = world.status("m", "one").load_balancer.clone().unwrap().state;
    assert_eq!(state, LoadBalancerState::TimedOut);
    assert_eq!(world.evacuated_pods().len(), 3, "and the order has ended");
    // One with another policy waits on for its own gate.
    world.maintain("strict", Stage::Drain, &["one"], &[]);
    world.leave("one", 3).settle();
    assert!(world.is_drained("m"));
    assert_eq!(world.condition("strict", "Drained"), ("False", "LoadBalancer"));
    // A deadline that was wrong shortens no wait that begins later.
    world.pass(30 + 301);
    world
        .maintain("later", Stage::Drain, &["one"], &[])
        .change("later", best_effort)
        .settle();
    let state = |world: &World| world.status("later", "one").load_balancer.clone().unwrap().state;
    assert_eq!(state(&world), LoadBalancerState::Pending);
    world.pass(600);
    assert_eq!(state(&world), LoadBalancerState::TimedOut);
}

fn best_effort(maintenance: &mut NodeMaintenance) {
    maintenance.spec.load_balancer.confirmation = LoadBalancerConfirmation::BestEffort;
}

fn blocked(world: &World) -> (&str, &str) {
    world.condition("m", "Blocked")
}

#[test]
fn a_required_confirmation_is_waited_for_beyond_the_deadline_and_says_so_from_half_of_the_time_on() {
    // By the maintenance, by an eviction notice, by a maintenance with a longer time.
    for (notice, seconds, half) in [(false, 60, 30), (true, 3600, 15), (false, 3600, 600)] {
        let (mut world, created) = taken(seconds);
        world.observe("one", in_service());
        if notice {
            announce_eviction(&mut world, "one");
        }
        world.settle();
        assert_eq!(world.plan().wake_at, Some(created + SignedDuration::from_secs(half)));
        world.pass(half - 1);
        assert_eq!(blocked(&world).0, "False");
        world.pass(1);
        // Also when the deadline is long over.
        for seconds in [60, 300, 60] {
            assert_eq!(world.evacuated_pods().len(), 0);
            assert_eq!(blocked(&world), ("True", "LoadBalancerNotConfirmed"));
            let message = &world.whole_condition("m", "Blocked").message;
            assert!(message.contains("or half of the time until the deadline"), "{message}");
            world.pass(seconds);
        }
        world.observe("one", OUT).settle();
        assert_eq!(blocked(&world).0, "False");
        assert!(!world.evacuated_pods().is_empty());
    }
}

#[test]
fn another_maintenance_holds_no_pod_of_a_node_that_is_gone_soon() {
    let (mut world, _) = taken(60);
    world = world.pods("two", 1, PodType::Default, 0);
    world.maintain("long", Stage::Drain, &["one", "two"], &[]).settle();
    world.change("long", |one| one.status = None);
    world.observe("one", in_service()).settle();
    world.observe("one", OUT);
    world.pass(30);
    assert_eq!(world.evacuated_pods().len(), 4, "the order of two goes on as it was");
    world.leave("one", 3).settle();
    assert_eq!(world.message("long", "two"), "Evacuating");
}

#[test]
fn a_node_that_is_drained_until_a_deadline_is_given_to_autoscalers_also_where_another_maintenance_has_none() {
    let (mut world, _) = taken(60);
    world.maintain("other", Stage::Cordon, &["one"], &[]);
    world.maintain("long", Stage::Cordon, &["two"], &[]).settle();
    for (node, is_kept) in [("one", false), ("two", true)] {
        let node = world.node(node);
        assert!(node.was_unschedulable.is_some());
        assert_eq!(node.is_kept_from_scale_down, is_kept);
    }
}
