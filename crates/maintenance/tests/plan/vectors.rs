//! The worked example of KEP-4212 with three maintenances: targets, messages and counts of each step.

use headgate_maintenance::api::{PodType, Stage};
use headgate_maintenance::drain_plan::PodSelector;
use headgate_maintenance::plan::action::{Action, EventReason};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::world::{World, entry};

/// The only target of a node, as each maintenance of the node shows it.
fn target(world: &World, node: &str) -> Option<i32> {
    let mut found = Vec::new();
    for maintenance in &world.snapshot.maintenances {
        let statuses = &maintenance.status.as_ref().unwrap().node_statuses;
        for status in statuses.iter().filter(|status| status.node_ref.name == node) {
            assert_eq!(status.drain_targets.len(), 1, "{node}");
            assert_eq!(status.drain_targets[0].pod_type, PodType::Default);
            found.push(status.drain_targets[0].pod_priority);
        }
    }
    assert!(
        found.windows(2).all(|pair| pair[0] == pair[1]),
        "all maintenances of {node} show the same: {found:?}"
    );
    found.first().copied()
}

fn targets(world: &World) -> [Option<i32>; 4] {
    ["one", "two", "three", "four"].map(|node| target(world, node))
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
    world.maintain("maintenance-a", Stage::Drain, &["one", "two"], &plan_a);
    world.maintain("maintenance-b", Stage::Drain, &["one", "three"], &plan_b);

    // V0
    world.settle();
    assert_eq!(targets(&world), [Some(5_000), Some(5_000), Some(10_000), None]);
    assert_eq!(world.message("maintenance-a", "one"), "Evacuating");
    assert_eq!(world.message("maintenance-a", "two"), "Evacuating");
    assert_eq!(
        world.message("maintenance-b", "one"),
        "Evacuating (limited by maintenance-a)"
    );
    assert_eq!(world.message("maintenance-b", "three"), "Evacuating");
    assert_eq!(counts(&world, "maintenance-a", "one"), (100, 10));
    assert_eq!(counts(&world, "maintenance-a", "two"), (30, 7));
    assert_eq!(counts(&world, "maintenance-b", "one"), (100, 10));
    assert_eq!(counts(&world, "maintenance-b", "three"), (45, 25));

    let pods_left = |world: &World, name| world.maintenance(name).status.as_ref().unwrap().pods_left;
    assert_eq!(
        ["maintenance-a", "maintenance-b"].map(|name| pods_left(&world, name)),
        [147, 180]
    );

    // V1: node three is done.
    world.leave("three", 25);
    world.leave("one", 5);
    world.settle();
    assert_eq!(targets(&world), [Some(5_000), Some(5_000), Some(10_000), None]);
    assert_eq!(
        world.message("maintenance-b", "one"),
        "Evacuating (limited by maintenance-a)"
    );
    assert_eq!(world.message("maintenance-b", "three"), "Waiting for node one.");
    assert_eq!(counts(&world, "maintenance-b", "one"), (100, 5));
    assert_eq!(counts(&world, "maintenance-b", "three"), (45, 0));

    // V2: node one is done too.
    world.leave("one", 5);
    world.leave("two", 5);
    world.settle();
    assert_eq!(targets(&world), [Some(5_000), Some(5_000), Some(10_000), None]);
    assert_eq!(world.message("maintenance-a", "one"), "Waiting for node two.");
    assert_eq!(world.message("maintenance-a", "two"), "Evacuating");
    assert_eq!(
        world.message("maintenance-b", "one"),
        "Waiting for node two (maintenance-a)."
    );
    assert_eq!(
        world.message("maintenance-b", "three"),
        "Waiting for node two (maintenance-a)."
    );
    assert_eq!(counts(&world, "maintenance-a", "one"), (100, 0));
    assert_eq!(counts(&world, "maintenance-a", "two"), (30, 2));

    // V3: node two is done.
    world.leave("two", 2);
    world.settle();
    assert_eq!(targets(&world), [Some(10_000), Some(15_000), Some(10_000), None]);
    assert_eq!(
        world.message("maintenance-a", "one"),
        "Evacuating (limited by maintenance-b)"
    );
    assert_eq!(world.message("maintenance-a", "two"), "Evacuating");
    assert_eq!(world.message("maintenance-b", "one"), "Evacuating");
    assert_eq!(world.message("maintenance-b", "three"), "Waiting for node one.");
    assert_eq!(counts(&world, "maintenance-a", "one"), (70, 30));
    assert_eq!(counts(&world, "maintenance-a", "two"), (21, 9));
    assert_eq!(counts(&world, "maintenance-b", "three"), (45, 0));

    // V4: maintenance-c is created.
    assert!(
        world
            .events
            .iter()
            .all(|event| event.reason != EventReason::FastForwarded)
    );
    world.maintain("maintenance-c", Stage::Drain, &["one", "four"], &plan_c);
    world.settle();
    assert_eq!(targets(&world), [Some(10_000), Some(15_000), Some(10_000), Some(2_000)]);
    assert_eq!(
        world.message("maintenance-c", "one"),
        "Evacuating (fast-forwarded by older maintenance-b)"
    );
    assert_eq!(world.message("maintenance-c", "four"), "Evacuating");
    assert_eq!(counts(&world, "maintenance-c", "one"), (70, 30));
    assert_eq!(counts(&world, "maintenance-c", "four"), (20, 5));
    let forwarded: Vec<_> = world
        .events
        .iter()
        .filter(|event| event.reason == EventReason::FastForwarded)
        .collect();
    assert_eq!(forwarded.len(), 1, "{forwarded:?}");
    assert_eq!(
        (forwarded[0].maintenance.as_str(), forwarded[0].node.as_deref()),
        ("maintenance-c", Some("one"))
    );
    assert_eq!(
        forwarded[0].note,
        "Node one is further on than this drain plan, because of older maintenance-a, maintenance-b; pods of earlier entries leave at once"
    );
    // Who raised the target may be gone.
    let mut alone = world.clone();
    for name in ["maintenance-a", "maintenance-b"] {
        alone.delete(name);
    }
    alone.settle();
    assert_eq!(alone.message("maintenance-c", "one"), "Evacuating");

    // V5: only node four has pods left at its target.
    world.leave("one", 30);
    world.leave("two", 9);
    world.settle();
    assert_eq!(targets(&world), [Some(10_000), Some(15_000), Some(10_000), Some(2_000)]);
    assert_eq!(
        world.message("maintenance-b", "one"),
        "Waiting for node four (maintenance-c)."
    );
    assert_eq!(world.message("maintenance-c", "one"), "Waiting for node four.");

    // V6: node four is done.
    world.leave("four", 5);
    world.settle();
    assert_eq!(targets(&world), [15_000; 4].map(Some));
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
        assert_eq!(world.evacuated_pods().into_iter().collect::<Vec<_>>(), [pod]);
        assert_eq!(world.condition("m", "Drained").unwrap().0, "False");
        world.leave("one", 1);
    }
    world.settle();
    assert_eq!(world.evacuated_pods().len(), 0, "the static pod is left alone");
    assert_eq!(world.condition("m", "Drained"), Some(("True", "DrainCompleted")));
    let status = world.maintenance("m").status.as_ref().unwrap();
    assert_eq!(status.drain_plan_index, Some(11), "the last of twelve entries");
    let status = world.status("m", "one");
    assert_eq!(
        (
            status.pods_unsupported,
            status.pods_pending_evacuation,
            status.pods_evacuating
        ),
        (1, 0, 0)
    );
    assert_eq!(status.drain_message, "");
}

