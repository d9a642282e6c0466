//! `maintenance.maxConcurrentNodes`: which nodes wait, what the status says of them, and when they are taken up.

use headgate_core::settings::IntOrPercent;
use headgate_maintenance::api::{NodeMaintenance, PodType, Stage};
use headgate_maintenance::drain_plan::DrainTargets;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::properties::{begin, happen, happenings, pods};
use crate::world::{World, adds_finalizer, announce_eviction, entry};

fn limited(nodes: &[&str], limit: IntOrPercent) -> World {
    let mut world = World::default().nodes(nodes);
    world.snapshot.max_concurrent_nodes = Some(limit);
    world
}

/// The nodes that maintenances keep cordoned.
fn cordoned(world: &World) -> Vec<&str> {
    let nodes = world.snapshot.nodes.iter();
    let kept = nodes.filter(|node| node.was_unschedulable.is_some());
    kept.map(|node| node.name.as_str()).collect()
}

fn reason<'a>(world: &'a World, maintenance: &str, kind: &str) -> &'a str {
    world.condition(maintenance, kind).1
}

#[test]
fn nodes_wait_for_room_and_are_taken_up_older_maintenances_first() {
    let mut world = limited(&["a", "b", "c", "d", "e"], IntOrPercent::Int(2));
    world.maintain("idle", Stage::Idle, &["a", "b"], &[]);
    world.maintain("old", Stage::Drain, &["c", "d", "e"], &[]);
    world.maintain("new", Stage::Cordon, &["a", "d"], &[]).settle();
    assert_eq!(cordoned(&world), ["c", "d"]);
    let waiting = "Waiting for room: maintenance.maxConcurrentNodes is 2";
    for (maintenance, node, message) in [
        ("old", "c", ""),
        ("old", "d", ""),
        ("old", "e", waiting),
        ("new", "a", waiting),
        ("new", "d", ""),
    ] {
        assert_eq!(world.message(maintenance, node), message, "{maintenance} {node}");
    }
    let mut notes = world.events.iter().map(|event| event.note.as_str());
    assert!(notes.any(|note| note == "Stage Drain started on 2 nodes (1 waiting for room)"));
    // The two that it has are drained; the maintenance is not.
    for kind in ["Drained", "LoadBalancerOut"] {
        assert_eq!(world.condition("old", kind), ("False", "WaitingForRoom"), "{kind}");
    }
    world.remove_node("c").settle();
    assert_eq!(cordoned(&world), ["d", "e"], "the older one goes on");
    assert_eq!(reason(&world, "old", "Drained"), "DrainCompleted");
    world.delete("old").settle();
    assert_eq!(
        cordoned(&world),
        ["a", "d"],
        "what the newer one shares stays, and it has room"
    );
    assert!(!world.node("e").unschedulable);
}

#[test]
fn only_nodes_that_wait_for_room_are_no_missing_nodes() {
    let mut world = limited(&["a", "b"], IntOrPercent::Percent(1));
    world.maintain("old", Stage::Cordon, &["a"], &[]);
    world.maintain("new", Stage::Drain, &["b"], &[]).settle();
    assert_eq!(cordoned(&world), ["a"], "a percentage is one node at least");
    assert_eq!(reason(&world, "new", "Drained"), "WaitingForRoom");
    assert_eq!(reason(&world, "new", "Accepted"), "Accepted");
}

/// Its finalizer may be refused for ever.
#[test]
fn a_maintenance_that_has_not_begun_takes_no_place_from_others() {
    for (before, stage, has_deadline, then) in [
        (Stage::Cordon, Stage::Cordon, false, ["b"].as_slice()),
        (Stage::Drain, Stage::Drain, true, &["a", "b"]),
        (Stage::Idle, Stage::Complete, false, &["b"]),
    ] {
        let mut world = limited(&["a", "b"], IntOrPercent::Int(1));
        world.maintain("refused", before, &["a"], &[]);
        if has_deadline {
            world.set_deadline("refused", 600);
        }
        world.settle_refusing(adds_finalizer("refused"));
        world.set_stage("refused", stage);
        world.maintain("other", Stage::Cordon, &["b"], &[]);
        world.settle_refusing(adds_finalizer("refused"));
        assert_eq!(cordoned(&world), ["b"], "{stage:?}");
        world.settle();
        assert_eq!(cordoned(&world), then, "{stage:?}");
    }
}

#[test]
fn what_is_cordoned_stays_and_a_node_that_is_evicted_never_waits() {
    let mut world = limited(&["a", "b", "c", "d"], IntOrPercent::Percent(50));
    world.maintain("m", Stage::Drain, &["a", "b", "c", "d"], &[]).settle();
    assert_eq!(cordoned(&world), ["a", "b"]);
    world.snapshot.max_concurrent_nodes = Some(IntOrPercent::Int(1));
    assert_eq!(world.plan().actions.len(), 1, "the message of c and d");
    world.settle();
    assert_eq!(cordoned(&world), ["a", "b"]);
    announce_eviction(&mut world, "d");
    world.settle();
    assert_eq!(cordoned(&world), ["a", "b", "d"]);
    // Uncordoned by somebody, without the annotation: it is in its course, and is cordoned again.
    let node = world.node("a");
    (node.unschedulable, node.was_unschedulable) = (false, None);
    world.settle();
    assert_eq!(cordoned(&world), ["a", "b", "d"]);
}

