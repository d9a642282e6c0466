//! How maintenances begin and end: stages, finalizer, deletion, cancellation, and what is left of them.

use headgate_maintenance::api::names::{COMPLETION_FINALIZER, INSTIGATOR_FINALIZER};
use headgate_maintenance::api::{BlockerReason, CancellationPolicy, PodType, Stage};
use headgate_maintenance::drain_plan::PodSelector;
use headgate_maintenance::plan::action::{Action, EventReason};
use headgate_maintenance::plan::evacuations::evacuation_of;
use headgate_maintenance::snapshot::BudgetFacts;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::world::{OUT, World, adds_finalizer, in_service};

const OTHER_INSTIGATOR: &str = "evacuation.coordination.k8s.io/instigator_other.example";

fn cordoned_by_hand() -> World {
    let mut world = World::default().nodes(&["one"]);
    world.node("one").unschedulable = true;
    world
}

/// A node with two pods, and a maintenance of it in this stage.
fn in_stage(stage: Stage) -> World {
    let mut world = World::default().nodes(&["one"]).pods("one", 2, PodType::Default, 0);
    world.maintain("m", stage, &["one"], &[]).settle();
    world
}

fn drained_half() -> World {
    let mut world = World::default()
        .nodes(&["one"])
        .pods("one", 2, PodType::Default, 0)
        .pods("one", 2, PodType::Default, i32::MAX);
    world.maintain("m", Stage::Drain, &["one"], &[]).settle();
    assert_eq!(world.evacuated_pods().len(), 2);
    world
}

fn assert_nothing_left(world: &mut World) {
    let node = world.node("one").clone();
    assert!(!node.unschedulable);
    assert_eq!((node.was_unschedulable, node.maintenance_taint), (None, None));
    assert_eq!(node.conditions.len(), 0);
    assert_eq!(world.evacuated_pods().len(), 0);
}

fn finalizers(world: &World) -> Vec<&str> {
    let finalizers = world.maintenance("m").metadata.finalizers.iter().flatten();
    finalizers.map(String::as_str).collect()
}

const COMPLETED: (&str, &str) = ("False", "Completed");

fn progressing(world: &World) -> (&str, &str) {
    world.condition("m", "Progressing")
}

#[test]
fn a_node_is_kept_out_of_upgrades_while_it_is_under_maintenance() {
    let mut world = World::default().nodes(&["one", "two"]);
    world.snapshot.pauses_upgrades = true;
    let upgrade_status = "kubernetes.azure.com/upgrade-status";
    world.node("two").labels = [(upgrade_status.to_owned(), "Quarantined".to_owned())].into();
    let before = world.node("two").labels.clone();
    world.maintain("m", Stage::Cordon, &["one", "two"], &[]).settle();
    assert_eq!(world.node("one").labels[upgrade_status], "paused");
    assert_eq!(world.node("two").labels, before, "another writer's");
    world.delete("m").settle();
    assert!(world.node("one").labels.is_empty());
    assert_eq!(world.node("two").labels, before);
    // The setting is switched off meanwhile.
    world.maintain("n", Stage::Drain, &["one"], &[]).settle();
    assert!(!world.node("one").labels.is_empty());
    world.snapshot.pauses_upgrades = false;
    world.settle();
    assert!(world.node("one").labels.is_empty() && world.node("one").unschedulable);
}

#[test]
fn an_idle_maintenance_touches_nothing() {
    let mut world = World::default().nodes(&["one"]).pods("one", 1, PodType::Default, 0);
    let before = world.snapshot.nodes.clone();
    world.maintain("m", Stage::Idle, &["one"], &[]).settle();
    assert_eq!(world.snapshot.nodes, before);
    assert_eq!(finalizers(&world), [""; 0]);
    let status = world.maintenance_status("m");
    assert_eq!((status.selected_nodes, status.drain_plan.len()), (1, 12));
    assert_eq!(status.stage_statuses.len(), 0);
    world.delete("m");
    assert_eq!(world.find("m"), None);
}

