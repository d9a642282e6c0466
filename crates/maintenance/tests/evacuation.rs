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
    PodFacts {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "uid".to_owned(),
        evacuators: evacuators
            .iter()
            .map(|(class, value)| {
                (
                    format!("{}{class}", EVACUATOR_ANNOTATION_PREFIXES[0]),
                    (*value).to_owned(),
                )
            })
            .collect(),
        ..PodFacts::default()
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

/// Carries out a status write, which is what the step has to be.
fn write(evacuation: &mut Evacuation, pod: &PodFacts, now: Timestamp) -> String {
    match step(evacuation, PodState::Exists(pod), None, now) {
        Step::UpdateStatus(status) => {
            evacuation.status = Some(*status.clone());
            status.message
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn turns_go_from_the_highest_priority_to_the_eviction() {
    let pod = pod(&[
        ("last.example", "5"),
        ("first.example", "20000"),
        ("app.example", "10000/controller"),
    ]);
    let mut evacuation = created(&pod);
    assert_eq!(write(&mut evacuation, &pod, at(0)), "it is the turn of first.example");
    let look = |evacuation: &Evacuation, seconds| step(evacuation, PodState::Exists(&pod), None, at(seconds));
    assert_eq!(look(&evacuation, 1), Step::Wait(Some(at(1800))));
    // Progress moves the deadline.
    status(&mut evacuation).evacuation_progress_timestamp = Some(Time(at(1000)));
    status(&mut evacuation).expected_evacuation_finish_time = Some(Time(at(5000)));
    assert_eq!(look(&evacuation, 1800), Step::Wait(Some(at(2800))));
    let message = write(&mut evacuation, &pod, at(2800));
    assert_eq!(message, "first.example made no progress; it is the turn of app.example");
    assert_eq!(
        evacuation.status.as_ref().unwrap().expected_evacuation_finish_time,
        None
    );
    status(&mut evacuation).active_evacuator_completed = true;
    let message = write(&mut evacuation, &pod, at(2900));
    assert_eq!(
        message,
        "app.example completed and the pod still exists; it is the turn of last.example"
    );
    assert!(!evacuation.status.as_ref().unwrap().active_evacuator_completed);
    assert_eq!(look(&evacuation, 2901), Step::Wait(Some(at(4700))));
    assert_eq!(look(&evacuation, 4700), Step::Evict);
    // It makes progress after all.
    status(&mut evacuation).evacuation_progress_timestamp = Some(Time(at(4800)));
    assert_eq!(look(&evacuation, 4801), Step::Wait(Some(at(6600))));
    status(&mut evacuation).active_evacuator_completed = true;
    assert_eq!(look(&evacuation, 4802), Step::Evict);
}

#[test]
fn progress_in_the_future_counts_from_when_it_is_seen() {
    let pod = pod(&[("app.example", "20000"), ("last.example", "5")]);
    let mut evacuation = created(&pod);
    write(&mut evacuation, &pod, at(0));
    let look = |evacuation: &Evacuation, seconds| step(evacuation, PodState::Exists(&pod), None, at(seconds));
    // The clocks of two nodes differ.
    status(&mut evacuation).evacuation_progress_timestamp = Some(Time(at(1900)));
    assert_eq!(look(&evacuation, 100), Step::Wait(Some(at(3700))));
    // Local time as UTC, and a time that never comes.
    for future in [at(1901), at(7300), "9999-12-30T22:00:00Z".parse().unwrap()] {
        let now = 100;
        status(&mut evacuation).evacuation_progress_timestamp = Some(Time(future));
        let mut expected = evacuation.status.clone().unwrap();
        expected.evacuation_progress_timestamp = Some(Time(at(now)));
        assert_eq!(look(&evacuation, now), Step::UpdateStatus(Box::new(expected.clone())));
        evacuation.status = Some(expected);
        assert_eq!(look(&evacuation, now), Step::Wait(Some(at(1900))));
    }
    let message = write(&mut evacuation, &pod, at(1900));
    assert_eq!(message, "app.example made no progress; it is the turn of last.example");
    // Who has completed has no turn to wait for.
    status(&mut evacuation).evacuation_progress_timestamp = Some(Time(at(9000)));
    status(&mut evacuation).active_evacuator_completed = true;
    assert_eq!(look(&evacuation, 1901), Step::Evict);
}

#[test]
fn before_a_deadline_turns_end_in_time_for_the_eviction() {
    let pod = pod(&[("first.example", "20000"), ("last.example", "5")]);
    let mut evacuation = created(&pod);
    write(&mut evacuation, &pod, at(0));
    let look = |evacuation: &Evacuation, seconds| {
        let turns_end = Some(at(15));
        step(evacuation, PodState::Exists(&pod), turns_end, at(seconds))
    };
    assert_eq!(look(&evacuation, 1), Step::Wait(Some(at(15))));
    // Progress is no reason to wait longer.
    status(&mut evacuation).evacuation_progress_timestamp = Some(Time(at(14)));
    assert_eq!(look(&evacuation, 14), Step::Wait(Some(at(15))));
    let Step::UpdateStatus(next) = look(&evacuation, 15) else {
        panic!("the turn of the last one");
    };
    assert_eq!(next.active_evacuator_class.as_deref(), Some("last.example"));
    evacuation.status = Some(*next);
    assert_eq!(look(&evacuation, 15), Step::Evict);

    // headgate's own evacuator of DaemonSets keeps its turn.
    let daemon_pod = PodFacts {
        pod_type: PodType::DaemonSet,
        ..pod.clone()
    };
    let mut evacuation = created(&daemon_pod);
    status(&mut evacuation).active_evacuator_class = Some(DAEMON_SET_EVACUATOR.to_owned());
    let kept = step(&evacuation, PodState::Exists(&daemon_pod), Some(at(15)), at(20));
    assert_eq!(kept, Step::Wait(Some(at(1800))));
}

#[test]
fn a_pod_without_evacuators_is_evicted_at_once() {
    let pod = pod(&[]);
    let evacuation = created(&pod);
    assert_eq!(step(&evacuation, PodState::Exists(&pod), None, at(0)), Step::Evict);
}

#[test]
fn an_unknown_active_class_counts_for_nothing() {
    let pod = pod(&[("a.example", "5")]);
    let mut evacuation = created(&pod);
    status(&mut evacuation).active_evacuator_class = Some("unknown.example".to_owned());
    status(&mut evacuation).active_evacuator_completed = true;
    assert_eq!(write(&mut evacuation, &pod, at(0)), "it is the turn of a.example");
    evacuation.spec.evacuators = Some(Vec::new());
    status(&mut evacuation).active_evacuator_class = Some("unknown.example".to_owned());
    status(&mut evacuation).active_evacuator_completed = false;
    assert_eq!(step(&evacuation, PodState::Exists(&pod), None, at(0)), Step::Evict);
}

#[test]
fn some_pods_are_never_evicted() {
    let mut terminating = pod(&[]);
    terminating.terminating_until = Some(at(30));
    for (pod_type, turns) in [(PodType::DaemonSet, 1), (PodType::Static, 0)] {
        let kept = PodFacts { pod_type, ..pod(&[]) };
        let mut evacuation = created(&kept);
        evacuation.spec.evacuators = Some(Vec::new());
        for _ in 0..turns {
            write(&mut evacuation, &kept, at(0));
        }
        assert_eq!(
            step(&evacuation, PodState::Exists(&kept), None, at(1800)),
            Step::Wait(None),
            "{pod_type:?}"
        );
    }
    assert_eq!(
        step(&created(&terminating), PodState::Exists(&terminating), None, at(0)),
        Step::Wait(None)
    );
}

#[test]
fn a_pod_of_a_daemon_set_is_deleted_last_where_its_evacuation_names_no_controller() {
    let daemon_pod = PodFacts {
        pod_type: PodType::DaemonSet,
        ..pod(&[])
    };
    let own = "it is the turn of headgate.dev/daemonset";
    let after_app = "app.example made no progress; it is the turn of headgate.dev/daemonset";
    for (evacuators, expected) in [
        (&[][..], &[own][..]),
        (&[("app.example", 5)], &["it is the turn of app.example", after_app]),
        (&[("app.example", 10_000)], &["it is the turn of app.example"]),
        (
            &[("daemonset.apps.k8s.io", 5)],
            &["it is the turn of daemonset.apps.k8s.io"],
        ),
    ] {
        let mut evacuation = created(&daemon_pod);
        let evacuators = evacuators.iter().map(|(class, priority)| Evacuator {
            evacuator_class: (*class).to_owned(),
            priority: *priority,
            role: None,
        });
        evacuation.spec.evacuators = Some(evacuators.collect());
        let mut now = at(0);
        for message in expected {
            assert_eq!(write(&mut evacuation, &daemon_pod, now), *message);
            let deadline = now + SignedDuration::from_secs(1800);
            let waits = step(&evacuation, PodState::Exists(&daemon_pod), None, now);
            assert_eq!(waits, Step::Wait(Some(deadline)), "{message}");
            now = deadline;
        }
        assert_eq!(
            step(&evacuation, PodState::Exists(&daemon_pod), None, now),
            Step::Wait(None)
        );
    }
}

#[test]
fn evacuators_are_filled_in_where_an_instigator_left_them_out() {
    let pod = pod(&[("a.example", "5"), ("B", "5")]);
    let mut evacuation = created(&pod);
    evacuation.spec.evacuators = None;
    let expected = Evacuator {
        evacuator_class: "a.example".to_owned(),
        priority: 5,
        role: None,
    };
    assert_eq!(
        step(&evacuation, PodState::Exists(&pod), None, at(0)),
        Step::SetEvacuators(vec![expected.clone()])
    );
    // The list of a pod of a DaemonSet is the one of headgate's own Evacuations: nothing else deletes the pod.
    let pod = PodFacts {
        pod_type: PodType::DaemonSet,
        ..pod
    };
    let daemon_set = Evacuator {
        evacuator_class: DAEMON_SET_EVACUATOR.to_owned(),
        priority: 10_000,
        role: Some("controller".to_owned()),
    };
    assert_eq!(
        step(&evacuation, PodState::Exists(&pod), None, at(0)),
        Step::SetEvacuators(vec![expected, daemon_set])
    );
}

#[test]
fn how_an_evacuation_ends() {
    let present = pod(&[("a.example", "5")]);
    let finished = PodFacts {
        is_finished: true,
        ..present.clone()
    };
    let other = PodFacts {
        uid: "another".to_owned(),
        ..present.clone()
    };
    let exists = || PodState::Exists(&present);
    let finish = |finalizers: &[&str], reason| Step::Finish {
        remove_finalizers: finalizers.iter().map(|finalizer| (*finalizer).to_owned()).collect(),
        reason,
    };
    let ours = INSTIGATOR_FINALIZER;
    let protection = PROTECTION_FINALIZER;
    for (what, finalizers, forbid, deleted, pod, expected) in [
        (
            "the pod is gone",
            &[ours, OTHER, FOREIGN][..],
            false,
            false,
            PodState::Gone,
            finish(&[ours, OTHER], FinishReason::PodGone),
        ),
        (
            "gone while protected",
            &[ours, protection],
            true,
            true,
            PodState::Gone,
            finish(&[ours, protection], FinishReason::PodGone),
        ),
        (
            "gone, a foreign finalizer is left",
            &[FOREIGN],
            false,
            true,
            PodState::Gone,
            Step::Wait(None),
        ),
        (
            "the pod has ended",
            &[ours],
            false,
            false,
            PodState::Exists(&finished),
            finish(&[ours], FinishReason::PodGone),
        ),
        (
            "another pod of the name",
            &[ours],
            false,
            false,
            PodState::of_name(&other, "uid", false),
            finish(&[ours], FinishReason::Invalid),
        ),
        (
            "the successor in a StatefulSet",
            &[ours],
            false,
            false,
            PodState::of_name(&other, "uid", true),
            finish(&[ours], FinishReason::PodGone),
        ),
        (
            "no instigator",
            &[],
            false,
            false,
            exists(),
            finish(&[], FinishReason::Cancelled),
        ),
        (
            "no instigator, foreign finalizer",
            &[FOREIGN],
            false,
            false,
            exists(),
            finish(&[], FinishReason::Cancelled),
        ),
        (
            "deleted beside an instigator",
            &[OTHER],
            false,
            true,
            exists(),
            Step::Wait(None),
        ),
        (
            "allowed again",
            &[protection],
            false,
            true,
            exists(),
            finish(&[protection], FinishReason::Cancelled),
        ),
        (
            "forbidden",
            &[ours],
            true,
            false,
            exists(),
            Step::SetProtection { protected: true },
        ),
        (
            "forbidden without instigator",
            &[],
            true,
            false,
            exists(),
            Step::SetProtection { protected: true },
        ),
        (
            "allowed again beside an instigator",
            &[ours, protection],
            false,
            false,
            exists(),
            Step::SetProtection { protected: false },
        ),
        (
            "protected",
            &[ours, protection],
            true,
            false,
            exists(),
            Step::Wait(Some(at(1800))),
        ),
        (
            "protected and deleted",
            &[protection],
            true,
            true,
            exists(),
            Step::Wait(Some(at(1800))),
        ),
    ] {
        let mut evacuation = created(&present);
        evacuation.metadata.finalizers = Some(finalizers.iter().map(|finalizer| (*finalizer).to_owned()).collect());
        evacuation.metadata.deletion_timestamp = deleted.then(|| Time(at(1)));
        status(&mut evacuation).active_evacuator_class = Some("a.example".to_owned());
        status(&mut evacuation).evacuation_progress_timestamp = Some(Time(at(0)));
        if forbid {
            status(&mut evacuation).evacuation_cancellation_policy = CancellationPolicy::Forbid;
        }
        assert_eq!(step(&evacuation, pod, None, at(2)), expected, "{what}");
    }
}

#[test]
fn a_switch_keeps_the_cancellation_policy_and_the_counter() {
    let pod = pod(&[("a.example", "9"), ("b.example", "5")]);
    let mut evacuation = created(&pod);
    write(&mut evacuation, &pod, at(0));
    evacuation
        .metadata
        .finalizers
        .as_mut()
        .unwrap()
        .push(PROTECTION_FINALIZER.to_owned());
    status(&mut evacuation).evacuation_cancellation_policy = CancellationPolicy::Forbid;
    status(&mut evacuation).failed_eviction_counter = 4;
    status(&mut evacuation).active_evacuator_completed = true;
    write(&mut evacuation, &pod, at(1));
    let status = evacuation.status.unwrap();
    assert_eq!(status.evacuation_cancellation_policy, CancellationPolicy::Forbid);
    assert_eq!(status.failed_eviction_counter, 4);
}

#[test]
fn the_daemon_set_evacuator_stays_within_the_targets() {
    let daemon_pod = PodFacts {
        pod_type: PodType::DaemonSet,
        priority: 5000,
        ..pod(&[])
    };
    let mut evacuation = created(&daemon_pod);
    let first = &evacuation.spec.evacuators.as_ref().unwrap()[0];
    assert_eq!(
        (first.evacuator_class.as_str(), first.priority),
        (DAEMON_SET_EVACUATOR, 10_000)
    );
    assert_eq!(
        write(&mut evacuation, &daemon_pod, at(0)),
        "it is the turn of headgate.dev/daemonset"
    );
    let node = Node {
        maintenance_taint: Some(String::new()),
        ..Node::default()
    };
    let bare = Node::default();
    let up_to = |priority| -> DrainTargets {
        let entry = |pod_type, priority| DrainPlanEntry::new(pod_type, priority, None);
        [entry(PodType::Default, i32::MAX), entry(PodType::DaemonSet, priority)]
            .iter()
            .collect()
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
    assert_eq!(
        status.message,
        "web is terminating the pod due to node maintenance (OS upgrade)."
    );
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
    for (what, left) in [
        ("above the targets", run(&evacuation, &daemon_pod, &node, Some(&below))),
        ("no maintenance", run(&evacuation, &daemon_pod, &node, None)),
        (MAINTENANCE_TAINT, run(&evacuation, &daemon_pod, &bare, Some(&reached))),
        (
            "exempt",
            run(
                &evacuation,
                &PodFacts {
                    tolerates_maintenance: true,
                    ..daemon_pod.clone()
                },
                &node,
                Some(&reached),
            ),
        ),
        (
            "terminating",
            run(
                &evacuation,
                &PodFacts {
                    terminating_until: Some(at(1)),
                    ..daemon_pod.clone()
                },
                &node,
                Some(&reached),
            ),
        ),
        (
            "another pod",
            run(
                &evacuation,
                &PodFacts {
                    uid: "x".to_owned(),
                    ..daemon_pod.clone()
                },
                &node,
                Some(&reached),
            ),
        ),
        (
            "the turn of another",
            run(&created(&daemon_pod), &daemon_pod, &node, Some(&reached)),
        ),
    ] {
        assert_eq!(left, None, "{what}");
    }
}