#[test]
fn a_node_that_is_taken_up_later_is_drained_in_the_order_of_the_plan() {
    let mut world = limited(&["a", "b"], IntOrPercent::Int(1))
        .pods("a", 1, PodType::Default, 5)
        .pods("b", 1, PodType::Default, 5)
        .pods("b", 1, PodType::Default, 2_000_000_000);
    world.maintain("m", Stage::Drain, &["a", "b"], &[entry(PodType::Default, 5)]);
    world.settle();
    world.leave("a", 1).settle();
    let reached: DrainTargets = world.status("m", "a").drain_targets.iter().collect();
    // The machine of a is renewed: its Node goes, and b has room.
    world.remove_node("a").settle();
    assert_eq!(world.evacuated_pods().len(), 1, "the critical pod stays for now");
    let begun: DrainTargets = world.status("m", "b").drain_targets.iter().collect();
    assert!(begun.position() < reached.position());
    world.leave("b", 1).settle();
    world.leave("b", 1).settle();
    assert_eq!(reason(&world, "m", "Drained"), "DrainCompleted");
}

#[test]
fn of_more_nodes_than_a_status_can_have_the_others_wait() {
    let names: Vec<_> = (0..501).map(|n| format!("node-{n:03}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for (stage, dry_run) in [(Stage::Cordon, false), (Stage::Drain, false), (Stage::Drain, true)] {
        let mut world = World::default().nodes(&names[1..]);
        world.maintain("m", stage, &names, &[]);
        world.change("m", |one| one.spec.dry_run = dry_run);
        world.settle();
        let count = |world: &World| {
            let status = world.maintenance_status("m");
            (status.selected_nodes, status.node_statuses.len(), cordoned(world).len())
        };
        let all = if dry_run { 0 } else { 500 };
        assert_eq!(count(&world), (500, 500, all), "{stage:?}");
        // One joins, before the others by name.
        world = world.nodes(&names[..1]);
        world.settle();
        assert_eq!(count(&world), (501, 500, all), "{stage:?}");
        // A limit that has room is not what holds back.
        world.snapshot.max_concurrent_nodes = Some(IntOrPercent::Int(600));
        world.settle();
        let progressing = world.whole_condition("m", "Progressing");
        let (why, _) = progressing.message.rsplit_once(": ").unwrap();
        assert_eq!(why, "Waiting for room: a maintenance has 500 nodes at once at most");
        if dry_run {
            continue;
        }
        assert!(!world.node("node-000").unschedulable, "none is given back for it");
        if stage == Stage::Drain {
            assert_eq!(reason(&world, "m", "Drained"), "WaitingForRoom");
        }
        world.remove_node("node-100").settle();
        assert!(world.node("node-000").unschedulable);
        world.delete("m").settle();
        assert_eq!(world.find("m"), None);
        assert_eq!(cordoned(&world), Vec::<&str>::new());
    }
}

proptest! {
    #[test]
    fn never_more_nodes_than_the_limit_also_where_leaders_die(
        limit in 1..4_u32, first in vec(pods(), 0..8), then in vec(happenings(), 1..12), at in vec(0..6_usize, 12)
    ) {
        let mut world = begin(&first);
        world.snapshot.max_concurrent_nodes = Some(IntOrPercent::Int(limit));
        let mut at = at.iter().cycle();
        for (number, happening) in then.iter().enumerate() {
            happen(&mut world, happening, number);
            for _ in 0..3 {
                for action in world.plan().actions.into_iter().take(*at.next().unwrap()) {
                    world.apply(action);
                    prop_assert!(cordoned(&world).len() <= limit as usize, "{:?}", cordoned(&world));
                }
            }
            world.settle();
            prop_assert!(cordoned(&world).len() <= limit as usize, "{:?}", cordoned(&world));
        }
        // Whoever waits has room at last.
        while !world.snapshot.maintenances.is_empty() {
            let wants_nodes = |one: &NodeMaintenance| matches!(one.spec.stage, Stage::Cordon | Stage::Drain);
            let all_wait = cordoned(&world).is_empty() && world.snapshot.maintenances.iter().any(wants_nodes);
            prop_assert!(!all_wait, "all wait: {:#?}", world.snapshot.maintenances);
            let name = world.snapshot.maintenances[0].metadata.name.clone().unwrap();
            world.delete(&name).settle();
            prop_assert!(world.find(&name).is_none());
        }
        prop_assert!(cordoned(&world).is_empty());
    }
}
