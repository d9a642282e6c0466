//! An Evacuation from its creation to its end, step by step.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::doc_markdown,
    clippy::too_many_lines,
    reason = "a failed precondition fails the test, and tables are long"
)]

use headgate_core::node::{MAINTENANCE_TAINT, Node};
use headgate_maintenance::api::names::{
    DAEMON_SET_EVACUATOR, EVACUATOR_ANNOTATION_PREFIXES, INSTIGATOR_FINALIZER, PROTECTION_FINALIZER,
};
use headgate_maintenance::api::{CancellationPolicy, DrainPlanEntry, Evacuation, EvacuationStatus, Evacuator, PodType};
use headgate_maintenance::drain_plan::DrainTargets;
use headgate_maintenance::evacuation::daemon_set::{NodeState, evacuate};
use headgate_maintenance::evacuation::state::{FinishReason, PodState, Step, step};
use headgate_maintenance::plan::evacuations::evacuation_of;
use headgate_maintenance::snapshot::PodFacts;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

const GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(30);
const OTHER: &str = "evacuation.coordination.k8s.io/instigator_other.example";
const FOREIGN: &str = "example.com/backup";

fn at(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_767_225_600 + seconds)
}

fn pod(evacuators: &[(&str, &str)]) -> PodFacts {
    let annotation = |class| format!("{}{class}", EVACUATOR_ANNOTATION_PREFIXES[0]);
    let evacuators = evacuators
        .iter()
        .map(|(class, value)| (annotation(class), (*value).to_owned()));
    PodFacts {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "uid".to_owned(),
        evacuators: evacuators.collect(),
        ..PodFacts::default()
    }
}

fn daemon_pod() -> PodFacts {
    PodFacts {
        pod_type: PodType::DaemonSet,
        ..pod(&[])
    }
}

fn created(pod: &PodFacts) -> Evacuation {
    let mut evacuation = evacuation_of(pod);
    evacuation.metadata.creation_timestamp = Some(Time(at(0)));
    evacuation
}

fn status(evacuation: &mut Evacuation) -> &mut EvacuationStatus {
    evacuation.status.get_or_insert_default()
}

/// The next step of an Evacuation whose pod is there, in a second.
fn next(evacuation: &Evacuation, pod: &PodFacts, second: i64) -> Step {
    step(evacuation, PodState::Exists(pod), None, at(second))
}

/// Carries out a status write, which is what the step has to be.
fn write(evacuation: &mut Evacuation, pod: &PodFacts, second: i64) -> String {
    match next(evacuation, pod, second) {
        Step::UpdateStatus(status) => {
            evacuation.status = Some(*status.clone());
            status.message
        }
        other => panic!("{other:?}"),
    }
}

fn waits_until(second: i64) -> Step {
    Step::Wait(Some(at(second)))
}

/// The active evacuator makes progress in this second.
fn progress(evacuation: &mut Evacuation, second: i64) {
    status(evacuation).evacuation_progress_timestamp = Some(Time(at(second)));
}

fn evacuator(class: &str, priority: i32) -> Evacuator {
    Evacuator {
        evacuator_class: class.to_owned(),
        priority,
        role: None,
    }
}