#[test]
fn a_pod_of_an_earlier_entry_that_appears_later_leaves_too() {
    let mut world = World::default()
        .nodes(&["one"])
        .pods("one", 1, PodType::Default, 2_000_000_000);
    world.maintain("m", Stage::Drain, &["one"], &[]);
    world.settle();
    world = world.pods("one", 1, PodType::Default, 5);
    world.settle();
    assert_eq!(world.evacuated_pods().len(), 2);
}

#[test]
fn a_node_that_joins_begins_with_the_first_entry() {
    let mut world = World::default()
        .nodes(&["one"])
        .pods("one", 1, PodType::Default, 2_000_000_000)
        .pods("two", 1, PodType::Default, 5)
        .pods("two", 1, PodType::Default, 2_000_000_000)
        .pods("two", 1, PodType::Default, i32::MAX);
    world.maintain("m", Stage::Drain, &["one", "two"], &[]);
    world.settle();
    world = world.nodes(&["two"]);
    world.settle();
    assert_eq!(counts(&world, "m", "two"), (2, 1));
    assert_eq!(counts(&world, "m", "one"), (0, 1), "what has begun goes on");
    assert_eq!(
        world.message("m", "one"),
        "Evacuating",
        "no other maintenance is further on"
    );
    assert!(world.node("two").unschedulable);
    world.leave("two", 1);
    world.settle();
    assert_eq!(
        counts(&world, "m", "two"),
        (2, 0),
        "not before the pod of the entry on the other node has left"
    );
    assert_eq!(world.message("m", "two"), "Waiting for node one.");
    world.snapshot.nodes.retain(|node| node.name != "two");
    world.remove_pods(|pod| pod.node == "two");
    world.leave("one", 1);
    world.settle();
    assert_eq!(
        world.condition("m", "Drained").unwrap().0,
        "True",
        "a deleted node counts as done"
    );
    assert_eq!(world.maintenance("m").status.as_ref().unwrap().node_statuses.len(), 1);
}

#[test]
fn a_selector_that_matches_no_node_drains_nothing() {
    let no_nodes = Some(("False", "NoNodes"));
    let mut world = World::default().nodes(&["two"]);
    world.maintain("m", Stage::Drain, &["one"], &[]);
    world.settle();
    assert_eq!(world.condition("m", "Drained"), no_nodes);
    assert_eq!(world.condition("m", "LoadBalancerOut"), no_nodes);
    let status = world.maintenance("m").status.as_ref().unwrap();
    assert_eq!(status.drain_plan_index, Some(0));
}

