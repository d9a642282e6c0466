//! Whose turn it is to evacuate a pod: the state machine of an Evacuation, as one pure function.
//!
//! Evacuators take turns by priority. A turn passes on when the evacuator has completed and the pod still exists, or when it
//! made no progress for `progressDeadlineSeconds`. After the last one the controller calls the Eviction API. A fresh progress
//! timestamp ends these calls. Pods of DaemonSets and static pods are never evicted: the API would answer, and they would come
//! back. The last turn of the former is that of headgate's evacuator, where no other controller has one.
//!
//! The state is in the object alone: `status` and finalizers. Only the pauses between failed evictions are the caller's, see
//! [`eviction`](super::eviction).

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::names::{
    CONTROLLER_PRIORITY, is_daemon_set_evacuator, is_instigator_finalizer, is_protection_finalizer,
};
use crate::api::{CancellationPolicy, Evacuation, EvacuationStatus, Evacuator, PodType};
use crate::snapshot::PodFacts;

use super::annotations::{daemon_set_evacuator, evacuators_of, turn};
use super::is_about;

/// How far ahead a progress timestamp may be at least: clocks differ.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(1);

/// What is to be done for an Evacuation now.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The Evacuation is over: remove these finalizers, and delete it where it is not being deleted.
    Finish {
        /// Finalizers of instigators and the protection; those of others stay.
        remove_finalizers: Vec<String>,
        /// Why it is over.
        reason: FinishReason,
    },
    /// Add or remove the protection finalizer.
    SetProtection {
        /// Whether it is to be there.
        protected: bool,
    },
    /// Fill in `spec.evacuators` from the pod.
    SetEvacuators(Vec<Evacuator>),
    /// Replace the status with this one.
    UpdateStatus(Box<EvacuationStatus>),
    /// Call the Eviction API.
    Evict,
    /// The active evacuator works, or the pod terminates. Look again at the time given, if any.
    Wait(Option<Timestamp>),
}

/// Why an Evacuation is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FinishReason {
    /// Its pod is gone or has ended.
    PodGone,
    /// No instigator wants it any more, and it can be cancelled.
    Cancelled,
    /// The name, the UID and the namespace are not those of one pod.
    Invalid,
}

/// What is known about the pod of an Evacuation.
#[derive(Clone, Copy, Debug)]
pub enum PodState<'a> {
    /// There is a pod of the name or the UID in `spec.podRef`.
    Exists(&'a PodFacts),
    /// It does not, by a read that is not older than the Evacuation.
    Gone,
}

impl<'a> PodState<'a> {
    /// What a read by the name in `spec.podRef` shows. A pod with its UID that `was_seen` and is not there any more may have a successor of
    /// that name, as in a StatefulSet.
    pub fn of_name(read: &'a PodFacts, uid: &str, was_seen: bool) -> Self {
        if was_seen && read.uid != uid {
            Self::Gone
        } else {
            Self::Exists(read)
        }
    }
}

/// What is to be done for an Evacuation now. One step at a time: the next call sees its result. No turn lasts longer than until
/// `turns_end`, where the node of the pod has a deadline.
pub fn step(evacuation: &Evacuation, pod: PodState<'_>, turns_end: Option<Timestamp>, now: Timestamp) -> Step {
    let pod = match pod {
        PodState::Exists(pod) if !is_about(evacuation, pod) => {
            return finish(evacuation, FinishReason::Invalid);
        }
        PodState::Gone => return finish(evacuation, FinishReason::PodGone),
        PodState::Exists(pod) if pod.is_finished => return finish(evacuation, FinishReason::PodGone),
        PodState::Exists(pod) => pod,
    };
    let status = evacuation.status.clone().unwrap_or_default();
    let is_forbidden = status.evacuation_cancellation_policy == CancellationPolicy::Forbid;
    let is_deleted = evacuation.metadata.deletion_timestamp.is_some();
    if !is_forbidden && (is_deleted || !has_instigator(evacuation)) {
        return cancelled(evacuation);
    }
    let has_protection = finalizers(evacuation).any(is_protection_finalizer);
    // An object that is being deleted takes no finalizers.
    if is_forbidden != has_protection && !(is_forbidden && is_deleted) {
        return Step::SetProtection {
            protected: is_forbidden,
        };
    }
    match &evacuation.spec.evacuators {
        None => Step::SetEvacuators(evacuators_of(pod)),
        Some(evacuators) => {
            let deadline = turn_deadline(evacuation, &status, turns_end);
            let progress = status.evacuation_progress_timestamp.as_ref();
            // A time that is less ahead only makes the turn longer; and where the own clock is slow, the evacuator would write it again.
            let max_ahead = allowed(evacuation).max(MAX_CLOCK_SKEW);
            let is_ahead = progress.is_some_and(|progress| progress.0.duration_since(now) > max_ahead);
            next_turn(evacuators, status, pod, (deadline, is_ahead), now)
        }
    }
}

fn finalizers(evacuation: &Evacuation) -> impl Iterator<Item = &str> {
    evacuation.metadata.finalizers.iter().flatten().map(String::as_str)
}