#[test]
fn the_finalizer_comes_before_anything_else() {
    for stage in [Stage::Cordon, Stage::Drain] {
        let mut world = World::default().nodes(&["one"]);
        world.maintain("m", stage, &["one"], &[]);
        let plan = world.plan();
        let is_write = |action: &&Action| !matches!(action, Action::UpdateStatus { .. } | Action::RecordEvent(_));
        let writes: Vec<_> = plan.actions.iter().filter(is_write).collect();
        let only_adds = matches!(writes.as_slice(), [Action::AddFinalizer { .. }]);
        assert!(only_adds, "{stage:?}: {writes:?}");
        world.settle();
        assert_eq!(finalizers(&world), [COMPLETION_FINALIZER]);
    }
}

/// As by a `kubectl replace`.
#[test]
fn a_finalizer_that_is_lost_midway_comes_back_and_nothing_is_given_back() {
    for stage in [Stage::Cordon, Stage::Drain] {
        let mut world = in_stage(stage);
        world.change("m", |one| one.metadata.finalizers = None);
        let actions = world.plan().actions;
        assert!(
            actions.len() == 1 && adds_finalizer("m")(&actions[0]),
            "{stage:?}: {actions:?}"
        );
        world.settle();
        world.change("m", |one| {
            one.metadata.finalizers = None;
            one.spec.stage = Stage::Complete;
        });
        world.settle();
        assert_nothing_left(&mut world);
        assert_eq!(finalizers(&world), [""; 0], "{stage:?}");
        assert_eq!(progressing(&world), COMPLETED);
    }
}

#[test]
fn stages_are_recorded_once_and_cordon_always_runs() {
    let mut world = drained_half();
    world.set_stage("m", Stage::Complete).settle();
    assert_eq!(recorded_stages(&world), [Stage::Cordon, Stage::Drain, Stage::Complete]);
    let started = world.recorded(EventReason::StageStarted);
    assert_eq!(started.len(), 3);
    assert!(started.iter().all(|event| !event.reason.is_warning()));
}

fn recorded_stages(world: &World) -> Vec<Stage> {
    let stages = world.maintenance_status("m").stage_statuses.iter();
    stages.map(|one| one.name).collect()
}

#[test]
fn complete_undoes_all_and_the_pods_stay() {
    let mut world = drained_half();
    assert_eq!(world.node("one").conditions.len(), 2);
    world.set_stage("m", Stage::Complete).settle();
    assert_nothing_left(&mut world);
    assert_eq!(world.snapshot.pods.len(), 4);
    assert_eq!(world.condition("m", "Drained"), ("False", "Cancelled"));
    assert_eq!(progressing(&world), COMPLETED);
    world.node("one").unschedulable = true;
    world.settle();
    assert!(
        world.node("one").unschedulable,
        "a later cordon belongs to another writer"
    );
}

fn removes_finalizer(actions: &[Action]) -> bool {
    let mut actions = actions.iter();
    actions.any(|action| matches!(action, Action::RemoveFinalizer { .. }))
}

#[test]
fn a_deletion_completes_first() {
    for stage in [Stage::Cordon, Stage::Drain] {
        let mut world = in_stage(stage);
        assert!(world.node("one").unschedulable);
        world.delete("m");
        let actions = world.plan().actions;
        let completes = |action: &Action| matches!(action, Action::SetStageComplete { .. });
        assert!(actions.iter().any(completes));
        assert!(!removes_finalizer(&actions), "not before it is done");
        world.settle();
        assert_eq!(world.find("m"), None);
        assert_nothing_left(&mut world);
    }
}

#[test]
fn a_deletion_before_the_finalizer_leaves_a_cordon_alone() {
    let mut world = cordoned_by_hand();
    world.maintain("m", Stage::Drain, &["one"], &[]);
    world.change("m", |one| {
        one.metadata.finalizers = Some(vec!["example.com/other".to_owned()]);
    });
    world.delete("m").settle();
    assert!(world.node("one").unschedulable);
}