#[test]
fn turns_go_from_the_highest_priority_to_the_eviction() {
    let (first, app) = (("first.example", "20000"), ("app.example", "10000/controller"));
    let pod = pod(&[("last.example", "5"), first, app]);
    let mut evacuation = created(&pod);
    assert_eq!(write(&mut evacuation, &pod, 0), "it is the turn of first.example");
    let look = |evacuation: &Evacuation, second| next(evacuation, &pod, second);
    assert_eq!(look(&evacuation, 1), waits_until(1800));
    // Progress moves the deadline.
    progress(&mut evacuation, 1000);
    status(&mut evacuation).expected_evacuation_finish_time = Some(Time(at(5000)));
    assert_eq!(look(&evacuation, 1800), waits_until(2800));
    let message = write(&mut evacuation, &pod, 2800);
    assert_eq!(message, "first.example made no progress; it is the turn of app.example");
    assert_eq!(status(&mut evacuation).expected_evacuation_finish_time, None);
    status(&mut evacuation).active_evacuator_completed = true;
    let message = write(&mut evacuation, &pod, 2900);
    let completed = "app.example completed and the pod still exists; it is the turn of last.example";
    assert_eq!(message, completed);
    assert!(!status(&mut evacuation).active_evacuator_completed);
    assert_eq!(look(&evacuation, 2901), waits_until(4700));
    assert_eq!(look(&evacuation, 4700), Step::Evict);
    // It makes progress after all.
    progress(&mut evacuation, 4800);
    assert_eq!(look(&evacuation, 4801), waits_until(6600));
    status(&mut evacuation).active_evacuator_completed = true;
    assert_eq!(look(&evacuation, 4802), Step::Evict);
}

#[test]
fn progress_in_the_future_counts_from_when_it_is_seen() {
    let pod = pod(&[("app.example", "20000"), ("last.example", "5")]);
    let mut evacuation = created(&pod);
    write(&mut evacuation, &pod, 0);
    let look = |evacuation: &Evacuation, second| next(evacuation, &pod, second);
    // The clocks of two nodes differ.
    progress(&mut evacuation, 1900);
    assert_eq!(look(&evacuation, 100), waits_until(3700));
    // Local time as UTC, and a time that never comes.
    for future in [at(1901), at(7300), "9999-12-30T22:00:00Z".parse().unwrap()] {
        let now = 100;
        status(&mut evacuation).evacuation_progress_timestamp = Some(Time(future));
        let mut expected = evacuation.status.clone().unwrap();
        expected.evacuation_progress_timestamp = Some(Time(at(now)));
        assert_eq!(look(&evacuation, now), Step::UpdateStatus(Box::new(expected.clone())));
        evacuation.status = Some(expected);
        assert_eq!(look(&evacuation, now), waits_until(1900));
    }
    let message = write(&mut evacuation, &pod, 1900);
    assert_eq!(message, "app.example made no progress; it is the turn of last.example");
    // Who has completed has no turn to wait for.
    progress(&mut evacuation, 9000);
    status(&mut evacuation).active_evacuator_completed = true;
    assert_eq!(look(&evacuation, 1901), Step::Evict);
}

#[test]
fn before_a_deadline_turns_end_in_time_for_the_eviction() {
    let pod = pod(&[("first.example", "20000"), ("last.example", "5")]);
    let mut evacuation = created(&pod);
    write(&mut evacuation, &pod, 0);
    let look = |evacuation: &Evacuation, seconds| {
        let turns_end = Some(at(15));
        step(evacuation, PodState::Exists(&pod), turns_end, at(seconds))
    };
    assert_eq!(look(&evacuation, 1), waits_until(15));
    // Progress is no reason to wait longer.
    progress(&mut evacuation, 14);
    assert_eq!(look(&evacuation, 14), waits_until(15));
    let Step::UpdateStatus(next) = look(&evacuation, 15) else {
        panic!("the turn of the last one");
    };
    assert_eq!(next.active_evacuator_class.as_deref(), Some("last.example"));
    evacuation.status = Some(*next);
    assert_eq!(look(&evacuation, 15), Step::Evict);

    // headgate's own evacuator of DaemonSets keeps its turn.
    let daemon_pod = daemon_pod();
    let mut evacuation = created(&daemon_pod);
    status(&mut evacuation).active_evacuator_class = Some(DAEMON_SET_EVACUATOR.to_owned());
    let kept = step(&evacuation, PodState::Exists(&daemon_pod), Some(at(15)), at(20));
    assert_eq!(kept, waits_until(1800));
}

#[test]
fn a_pod_without_evacuators_is_evicted_at_once() {
    let pod = pod(&[]);
    let evacuation = created(&pod);
    assert_eq!(next(&evacuation, &pod, 0), Step::Evict);
}