fn has_instigator(evacuation: &Evacuation) -> bool {
    finalizers(evacuation).any(is_instigator_finalizer)
}

fn finish(evacuation: &Evacuation, reason: FinishReason) -> Step {
    let is_ours = |finalizer: &&str| is_instigator_finalizer(finalizer) || is_protection_finalizer(finalizer);
    let remove_finalizers: Vec<_> = finalizers(evacuation).filter(is_ours).map(str::to_owned).collect();
    let is_deleted = evacuation.metadata.deletion_timestamp.is_some();
    if is_deleted && remove_finalizers.is_empty() {
        // What is left are finalizers of others.
        return Step::Wait(None);
    }
    Step::Finish {
        remove_finalizers,
        reason,
    }
}

/// No instigator wants it, or it is being deleted. The finalizers of instigators are theirs to remove while the pod exists.
fn cancelled(evacuation: &Evacuation) -> Step {
    let protection: Vec<_> = finalizers(evacuation)
        .filter(|finalizer| is_protection_finalizer(finalizer))
        .map(str::to_owned)
        .collect();
    if evacuation.metadata.deletion_timestamp.is_some() && protection.is_empty() {
        return Step::Wait(None);
    }
    Step::Finish {
        remove_finalizers: protection,
        reason: FinishReason::Cancelled,
    }
}

fn next_turn(
    evacuators: &[Evacuator],
    status: EvacuationStatus,
    pod: &PodFacts,
    (deadline, is_ahead): (Timestamp, bool),
    now: Timestamp,
) -> Step {
    let mut turns: Vec<_> = evacuators.iter().collect();
    turns.sort_by(|a, b| turn(a).cmp(&turn(b)));
    // The list of another instigator may name nobody who deletes a pod of a DaemonSet, and it cannot be changed.
    let last = daemon_set_evacuator();
    let has_controller = turns.iter().any(|evacuator| {
        evacuator.priority == CONTROLLER_PRIORITY || is_daemon_set_evacuator(&evacuator.evacuator_class)
    });
    if pod.pod_type == PodType::DaemonSet && !has_controller {
        turns.push(&last);
    }
    let active = status.active_evacuator_class.clone();
    let position = turns
        .iter()
        .position(|evacuator| Some(&evacuator.evacuator_class) == active.as_ref());
    let Some(position) = position else {
        // None has been active yet, or the one that is active is unknown: what it says counts for nothing.
        return match turns.first() {
            Some(first) => pass_on(status, first, None, now),
            None => evict(pod),
        };
    };
    let is_over = status.active_evacuator_completed || now >= deadline;
    match turns.get(position + 1) {
        // Such a turn would hardly end. What is written counts from now, once.
        _ if !is_over && is_ahead => Step::UpdateStatus(Box::new(EvacuationStatus {
            evacuation_progress_timestamp: Some(Time(now)),
            ..status
        })),
        _ if !is_over => Step::Wait(Some(deadline)),
        Some(next) => pass_on(status, next, active, now),
        None => evict(pod),
    }
}

/// When the turn of the active evacuator ends. That of the DaemonSets' is no time for an application.
fn turn_deadline(evacuation: &Evacuation, status: &EvacuationStatus, turns_end: Option<Timestamp>) -> Timestamp {
    let active = status.active_evacuator_class.as_deref();
    let turns_end = turns_end.filter(|_| !active.is_some_and(is_daemon_set_evacuator));
    let deadline = progress_deadline(evacuation, status);
    turns_end.map_or(deadline, |end| end.min(deadline))
}

/// When the active evacuator has to have made progress.
fn progress_deadline(evacuation: &Evacuation, status: &EvacuationStatus) -> Timestamp {
    let progress = status.evacuation_progress_timestamp.as_ref();
    let since = progress.or(evacuation.metadata.creation_timestamp.as_ref());
    since.map_or(Timestamp::MAX, |since| {
        since.0.saturating_add(allowed(evacuation)).unwrap_or(Timestamp::MAX)
    })
}

/// For how long an evacuator may make no progress.
fn allowed(evacuation: &Evacuation) -> SignedDuration {
    SignedDuration::from_secs(i64::from(evacuation.spec.progress_deadline_seconds))
}

fn pass_on(mut status: EvacuationStatus, to: &Evacuator, from: Option<String>, now: Timestamp) -> Step {
    status.message = match from {
        Some(from) if status.active_evacuator_completed => {
            format!(
                "{from} completed and the pod still exists; it is the turn of {}",
                to.evacuator_class
            )
        }
        Some(from) => format!("{from} made no progress; it is the turn of {}", to.evacuator_class),
        None => format!("it is the turn of {}", to.evacuator_class),
    };
    status.active_evacuator_class = Some(to.evacuator_class.clone());
    status.active_evacuator_completed = false;
    status.evacuation_progress_timestamp = Some(Time(now));
    status.expected_evacuation_finish_time = None;
    Step::UpdateStatus(Box::new(status))
}

fn evict(pod: &PodFacts) -> Step {
    if pod.pod_type != PodType::Default || pod.terminating_until.is_some() {
        return Step::Wait(None);
    }
    Step::Evict
}