#[test]
fn from_idle_to_complete_makes_nodes_schedulable_once() {
    let mut world = cordoned_by_hand();
    world.maintain("m", Stage::Idle, &["one"], &[]).settle();
    world.set_stage("m", Stage::Complete);
    let first = world.plan().actions;
    assert!(matches!(first.first(), Some(Action::AddFinalizer { .. })), "{first:?}");
    world.settle();
    assert!(!world.node("one").unschedulable);
    assert_eq!(finalizers(&world), [""; 0]);
    world.node("one").unschedulable = true;
    world.settle();
    assert!(world.node("one").unschedulable);
    world.delete("m");
    assert_eq!(world.find("m"), None);
    world.settle();
    assert!(world.node("one").unschedulable);
}

/// While a webhook refuses the finalizer, nothing is changed and nothing is forgotten.
#[test]
fn from_idle_to_complete_waits_for_the_finalizer() {
    let mut world = cordoned_by_hand();
    world.maintain("m", Stage::Idle, &["one"], &[]).settle();
    world.set_stage("m", Stage::Complete);
    world.settle_refusing(adds_finalizer("m"));
    assert!(world.node("one").unschedulable);
    assert_eq!(progressing(&world), ("True", "Uncordon"));
    world.settle();
    assert!(!world.node("one").unschedulable);
    assert_eq!(progressing(&world), COMPLETED);
}

#[test]
fn from_a_dry_run_or_a_refused_finalizer_to_complete_undoes_nothing() {
    for (is_dry_run, then_dry_run) in [(true, false), (true, true), (false, false)] {
        let mut world = cordoned_by_hand();
        world.maintain("m", Stage::Drain, &["one"], &[]);
        world.change("m", |one| one.spec.dry_run = is_dry_run);
        world.settle_refusing(adds_finalizer("m"));
        world.change("m", |one| {
            one.spec.stage = Stage::Complete;
            one.spec.dry_run = then_dry_run;
        });
        world.settle();
        world.change("m", |one| one.spec.dry_run = false);
        // Another maintenance changes the node in the same turn.
        world.maintain("other", Stage::Cordon, &["one"], &[]).settle();
        world.delete("other").settle();
        let what = format!("{is_dry_run}, {then_dry_run}");
        assert!(world.node("one").unschedulable, "{what}");
        assert_eq!(progressing(&world), COMPLETED, "{what}");
    }
}

#[test]
fn a_maintenance_that_is_created_as_complete_or_restored_without_status_undoes_nothing() {
    let mut world = cordoned_by_hand();
    for written in [None, Some(vec![COMPLETION_FINALIZER.to_owned()])] {
        world.maintain("m", Stage::Complete, &["one"], &[]);
        world.change("m", |one| one.metadata.finalizers = written);
        world.settle();
        assert!(world.node("one").unschedulable);
        assert_eq!(progressing(&world), COMPLETED);
        world.delete("m");
        assert_eq!(world.find("m"), None);
    }
}

/// Another maintenance changes one of its nodes in the same turn, or an Evacuation is cancelled.
#[test]
fn a_maintenance_that_is_created_as_complete_undoes_nothing_while_its_nodes_change() {
    for written in [None, Some(vec![COMPLETION_FINALIZER.to_owned()])] {
        let mut world = World::default().nodes(&["one", "two"]);
        world.maintain("other", Stage::Drain, &["one"], &[]).settle();
        world.node("one").unschedulable = false;
        world.node("two").unschedulable = true;
        world.maintain("m", Stage::Complete, &["one", "two"], &[]);
        world.change("m", |one| one.metadata.finalizers = written);
        world.settle();
        assert!(world.node("one").unschedulable && world.node("two").unschedulable);
        assert_eq!(finalizers(&world), [""; 0]);
        assert_eq!(progressing(&world), COMPLETED);
        assert_eq!(recorded_stages(&world), [Stage::Complete]);
    }
}