#[test]
fn an_unknown_active_class_counts_for_nothing() {
    let pod = pod(&[("a.example", "5")]);
    let mut evacuation = created(&pod);
    status(&mut evacuation).active_evacuator_class = Some("unknown.example".to_owned());
    status(&mut evacuation).active_evacuator_completed = true;
    assert_eq!(write(&mut evacuation, &pod, 0), "it is the turn of a.example");
    evacuation.spec.evacuators = Some(Vec::new());
    status(&mut evacuation).active_evacuator_class = Some("unknown.example".to_owned());
    status(&mut evacuation).active_evacuator_completed = false;
    assert_eq!(next(&evacuation, &pod, 0), Step::Evict);
}

#[test]
fn some_pods_are_never_evicted() {
    let terminating = PodFacts {
        terminating_until: Some(at(30)),
        ..pod(&[])
    };
    for (pod_type, turns) in [(PodType::DaemonSet, 1), (PodType::Static, 0)] {
        let kept = PodFacts { pod_type, ..pod(&[]) };
        let mut evacuation = created(&kept);
        evacuation.spec.evacuators = Some(Vec::new());
        for _ in 0..turns {
            write(&mut evacuation, &kept, 0);
        }
        assert_eq!(next(&evacuation, &kept, 1800), Step::Wait(None), "{pod_type:?}");
    }
    assert_eq!(next(&created(&terminating), &terminating, 0), Step::Wait(None));
}

#[test]
fn a_pod_of_a_daemon_set_is_deleted_last_where_its_evacuation_names_no_controller() {
    let daemon_pod = daemon_pod();
    let own = "it is the turn of headgate.dev/daemonset";
    let after_app = "app.example made no progress; it is the turn of headgate.dev/daemonset";
    let of_app = "it is the turn of app.example";
    let of_controller = "it is the turn of daemonset.apps.k8s.io";
    for (evacuators, expected) in [
        (vec![], vec![own]),
        (vec![evacuator("app.example", 5)], vec![of_app, after_app]),
        (vec![evacuator("app.example", 10_000)], vec![of_app]),
        (vec![evacuator("daemonset.apps.k8s.io", 5)], vec![of_controller]),
    ] {
        let mut evacuation = created(&daemon_pod);
        evacuation.spec.evacuators = Some(evacuators);
        let mut now = 0;
        for message in expected {
            assert_eq!(write(&mut evacuation, &daemon_pod, now), message);
            let deadline = now + 1800;
            assert_eq!(next(&evacuation, &daemon_pod, now), waits_until(deadline), "{message}");
            now = deadline;
        }
        assert_eq!(next(&evacuation, &daemon_pod, now), Step::Wait(None));
    }
}

#[test]
fn evacuators_are_filled_in_where_an_instigator_left_them_out() {
    let pod = pod(&[("a.example", "5"), ("B", "5")]);
    let mut evacuation = created(&pod);
    evacuation.spec.evacuators = None;
    let expected = evacuator("a.example", 5);
    let filled_in = Step::SetEvacuators(vec![expected.clone()]);
    assert_eq!(next(&evacuation, &pod, 0), filled_in);
    // The list of a pod of a DaemonSet is the one of headgate's own Evacuations: nothing else deletes the pod.
    let pod = PodFacts {
        pod_type: PodType::DaemonSet,
        ..pod
    };
    let daemon_set = Evacuator {
        role: Some("controller".to_owned()),
        ..evacuator(DAEMON_SET_EVACUATOR, 10_000)
    };
    let filled_in = Step::SetEvacuators(vec![expected, daemon_set]);
    assert_eq!(next(&evacuation, &pod, 0), filled_in);
}

