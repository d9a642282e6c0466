//! The worked example of KEP-4212 with three maintenances: targets, messages and counts of each step.

use headgate_maintenance::api::{PodType, Stage};
use headgate_maintenance::drain_plan::PodSelector;
use headgate_maintenance::plan::action::{Action, Event, EventReason};

use crate::world::{World, adds_finalizer, entry};

/// What each maintenance shows of each of its nodes: the only target, the pods, and the message.
fn shown(world: &World) -> Vec<String> {
    let maintenances = world.snapshot.maintenances.iter();
    let shown = maintenances.flat_map(|maintenance| {
        let name = maintenance.metadata.name.as_deref().unwrap();
        world.maintenance_status(name).node_statuses.iter().map(move |status| {
            let (node, message) = (&status.node_ref.name, &status.drain_message);
            let [target] = &status.drain_targets[..] else {
                panic!("{node}: {status:?}")
            };
            assert_eq!(target.pod_type, PodType::Default);
            let (pending, evacuating) = (status.pods_pending_evacuation, status.pods_evacuating);
            format!(
                "{name} {node} to {}: {evacuating} evacuating, {pending} pending, {message}",
                target.pod_priority
            )
        })
    });
    shown.collect()
}

fn counts(world: &World, maintenance: &str, node: &str) -> (i32, i32) {
    let status = world.status(maintenance, node);
    (status.pods_pending_evacuation, status.pods_evacuating)
}