#[test]
fn the_finalizer_goes_with_the_complete_stage_and_never_comes_back() {
    for stage in [Stage::Cordon, Stage::Drain] {
        let mut world = in_stage(stage);
        world.set_stage("m", Stage::Complete);
        let actions = world.plan().actions;
        assert!(!removes_finalizer(&actions), "{stage:?}: not before it is done");
        let listed = |world: &World| world.maintenance_status("m").node_statuses.len();
        // A leader that dies here has written the status only.
        for action in actions
            .into_iter()
            .filter(|action| matches!(action, Action::UpdateStatus { .. }))
        {
            world.apply(action);
        }
        assert_eq!(progressing(&world), ("True", "Completing"));
        assert_eq!(listed(&world), 1, "what is to be undone");
        world.settle();
        assert_eq!(listed(&world), 0);
        assert_nothing_left(&mut world);
        assert_eq!(finalizers(&world), [""; 0], "{stage:?}");
        // What changes later on its nodes is not its own any more.
        world.node("one").unschedulable = true;
        world = world.nodes(&["two"]);
        assert_eq!(world.plan().actions, [], "{stage:?}");
        world.delete("m");
        assert_eq!(world.find("m"), None, "no controller is needed");
    }
}

#[test]
fn a_completed_maintenance_stays_completed_while_another_has_its_nodes() {
    for (first, is_cordoned) in [(Stage::Idle, true), (Stage::Cordon, false), (Stage::Drain, true)] {
        let mut world = in_stage(first);
        world.set_stage("m", Stage::Complete).settle();
        let completed = world.maintenance("m").clone();
        assert_eq!(progressing(&world), COMPLETED);
        world.node("one").unschedulable = is_cordoned;
        world.maintain("later", Stage::Drain, &["one"], &[]);
        for stage in [Stage::Drain, Stage::Complete] {
            world.set_stage("later", stage);
            world.settle_with(|world| assert_eq!(world.maintenance("m"), &completed, "{first:?}, {stage:?}"));
        }
        assert_eq!(world.node("one").unschedulable, is_cordoned, "{first:?}: a person's");
    }
}

#[test]
fn a_finalizer_without_anything_to_undo_is_removed() {
    for (stage, dry_run) in [(Stage::Idle, false), (Stage::Drain, true), (Stage::Complete, true)] {
        let mut world = World::default().nodes(&["one"]);
        world.maintain("m", stage, &["one"], &[]);
        world.change("m", |one| {
            one.spec.dry_run = dry_run;
            one.metadata.finalizers = Some(vec![COMPLETION_FINALIZER.to_owned()]);
        });
        world.settle();
        assert_eq!(finalizers(&world), [""; 0], "{stage:?}");
    }
}

#[test]
fn a_cordon_from_before_and_a_taint_by_hand_stay() {
    let mut world = World::default().nodes(&["one"]).pods("one", 1, PodType::Default, 0);
    world.node("one").unschedulable = true;
    world.node("one").maintenance_taint = Some("kernel".to_owned());
    world.maintain("m", Stage::Drain, &["one"], &[]).settle();
    world.delete("m").settle();
    let node = world.node("one");
    assert!(node.unschedulable);
    assert_eq!(node.was_unschedulable, None);
    assert_eq!(node.maintenance_taint.as_ref().unwrap(), "kernel");
}

#[test]
fn a_cordon_from_before_that_its_owner_takes_back_meanwhile_is_not_restored() {
    let mut world = cordoned_by_hand();
    world.maintain("m", Stage::Drain, &["one"], &[]).settle();
    world.node("one").unschedulable = false;
    world.settle();
    assert!(world.node("one").unschedulable, "the maintenance's");
    world.delete("m").settle();
    assert_nothing_left(&mut world);
}

#[test]
fn a_node_stays_out_while_another_maintenance_is_in_progress() {
    let mut world = drained_half();
    world.maintain("cordon", Stage::Cordon, &["one"], &[]);
    world.maintain("drain", Stage::Drain, &["one"], &[]).settle();
    world.delete("m").settle();
    assert_eq!(world.node("one").maintenance_taint.as_ref().unwrap(), "uid-of-drain");
    assert_eq!(world.evacuated_pods().len(), 2, "the other one wants them as well");
    world.delete("drain").settle();
    assert!(world.node("one").unschedulable);
    assert_eq!(world.node("one").maintenance_taint, None);
    assert_eq!(world.evacuated_pods().len(), 0, "a cordon wants no pod to leave");
    world.delete("cordon").settle();
    assert_nothing_left(&mut world);
}