/// The next step, in the second 2, of an Evacuation of such a pod with these finalizers, where cancellation is perhaps forbidden and the
/// Evacuation perhaps deleted.
fn step_of(finalizers: &[&str], is_forbidden: bool, is_deleted: bool, pod: PodState<'_>) -> Step {
    let mut evacuation = created(&self::pod(&[("a.example", "5")]));
    evacuation.metadata.finalizers = Some(finalizers.iter().map(|finalizer| (*finalizer).to_owned()).collect());
    evacuation.metadata.deletion_timestamp = is_deleted.then(|| Time(at(1)));
    status(&mut evacuation).active_evacuator_class = Some("a.example".to_owned());
    progress(&mut evacuation, 0);
    if is_forbidden {
        status(&mut evacuation).evacuation_cancellation_policy = CancellationPolicy::Forbid;
    }
    step(&evacuation, pod, None, at(2))
}

fn finish(finalizers: &[&str], reason: FinishReason) -> Step {
    Step::Finish {
        remove_finalizers: finalizers.iter().map(|finalizer| (*finalizer).to_owned()).collect(),
        reason,
    }
}

#[test]
fn an_evacuation_ends_with_its_pod() {
    let present = pod(&[("a.example", "5")]);
    let finished = PodFacts {
        is_finished: true,
        ..present.clone()
    };
    let other = PodFacts {
        uid: "another".to_owned(),
        ..present
    };
    let of_name = |is_successor| PodState::of_name(&other, "uid", is_successor);
    let (gone, invalid) = (FinishReason::PodGone, FinishReason::Invalid);
    let (ours, protection) = (INSTIGATOR_FINALIZER, PROTECTION_FINALIZER);

    let kept = step_of(&[ours, OTHER, FOREIGN], false, false, PodState::Gone);
    assert_eq!(kept, finish(&[ours, OTHER], gone), "the pod is gone");
    let protected = step_of(&[ours, protection], true, true, PodState::Gone);
    assert_eq!(protected, finish(&[ours, protection], gone), "gone while protected");
    let foreign = step_of(&[FOREIGN], false, true, PodState::Gone);
    assert_eq!(foreign, Step::Wait(None), "gone, a foreign finalizer is left");
    for (what, pod, reason) in [
        ("the pod has ended", PodState::Exists(&finished), gone),
        ("another pod of the name", of_name(false), invalid),
        ("the successor in a StatefulSet", of_name(true), gone),
    ] {
        assert_eq!(step_of(&[ours], false, false, pod), finish(&[ours], reason), "{what}");
    }
}

#[test]
fn an_evacuation_of_a_pod_that_is_there_ends_without_an_instigator_unless_it_is_forbidden() {
    let (ours, protection) = (INSTIGATOR_FINALIZER, PROTECTION_FINALIZER);
    let cancelled = |finalizers: &[&str]| finish(finalizers, FinishReason::Cancelled);
    let protect = |protected| Step::SetProtection { protected };
    // The finalizers, whether a cancellation is forbidden, and whether the Evacuation is deleted.
    for (finalizers, is_forbidden, is_deleted, expected) in [
        (&[][..], false, false, cancelled(&[])),
        (&[FOREIGN], false, false, cancelled(&[])),
        (&[OTHER], false, true, Step::Wait(None)),
        (&[protection], false, true, cancelled(&[protection])),
        (&[ours], true, false, protect(true)),
        (&[], true, false, protect(true)),
        (&[ours, protection], false, false, protect(false)),
        (&[ours, protection], true, false, waits_until(1800)),
        (&[protection], true, true, waits_until(1800)),
    ] {
        let present = pod(&[("a.example", "5")]);
        let step = step_of(finalizers, is_forbidden, is_deleted, PodState::Exists(&present));
        assert_eq!(step, expected, "{finalizers:?}, {is_forbidden}, {is_deleted}");
    }
}

#[test]
fn a_switch_keeps_the_cancellation_policy_and_the_counter() {
    let pod = pod(&[("a.example", "9"), ("b.example", "5")]);
    let mut evacuation = created(&pod);
    write(&mut evacuation, &pod, 0);
    let finalizers = evacuation.metadata.finalizers.as_mut().unwrap();
    finalizers.push(PROTECTION_FINALIZER.to_owned());
    status(&mut evacuation).evacuation_cancellation_policy = CancellationPolicy::Forbid;
    status(&mut evacuation).failed_eviction_counter = 4;
    status(&mut evacuation).active_evacuator_completed = true;
    write(&mut evacuation, &pod, 1);
    let status = evacuation.status.unwrap();
    assert_eq!(status.evacuation_cancellation_policy, CancellationPolicy::Forbid);
    assert_eq!(status.failed_eviction_counter, 4);
}