#[test]
fn three_intersecting_maintenances() {
    use PodType::{DaemonSet, Default};
    let mut world = World::default()
        .nodes(&["one", "two", "three", "four"])
        .pods("one", 10, Default, 5_000)
        .pods("one", 30, Default, 10_000)
        .pods("one", 70, Default, 15_000)
        .pods("two", 7, Default, 4_000)
        .pods("two", 9, Default, 15_000)
        .pods("two", 21, Default, 15_001)
        .pods("three", 25, Default, 10_000)
        .pods("three", 45, Default, 10_001)
        .pods("four", 5, Default, 2_000)
        .pods("four", 20, Default, 2_001);
    let plan_a = [entry(Default, 5_000), entry(Default, 15_000), entry(DaemonSet, 3_000)];
    let plan_b = [entry(Default, 10_000), entry(Default, 15_000), entry(DaemonSet, 4_000)];
    let plan_c = [entry(Default, 2_000), entry(Default, 15_000)];
    world.maintain("a", Stage::Drain, &["one", "two"], &plan_a);
    world.maintain("b", Stage::Drain, &["one", "three"], &plan_b);

    // V0
    world.settle();
    let expected = [
        "a one to 5000: 10 evacuating, 100 pending, Evacuating",
        "a two to 5000: 7 evacuating, 30 pending, Evacuating",
        "b one to 5000: 10 evacuating, 100 pending, Evacuating (limited by a)",
        "b three to 10000: 25 evacuating, 45 pending, Evacuating",
    ];
    assert_eq!(shown(&world), expected);
    assert_eq!(
        ["a", "b"].map(|name| world.maintenance_status(name).pods_left),
        [147, 180]
    );

    // V1: node three is done.
    world.leave("three", 25).leave("one", 5).settle();
    let expected = [
        "a one to 5000: 5 evacuating, 100 pending, Evacuating",
        "a two to 5000: 7 evacuating, 30 pending, Evacuating",
        "b one to 5000: 5 evacuating, 100 pending, Evacuating (limited by a)",
        "b three to 10000: 0 evacuating, 45 pending, Waiting for node one.",
    ];
    assert_eq!(shown(&world), expected);

    // V2: node one is done too.
    world.leave("one", 5).leave("two", 5).settle();
    let expected = [
        "a one to 5000: 0 evacuating, 100 pending, Waiting for node two.",
        "a two to 5000: 2 evacuating, 30 pending, Evacuating",
        "b one to 5000: 0 evacuating, 100 pending, Waiting for node two (a).",
        "b three to 10000: 0 evacuating, 45 pending, Waiting for node two (a).",
    ];
    assert_eq!(shown(&world), expected);

    // V3: node two is done.
    world.leave("two", 2).settle();
    let expected = [
        "a one to 10000: 30 evacuating, 70 pending, Evacuating (limited by b)",
        "a two to 15000: 9 evacuating, 21 pending, Evacuating",
        "b one to 10000: 30 evacuating, 70 pending, Evacuating",
        "b three to 10000: 0 evacuating, 45 pending, Waiting for node one.",
    ];
    assert_eq!(shown(&world), expected);

    // V4: c is created.
    assert_eq!(world.recorded(EventReason::FastForwarded), Vec::<&Event>::new());
    world.maintain("c", Stage::Drain, &["one", "four"], &plan_c).settle();
    let expected = [
        "a one to 10000: 30 evacuating, 70 pending, Evacuating (limited by b)",
        "a two to 15000: 9 evacuating, 21 pending, Evacuating",
        "b one to 10000: 30 evacuating, 70 pending, Evacuating",
        "b three to 10000: 0 evacuating, 45 pending, Waiting for node one.",
        "c four to 2000: 5 evacuating, 20 pending, Evacuating",
        "c one to 10000: 30 evacuating, 70 pending, Evacuating (fast-forwarded by older b)",
    ];
    assert_eq!(shown(&world), expected);
    let forwarded = world.recorded(EventReason::FastForwarded);
    let [event] = forwarded[..] else {
        panic!("{forwarded:?}")
    };
    assert_eq!((event.maintenance.as_str(), event.node.as_deref()), ("c", Some("one")));
    assert_eq!(
        event.note,
        "Node one is further on than this drain plan, because of older a, b; pods of earlier entries leave at once"
    );
    // Who raised the target may be gone.
    let mut alone = world.clone();
    alone.delete("a").delete("b").settle();
    assert_eq!(alone.message("c", "one"), "Evacuating");

    // V5: only node four has pods left at its target.
    world.leave("one", 30).leave("two", 9).settle();
    let expected = [
        "a one to 10000: 0 evacuating, 70 pending, Waiting for node four (c).",
        "a two to 15000: 0 evacuating, 21 pending, Waiting for node four (c).",
        "b one to 10000: 0 evacuating, 70 pending, Waiting for node four (c).",
        "b three to 10000: 0 evacuating, 45 pending, Waiting for node four (c).",
        "c four to 2000: 5 evacuating, 20 pending, Evacuating",
        "c one to 10000: 0 evacuating, 70 pending, Waiting for node four.",
    ];
    assert_eq!(shown(&world), expected);

    // V6: node four is done.
    world.leave("four", 5).settle();
    let expected = [
        "a one to 15000: 70 evacuating, 0 pending, Evacuating",
        "a two to 15000: 0 evacuating, 21 pending, Waiting for node one.",
        "b one to 15000: 70 evacuating, 0 pending, Evacuating",
        "b three to 15000: 45 evacuating, 0 pending, Evacuating",
        "c four to 15000: 20 evacuating, 0 pending, Evacuating",
        "c one to 15000: 70 evacuating, 0 pending, Evacuating",
    ];
    assert_eq!(shown(&world), expected);
}

#[test]
fn one_maintenance_goes_through_its_plan() {
    use PodType::{DaemonSet, Default};
    let mut world = World::default()
        .nodes(&["one"])
        .pods("one", 1, Default, 0)
        .pods("one", 1, Default, 2_000_000_000)
        .pods("one", 1, DaemonSet, 2_000_001_000)
        .pods("one", 1, PodType::Static, 2_000_001_000);
    world.maintain("m", Stage::Drain, &["one"], &[]);
    for pod in ["pod-0001", "pod-0002", "pod-0003"] {
        world.settle();
        assert_eq!(world.evacuated_pods(), [pod]);
        assert!(!world.is_drained("m"));
        world.leave("one", 1);
    }
    world.settle();
    assert_eq!(world.evacuated_pods().len(), 0, "the static pod is left alone");
    assert_eq!(world.condition("m", "Drained"), ("True", "DrainCompleted"));
    let index = world.maintenance_status("m").drain_plan_index;
    assert_eq!(index, Some(11), "the last of twelve entries");
    assert_eq!(world.status("m", "one").pods_unsupported, 1);
    assert_eq!(counts(&world, "m", "one"), (0, 0));
    assert_eq!(world.message("m", "one"), "");
}

