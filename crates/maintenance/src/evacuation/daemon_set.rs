//! The evacuator `headgate.dev/daemonset`: deletes pods of DaemonSets, within the targets of their node only.
//!
//! The DaemonSet controller recreates a pod that it deletes, unless the node has a taint that the pod does not tolerate. So it
//! waits for the taint, and leaves pods alone that tolerate it. Where it does nothing it does not complete its turn either: an
//! Evacuation that is above the targets is not to be encouraged.

use headgate_core::node::Node;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::names::is_daemon_set_evacuator;
use crate::api::{Evacuation, EvacuationStatus, PodType};
use crate::drain_plan::DrainTargets;
use crate::evacuation::is_about;
use crate::snapshot::PodFacts;

/// What is known of the node of a pod.
#[derive(Clone, Copy, Debug)]
pub struct NodeState<'a> {
    /// The Node that the pod is bound to.
    pub node: &'a Node,
    /// Its targets, if a maintenance drains it.
    pub targets: Option<&'a DrainTargets>,
    /// Whether all its pods leave at once, because its deadline is near.
    pub is_hurried: bool,
    /// The reason of the oldest maintenance, for the message; may be empty.
    pub reason: &'a str,
}

/// The status to write before the pod is deleted with its UID as precondition; `None` where the evacuator does neither now.
pub fn evacuate(
    evacuation: &Evacuation,
    pod: &PodFacts,
    state: NodeState<'_>,
    grace_period: SignedDuration,
    now: Timestamp,
) -> Option<EvacuationStatus> {
    let status = evacuation.status.clone().unwrap_or_default();
    let is_our_turn = status
        .active_evacuator_class
        .as_deref()
        .is_some_and(is_daemon_set_evacuator);
    let is_the_pod = is_about(evacuation, pod) && pod.pod_type == PodType::DaemonSet;
    let is_wanted = |targets| pod.is_targeted(targets) || (state.is_hurried && pod.has_to_leave());
    let is_targeted = state.targets.is_some_and(is_wanted);
    let is_kept_away = state.node.maintenance_taint.is_some();
    let is_terminating = pod.terminating_until.is_some();
    if !is_our_turn || !is_the_pod || !is_targeted || !is_kept_away || is_terminating {
        return None;
    }
    let because = match state.reason {
        "" => String::new(),
        reason => format!(" ({reason})"),
    };
    // Why the last deletion failed stays the message until the pod terminates: a blocker shows it.
    let has_failed = status.failed_eviction_counter > 0;
    let failure = has_failed.then(|| status.message.clone());
    let message =
        failure.unwrap_or_else(|| format!("{} is terminating the pod due to node maintenance{because}.", pod.name));
    Some(EvacuationStatus {
        evacuation_progress_timestamp: Some(Time(now)),
        expected_evacuation_finish_time: now.checked_add(grace_period).ok().map(Time),
        message,
        ..status
    })
}