/// The scheduler would bind pods to it in between.
#[test]
fn a_node_whose_next_maintenance_is_about_to_begin_is_not_given_back() {
    for stage in [Stage::Cordon, Stage::Drain] {
        let mut world = drained_half();
        world.delete("m");
        world.maintain("next", stage, &["one"], &[]);
        world.settle_with(|world| {
            let node = &world.snapshot.nodes[0];
            assert!(node.unschedulable && node.was_unschedulable == Some(false), "{stage:?}");
            assert!(stage == Stage::Cordon || node.maintenance_taint.is_some());
        });
        assert_eq!(world.find("m"), None);
        let taint = (stage == Stage::Drain).then(|| "uid-of-next".to_owned());
        assert_eq!(world.node("one").maintenance_taint, taint);
        world.delete("next").settle();
        assert_nothing_left(&mut world);
    }
}

#[test]
fn a_node_whose_next_maintenance_never_begins_is_given_back() {
    for (stage, is_deleted) in [(Stage::Cordon, false), (Stage::Drain, false), (Stage::Drain, true)] {
        let mut world = drained_half();
        world.delete("m");
        world.maintain("next", stage, &["one"], &[]);
        world.settle_refusing(adds_finalizer("next"));
        assert!(world.node("one").unschedulable);
        assert_eq!(progressing(&world), ("True", "Completing"));
        if is_deleted {
            world.delete("next");
        } else {
            world.now = world.plan().wake_at.unwrap();
        }
        world.settle_refusing(adds_finalizer("next"));
        assert_nothing_left(&mut world);
        assert_eq!(world.find("m"), None);
    }
}

#[test]
fn from_idle_to_complete_makes_a_node_schedulable_also_before_another_maintenance_begins() {
    let mut world = cordoned_by_hand();
    world.maintain("m", Stage::Idle, &["one"], &[]).settle();
    world.set_stage("m", Stage::Complete);
    world.maintain("next", Stage::Cordon, &["one"], &[]);
    world.settle_refusing(adds_finalizer("next"));
    assert!(!world.node("one").unschedulable);
}

#[test]
fn an_evacuation_that_cannot_be_cancelled_keeps_its_own_maintenance_only() {
    let mut world = drained_half().nodes(&["two"]);
    world.maintain("other", Stage::Drain, &["two"], &[]).settle();
    for name in ["m", "other"] {
        world.delete(name);
    }
    // Pods are read of nodes only on which a maintenance is in progress.
    world.snapshot.pods.clear();
    world.settle_refusing(|action| matches!(action, Action::ChangeEvacuation { .. }));
    assert_eq!(world.find("other"), None);
    assert_eq!(progressing(&world), ("True", "Completing"));
    world.settle();
    assert_eq!(world.find("m"), None);
}

#[test]
fn a_cancelled_evacuation_with_a_foreign_finalizer_or_forbid_is_not_deleted() {
    let mut world = drained_half();
    let finalizers = world.snapshot.evacuations[0].metadata.finalizers.as_mut();
    finalizers.unwrap().push(OTHER_INSTIGATOR.to_owned());
    world.set_evacuation_status("pod-0002", CancellationPolicy::Forbid);
    world.set_stage("m", Stage::Complete).settle();
    let left = world.snapshot.evacuations.iter().map(|one| &one.metadata);
    let left: Vec<_> = left
        .map(|one| (one.deletion_timestamp.is_some(), one.finalizers.clone()))
        .collect();
    let other = OTHER_INSTIGATOR.to_owned();
    assert_eq!(left, [(false, Some(vec![other])), (false, Some(vec![]))]);
}