/// A node with a pod that leaves late.
fn critical() -> World {
    let world = World::default().nodes(&["one"]);
    world.pods("one", 1, PodType::Default, 2_000_000_000)
}

#[test]
fn a_pod_of_an_earlier_entry_that_appears_later_leaves_too() {
    let mut world = critical();
    world.maintain("m", Stage::Drain, &["one"], &[]).settle();
    world = world.pods("one", 1, PodType::Default, 5);
    world.settle();
    assert_eq!(world.evacuated_pods().len(), 2);
}

#[test]
fn a_node_that_joins_begins_with_the_first_entry() {
    let mut world = critical()
        .pods("two", 1, PodType::Default, 5)
        .pods("two", 1, PodType::Default, 2_000_000_000)
        .pods("two", 1, PodType::Default, i32::MAX);
    world.maintain("m", Stage::Drain, &["one", "two"], &[]).settle();
    world = world.nodes(&["two"]);
    world.settle();
    assert_eq!(counts(&world, "m", "two"), (2, 1));
    assert_eq!(counts(&world, "m", "one"), (0, 1), "what has begun goes on");
    let message = world.message("m", "one");
    assert_eq!(message, "Evacuating", "no other maintenance is further on");
    assert!(world.node("two").unschedulable);
    world.leave("two", 1).settle();
    // Not before the pod of the entry on the other node has left.
    assert_eq!(counts(&world, "m", "two"), (2, 0));
    assert_eq!(world.message("m", "two"), "Waiting for node one.");
    world.remove_node("two");
    world.remove_pods(|pod| pod.node == "two");
    world.leave("one", 1).settle();
    assert_eq!(
        world.condition("m", "Drained").0,
        "True",
        "a deleted node counts as done"
    );
    assert_eq!(world.maintenance_status("m").node_statuses.len(), 1);
}

#[test]
fn a_selector_that_matches_no_node_drains_nothing() {
    let no_nodes = ("False", "NoNodes");
    let mut world = World::default().nodes(&["two"]);
    world.maintain("m", Stage::Drain, &["one"], &[]).settle();
    assert_eq!(world.condition("m", "Drained"), no_nodes);
    assert_eq!(world.condition("m", "LoadBalancerOut"), no_nodes);
    assert_eq!(world.maintenance_status("m").drain_plan_index, Some(0));
}

/// A node with a pod of each step of the order.
fn three_steps() -> World {
    critical()
        .pods("one", 1, PodType::Default, 5)
        .pods("one", 1, PodType::DaemonSet, 5)
}

/// As when a node gets the label that a maintenance selects.
#[test]
fn a_maintenance_that_had_no_node_begins_with_the_first_entry_where_another_one_drains_its_node() {
    let mut world = three_steps();
    world.maintain("m", Stage::Drain, &["absent"], &[]);
    world.maintain("other", Stage::Drain, &["one"], &[]).settle();
    world.select("m", &["one"]).settle();
    world.delete("other").settle();
    assert_eq!(world.evacuated_pods(), ["pod-0002"]);
}