#[test]
fn the_daemon_set_evacuator_stays_within_the_targets() {
    let daemon_pod = PodFacts {
        priority: 5000,
        ..daemon_pod()
    };
    let mut evacuation = created(&daemon_pod);
    let first = &evacuation.spec.evacuators.as_ref().unwrap()[0];
    assert_eq!(
        (first.evacuator_class.as_str(), first.priority),
        (DAEMON_SET_EVACUATOR, 10_000)
    );
    let message = write(&mut evacuation, &daemon_pod, 0);
    assert_eq!(message, "it is the turn of headgate.dev/daemonset");
    let node = Node {
        maintenance_taint: Some(String::new()),
        ..Node::default()
    };
    let bare = Node::default();
    let up_to = |priority| -> DrainTargets {
        let entry = |pod_type, priority| DrainPlanEntry::new(pod_type, priority, None);
        let entries = [entry(PodType::Default, i32::MAX), entry(PodType::DaemonSet, priority)];
        entries.iter().collect()
    };
    let (reached, below) = (up_to(5000), up_to(4999));
    let run = |evacuation: &Evacuation, pod: &PodFacts, node, targets| {
        let state = NodeState {
            node,
            targets,
            is_hurried: false,
            reason: "OS upgrade",
        };
        evacuate(evacuation, pod, state, GRACE_PERIOD, at(10))
    };
    let status = run(&evacuation, &daemon_pod, &node, Some(&reached)).expect("within the targets");
    let message = "web is terminating the pod due to node maintenance (OS upgrade).";
    assert_eq!(status.message, message);
    assert_eq!(status.evacuation_progress_timestamp, Some(Time(at(10))));
    assert_eq!(status.expected_evacuation_finish_time, Some(Time(at(40))));
    assert!(!status.active_evacuator_completed);
    let mut failed = evacuation.clone();
    let failed_status = failed.status.as_mut().unwrap();
    (failed_status.failed_eviction_counter, failed_status.message) = (1, "why it failed".to_owned());
    let status = run(&failed, &daemon_pod, &node, Some(&reached)).expect("once more");
    assert_eq!(status.message, "why it failed", "a blocker shows it");
    let hurried = NodeState {
        node: &node,
        targets: Some(&below),
        is_hurried: true,
        reason: "",
    };
    let all = evacuate(&evacuation, &daemon_pod, hurried, GRACE_PERIOD, at(10));
    assert!(all.is_some(), "its node is gone soon");
    let exempt = PodFacts {
        tolerates_maintenance: true,
        ..daemon_pod.clone()
    };
    let terminating = PodFacts {
        terminating_until: Some(at(1)),
        ..daemon_pod.clone()
    };
    let other = PodFacts {
        uid: "x".to_owned(),
        ..daemon_pod.clone()
    };
    let not_its_turn = created(&daemon_pod);
    for (what, evacuation, pod, node, targets) in [
        ("above the targets", &evacuation, &daemon_pod, &node, Some(&below)),
        ("no maintenance", &evacuation, &daemon_pod, &node, None),
        (MAINTENANCE_TAINT, &evacuation, &daemon_pod, &bare, Some(&reached)),
        ("exempt", &evacuation, &exempt, &node, Some(&reached)),
        ("terminating", &evacuation, &terminating, &node, Some(&reached)),
        ("another pod", &evacuation, &other, &node, Some(&reached)),
        ("the turn of another", &not_its_turn, &daemon_pod, &node, Some(&reached)),
    ] {
        assert_eq!(run(evacuation, pod, node, targets), None, "{what}");
    }
}