#[test]
fn an_evacuation_that_is_deleted_while_its_pod_is_wanted_is_created_anew() {
    for (policy, is_anew) in [(CancellationPolicy::Allow, true), (CancellationPolicy::Forbid, false)] {
        let mut world = drained_half();
        world.set_evacuation_status("pod-0001", policy);
        let now = world.now;
        world.snapshot.evacuations[0].metadata.deletion_timestamp = Some(Time(now));
        world.settle();
        assert_eq!(world.evacuated_pods().len(), 2, "{policy:?}");
        let mut evacuations = world.snapshot.evacuations.iter();
        let is_ending = evacuations.any(|one| one.metadata.deletion_timestamp.is_some());
        assert_eq!(!is_ending, is_anew, "{policy:?}");
        assert_eq!(world.status("m", "one").blockers, []);
    }
    // Once all instigators have let go of it.
    let mut world = drained_half();
    let now = world.now;
    let evacuation = &mut world.snapshot.evacuations[0].metadata;
    evacuation.deletion_timestamp = Some(Time(now));
    evacuation
        .finalizers
        .as_mut()
        .unwrap()
        .push(OTHER_INSTIGATOR.to_owned());
    world.settle();
    assert_eq!(world.evacuated_pods().len(), 1);
    let blocker = &world.status("m", "one").blockers[0];
    assert_eq!(blocker.reason, BlockerReason::EvictionFailed);
    let message = format!("its Evacuation is being deleted; finalizers: {OTHER_INSTIGATOR}");
    assert_eq!(blocker.message, message);
}

#[test]
fn an_evacuation_of_another_instigator_gets_our_finalizer() {
    let mut world = World::default().nodes(&["one"]).pods("one", 1, PodType::Default, 0);
    world.observe("one", in_service());
    world.maintain("m", Stage::Drain, &["one"], &[]).settle();
    let mut other = evacuation_of(&world.snapshot.pods[0]);
    other.metadata.finalizers = Some(vec![OTHER_INSTIGATOR.to_owned()]);
    other.metadata.uid = Some("other".to_owned());
    world.snapshot.evacuations.push(other);
    world.settle();
    assert_eq!(world.evacuated_pods().len(), 0, "the gate is closed");
    assert_eq!(world.status("m", "one").pods_evacuating, 1, "it is counted");
    world.observe("one", OUT).settle();
    let finalizers = world.snapshot.evacuations[0].metadata.finalizers.as_ref().unwrap();
    assert!(finalizers.len() == 2 && finalizers.contains(&INSTIGATOR_FINALIZER.to_owned()));
    world.delete("m").settle();
    let evacuation = &world.snapshot.evacuations[0].metadata;
    assert_eq!(evacuation.finalizers.as_ref().unwrap().len(), 1);
    assert_eq!(evacuation.deletion_timestamp, None);
}

#[test]
fn a_dry_run_writes_its_status_only() {
    let mut world = World::default().nodes(&["one"]).pods("one", 3, PodType::Default, 0);
    let before = world.snapshot.nodes.clone();
    world.maintain("m", Stage::Drain, &["one"], &[]);
    world.change("m", |one| one.spec.dry_run = true);
    world.snapshot.budgets.push(BudgetFacts {
        namespace: "shop".to_owned(),
        name: "all".to_owned(),
        selector: PodSelector::default(),
        disruptions_allowed: 0,
        ..BudgetFacts::default()
    });
    world.settle();
    assert_eq!(world.snapshot.nodes, before);
    assert_eq!(world.evacuated_pods().len(), 0);
    assert_eq!(finalizers(&world), [""; 0]);
    assert_eq!(world.message("m", "one"), "Dry run: 3 pods would leave");
    let status = world.status("m", "one");
    assert_eq!(status.drain_targets.len(), 1, "what a drain would begin with");
    assert_eq!(status.blockers_total, 3, "what would block it");
    world.change("m", |one| one.spec.dry_run = false);
    world.settle();
    assert_eq!(world.evacuated_pods().len(), 3);
}

#[test]
fn a_node_that_is_no_longer_selected_is_given_back() {
    let mut world = drained_half();
    world.select("m", &["two"]).settle();
    assert_nothing_left(&mut world);
}

#[test]
fn all_nodes_selected_is_shown_and_recorded_once() {
    let mut world = World::default().nodes(&["one", "two"]);
    world.maintain("m", Stage::Idle, &["one", "two"], &[]).settle();
    world.settle();
    assert_eq!(world.condition("m", "AllNodesSelected").0, "True");
    assert_eq!(world.recorded(EventReason::AllNodesSelected).len(), 1);
}