/// It has drained a node, which may be gone since.
#[test]
fn a_maintenance_begins_with_the_first_entry_on_a_node_that_another_one_drains() {
    for is_gone in [false, true] {
        let mut world = three_steps().nodes(&["drained"]);
        world.maintain("m", Stage::Drain, &["drained"], &[]);
        world.maintain("other", Stage::Drain, &["one"], &[]).settle();
        if is_gone {
            world.remove_node("drained").settle();
            world.select("m", &["one"]);
        } else {
            world.select("m", &["drained", "one"]);
        }
        world.settle();
        world.delete("other").settle();
        assert_eq!(world.evacuated_pods(), ["pod-0002"], "{is_gone}");
    }
}

#[test]
fn nodes_that_are_deleted_in_a_drain_are_drained_and_those_that_stop_to_match_are_not() {
    let drained = |is_deleted: bool| {
        let mut world = World::default().nodes(&["one"]).pods("one", 1, PodType::Default, 0);
        world.maintain("m", Stage::Drain, &["one"], &[]).settle();
        assert!(!world.is_drained("m"));
        if is_deleted {
            world.snapshot.nodes.clear();
            world.remove_pods(|_| true);
        } else {
            world.node("one").name = "renamed".to_owned();
            world.change("m", |one| {
                one.status.as_mut().unwrap().node_statuses[0].node_ref.name = "renamed".to_owned();
            });
        }
        world.settle();
        // What was said stays said.
        world.settle();
        world
    };
    let mut deleted = drained(true);
    assert!(deleted.is_drained("m"));
    let last = deleted.events.last().unwrap();
    assert_eq!(last.note, "All pods have left; the nodes are gone");
    assert_eq!(deleted.condition("m", "AllNodesSelected").0, "False");
    let unmatched = drained(false);
    assert_eq!(unmatched.condition("m", "Drained"), ("False", "NoNodes"));
    // Another selector says something else.
    deleted.change("m", |one| one.metadata.generation = Some(2));
    deleted.settle();
    assert_eq!(deleted.condition("m", "Drained").1, "NoNodes");
}

#[test]
fn a_newer_maintenance_adds_nothing_to_a_node_that_is_further_on() {
    let mut world = World::default()
        .nodes(&["one"])
        .pods("one", 1, PodType::Default, 10)
        .pods("one", 1, PodType::Default, 3);
    world.snapshot.pods[0].labels.insert("app".to_owned(), "db".to_owned());
    let mut labelled = entry(PodType::Default, 10);
    labelled.pod_selector = Some(PodSelector::label("app", "db"));
    world.maintain("older", Stage::Drain, &["one"], &[labelled.clone()]);
    world.settle();
    world.maintain("newer", Stage::Drain, &["one"], &[entry(PodType::Default, 5)]);
    world.settle();
    assert_eq!(world.status("newer", "one").drain_targets, [labelled]);
    assert_eq!(
        world.message("newer", "one"),
        "Evacuating (fast-forwarded by older older)"
    );
    assert_eq!(world.evacuated_pods(), ["pod-0001"]);
    world.leave("one", 1).settle();
    assert_eq!(world.evacuated_pods(), ["pod-0002"]);
}

/// Both maintenances of node one move in the same plan, and only the first status is written.
fn write_one_of_two_statuses(world: &mut World, maintenance: &str) {
    let is_status_of =
        |action: &Action| matches!(action, Action::UpdateStatus { maintenance: of, .. } if of == maintenance);
    let actions = world.plan().actions;
    let (written, lost): (Vec<_>, Vec<_>) = actions.into_iter().partition(is_status_of);
    assert_eq!(written.len(), 1);
    assert!(lost.iter().any(|action| matches!(action, Action::UpdateStatus { .. })));
    for action in written {
        world.apply(action);
    }
}

/// What is evacuated after a pod left a node of maintenance a, or of both, and the status of only one was written: a has the nodes one
/// and two, b has one and three, each with a pod of these kinds.
fn assert_evacuated_after_a_lost_status(pods: [(PodType, i32); 3], left: &str, expected: &[&str]) {
    for written in ["a", "b"] {
        let mut world = World::default().nodes(&["one", "two", "three"]);
        for (node, (kind, priority)) in ["one", "two", "three"].into_iter().zip(pods) {
            world = world.pods(node, 1, kind, priority);
        }
        world.maintain("a", Stage::Drain, &["one", "two"], &[]);
        world.maintain("b", Stage::Drain, &["one", "three"], &[]).settle();
        world.leave(left, 1);
        write_one_of_two_statuses(&mut world, written);
        world.settle();
        assert_eq!(world.evacuated_pods(), expected, "{written}");
    }
}