/// As when a node gets the label that a maintenance selects.
#[test]
fn a_maintenance_that_had_no_node_begins_with_the_first_entry_where_another_one_drains_its_node() {
    let mut world = World::default()
        .nodes(&["one"])
        .pods("one", 1, PodType::Default, 5)
        .pods("one", 1, PodType::Default, 2_000_000_000)
        .pods("one", 1, PodType::DaemonSet, 5);
    world.maintain("m", Stage::Drain, &["absent"], &[]);
    world.maintain("other", Stage::Drain, &["one"], &[]);
    world.settle();
    world.select("m", "one");
    world.settle();
    world.delete("other");
    world.settle();
    assert_eq!(world.evacuated_pods().into_iter().collect::<Vec<_>>(), ["pod-0001"]);
}

/// It has drained a node, which may be gone since.
#[test]
fn a_maintenance_begins_with_the_first_entry_on_a_node_that_another_one_drains() {
    for is_gone in [false, true] {
        let mut world = World::default()
            .nodes(&["one", "drained"])
            .pods("one", 1, PodType::Default, 5)
            .pods("one", 1, PodType::Default, 2_000_000_000)
            .pods("one", 1, PodType::DaemonSet, 5);
        world.maintain("m", Stage::Drain, &["drained"], &[]);
        world.maintain("other", Stage::Drain, &["one"], &[]);
        world.settle();
        if is_gone {
            world.snapshot.nodes.retain(|node| node.name != "drained");
            world.settle();
            world.select("m", "one");
        } else {
            world.change("m", |one| {
                let terms = &mut one.spec.node_selector.node_selector_terms;
                let names = terms[0].match_fields.as_mut().unwrap()[0].values.as_mut().unwrap();
                names.push("one".to_owned());
            });
        }
        world.settle();
        world.delete("other");
        world.settle();
        let evacuated: Vec<_> = world.evacuated_pods().into_iter().collect();
        assert_eq!(evacuated, ["pod-0001"], "{is_gone}");
    }
}

#[test]
fn nodes_that_are_deleted_in_a_drain_are_drained_and_those_that_stop_to_match_are_not() {
    let drained = |is_deleted: bool| {
        let mut world = World::default().nodes(&["one"]).pods("one", 1, PodType::Default, 0);
        world.maintain("m", Stage::Drain, &["one"], &[]);
        world.settle();
        assert_eq!(world.condition("m", "Drained").unwrap().0, "False");
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
    assert_eq!(deleted.condition("m", "Drained").unwrap().0, "True");
    let last = deleted.events.last().unwrap();
    assert_eq!(last.note, "All pods have left; the nodes are gone");
    assert_eq!(deleted.condition("m", "AllNodesSelected").unwrap().0, "False");
    let unmatched = drained(false);
    assert_eq!(unmatched.condition("m", "Drained"), Some(("False", "NoNodes")));
    // Another selector says something else.
    deleted.change("m", |one| one.metadata.generation = Some(2));
    deleted.settle();
    assert_eq!(deleted.condition("m", "Drained").unwrap().1, "NoNodes");
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
    assert_eq!(world.evacuated_pods().into_iter().collect::<Vec<_>>(), ["pod-0001"]);
    world.leave("one", 1);
    world.settle();
    assert_eq!(world.evacuated_pods().into_iter().collect::<Vec<_>>(), ["pod-0002"]);
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
        world.maintain("b", Stage::Drain, &["one", "three"], &[]);
        world.settle();
        world.leave(left, 1);
        write_one_of_two_statuses(&mut world, written);
        world.settle();
        let evacuated: Vec<_> = world.evacuated_pods().into_iter().collect();
        assert_eq!(evacuated, expected, "{written}");
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
    world.maintain("behind", Stage::Drain, &["two", "three"], &[]);
    world.settle();
    world.leave("one", 1);
    world.settle();
    // The entry with the label takes "holding" one step more, in which "held" is idle but not done.
    assert_eq!(world.evacuated_pods().into_iter().collect::<Vec<_>>(), ["pod-0002"]);
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
        let deadline = has_deadline.then(|| Time(world.now + SignedDuration::from_mins(10)));
        world.change("younger", |one| one.spec.deadline = deadline);
        world.now += SignedDuration::from_secs(seconds);
        for _ in 0..10 {
            let planned = world.plan();
            if seconds < 30 {
                assert!(planned.wake_at.is_some_and(|at| at > world.now), "{planned:?}");
            }
            for action in planned.actions {
                let is_late = matches!(&action, Action::AddFinalizer { maintenance } if maintenance == "older");
                if !is_late {
                    world.apply(action);
                }
            }
        }
        assert_eq!(world.evacuated_pods().into_iter().collect::<Vec<_>>(), meanwhile);
        world.settle();
        assert_eq!(target(&world, "one"), Some(expected));
        assert_eq!(world.message("older", "one"), message);
    }
}