#[test]
fn a_maintenance_whose_status_was_lost_is_not_held_by_the_node_that_it_shares() {
    let pods = [(PodType::DaemonSet, 0), (PodType::Default, 0), (PodType::DaemonSet, 0)];
    assert_evacuated_after_a_lost_status(pods, "two", &["pod-0001", "pod-0003"]);
}

#[test]
fn a_maintenance_whose_status_was_lost_is_not_overtaken() {
    let pods = [
        (PodType::Default, 0),
        (PodType::DaemonSet, 0),
        (PodType::Default, i32::MAX),
    ];
    assert_evacuated_after_a_lost_status(pods, "one", &["pod-0003"]);
}

#[test]
fn a_maintenance_that_another_one_holds_is_not_overtaken() {
    let mut world = World::default()
        .nodes(&["one", "two", "three"])
        .pods("one", 1, PodType::Default, 0)
        .pods("one", 1, PodType::Default, i32::MAX)
        .pods("three", 1, PodType::DaemonSet, 0);
    let mut labelled = entry(PodType::Default, i32::MAX);
    labelled.pod_selector = Some(PodSelector::label("app", "db"));
    world.maintain("holding", Stage::Drain, &["one"], &[labelled]);
    world.maintain("held", Stage::Drain, &["one", "two"], &[]);
    world.maintain("behind", Stage::Drain, &["two", "three"], &[]).settle();
    world.leave("one", 1).settle();
    // The entry with the label takes "holding" one step more, in which "held" is idle but not done.
    assert_eq!(world.evacuated_pods(), ["pod-0002"]);
}

/// The finalizer of the older one is written late. Meanwhile nothing leaves node two, which no other maintenance drains, and nothing node
/// one for so long, but for a deadline; node three does not wait.
#[test]
fn a_maintenance_that_is_about_to_start_is_not_overtaken() {
    let overtaken = "Evacuating (fast-forwarded by younger)";
    let all = ["pod-0001", "pod-0002", "pod-0004"].to_vec();
    for (seconds, has_deadline, meanwhile, expected, message) in [
        (5, false, vec!["pod-0004"], 5_000, "Evacuating"),
        (60, false, all.clone(), 10_000, overtaken),
        (5, true, all.clone(), 10_000, overtaken),
    ] {
        let mut world = World::default().nodes(&["one", "two", "three"]);
        for (node, priority) in [("one", 5_000), ("one", 10_000), ("two", 5_000), ("three", 10_000)] {
            world = world.pods(node, 1, PodType::Default, priority);
        }
        world.maintain(
            "older",
            Stage::Drain,
            &["one", "two"],
            &[entry(PodType::Default, 5_000)],
        );
        let plan = [entry(PodType::Default, 10_000)];
        world.maintain("younger", Stage::Drain, &["one", "three"], &plan);
        if has_deadline {
            world.set_deadline("younger", 600);
        }
        world.now = world.after(seconds);
        for _ in 0..10 {
            let planned = world.plan();
            if seconds < 30 {
                assert!(planned.wake_at.is_some_and(|at| at > world.now), "{planned:?}");
            }
            for action in planned.actions {
                if !adds_finalizer("older")(&action) {
                    world.apply(action);
                }
            }
        }
        assert_eq!(world.evacuated_pods(), meanwhile);
        world.settle();
        assert_eq!(world.status("older", "one").drain_targets[0].pod_priority, expected);
        assert_eq!(world.status("younger", "one").drain_targets[0].pod_priority, expected);
        assert_eq!(world.message("older", "one"), message);
    }
}
