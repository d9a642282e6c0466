//! The annotation by which Cluster Autoscaler waits before it deletes the instance of the own node, until the node has left its load
//! balancers. What should be on the Node is decided here; pure. `reconciler` publishes it.
//!
//! Cluster Autoscaler waits only if the Node had an annotation with the prefix before the loop that decided the deletion, so the
//! annotation is set with the soft taint, which comes minutes before the hard one. It is removed when the marker is `True`, when the Node
//! has neither taint, or when the timeout since the hard taint is over.
//!
//! Invariant: the annotation outlives its reason by no more than a write. The timeout counts on the own clock from the observation of the
//! hard taint; only the first observation of a process takes the age from the taint's value, by the wall clock, so that restarts do not
//! prolong it.

use std::time::Duration;

use headgate_clock::Moment;
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::marker::MarkerFact;
use super::names::{AUTOSCALER_TAINT, CANDIDATE_TAINT, DELETION_DELAY_ANNOTATION};
use super::report::{NodeObjectState, NodeReport, Source};
use super::signal::Facts;
use super::slim_node::SlimNode;

mod metrics;
mod reconciler;

pub use metrics::DeletionDelayMetrics;
pub use reconciler::{DeletionDelayTask, delay_deletion};

/// An agent that does not delay deletions removes an annotation that it has seen for so long. During a roll that changes the setting,
/// the other agent of the node wants the annotation.
const LEFTOVER_AGE: Duration = Duration::from_mins(1);
/// Longer values of the taint are cut. Cluster Autoscaler writes ten digits.
const MAX_MARK_BYTES: usize = 32;

/// What a Node shows of its removal by Cluster Autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutoscalerFacts {
    /// Whether the Node has the soft taint.
    pub is_candidate: bool,
    /// The value of the hard taint, Unix seconds of its start; `None` without that taint.
    pub deletion_mark: Option<String>,
    /// Whether the Node has headgate's annotation.
    pub is_delayed: bool,
}

impl AutoscalerFacts {
    /// Reads a Node.
    #[must_use]
    pub(super) fn read(node: &SlimNode) -> Self {
        let taints = &node.spec.taints;
        let hard = taints.iter().find(|taint| taint.key == AUTOSCALER_TAINT);
        let mut annotations = node.metadata.annotations.iter().flatten();
        Self {
            is_candidate: taints.iter().any(|taint| taint.key == CANDIDATE_TAINT),
            deletion_mark: hard.map(|taint| taint.value[..taint.value.floor_char_boundary(MAX_MARK_BYTES)].to_owned()),
            is_delayed: annotations.any(|(key, _)| key == DELETION_DELAY_ANNOTATION),
        }
    }
}

/// Why the annotation should be on the Node or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelayState {
    /// The present Node is not known: nothing is written.
    Unknown,
    /// The setting is off.
    Off,
    /// Cluster Autoscaler does not intend to delete the node.
    NoCandidate,
    /// Cluster Autoscaler may delete the node soon.
    Candidate,
    /// Cluster Autoscaler deletes the node, and nothing shows that it has left its load balancers.
    Deleting,
    /// The node has left its load balancers.
    Out,
    /// The node has not left them within the timeout.
    TimedOut,
}

/// What should be on the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayTarget {
    /// Why.
    pub state: DelayState,
    /// Whether the annotation should be on the Node; `None` if it stays as it is.
    pub is_delayed: Option<bool>,
    /// When the target changes without another observation.
    pub changes_at: Option<Instant>,
}

impl DelayTarget {
    fn new(state: DelayState) -> Self {
        let is_delayed = match state {
            DelayState::Unknown | DelayState::Off => None,
            DelayState::Candidate | DelayState::Deleting => Some(true),
            DelayState::NoCandidate | DelayState::Out | DelayState::TimedOut => Some(false),
        };
        Self {
            state,
            is_delayed,
            changes_at: None,
        }
    }
}

/// From observations of the own Node to what should be on it.
#[derive(Debug)]
pub struct DeletionDelay {
    /// `holdDeletion.timeout`; `None` if the setting is off.
    timeout: Option<Duration>,
    /// The value of the hard taint, and the end of its timeout.
    deletion: Option<(String, Instant)>,
    /// Whether this process has observed the Node before.
    has_observed: bool,
    /// Since when the annotation is there although the setting is off.
    leftover_since: Option<Instant>,
}

impl DeletionDelay {
    /// Without a timeout, only an annotation that is left over is removed.
    #[must_use]
    pub fn new(timeout: Option<Duration>) -> Self {
        Self {
            timeout,
            deletion: None,
            has_observed: false,
            leftover_since: None,
        }
    }

    /// Adopts what is known of the Node; returns what should be on it.
    pub fn observe(&mut self, report: &NodeReport, now: Moment) -> DelayTarget {
        let is_known = report.source == Source::Watch && report.object_state == NodeObjectState::Present;
        let Some(facts) = report.facts.as_ref().filter(|_| is_known) else {
            return DelayTarget::new(DelayState::Unknown);
        };
        match self.timeout {
            None => self.leftover(&facts.autoscaler, now),
            Some(timeout) => self.follow(facts, timeout, now),
        }
    }

    fn leftover(&mut self, facts: &AutoscalerFacts, now: Moment) -> DelayTarget {
        self.leftover_since = facts.is_delayed.then(|| self.leftover_since.unwrap_or(now.mono));
        let due_at = self.leftover_since.map(|since| since + LEFTOVER_AGE);
        DelayTarget {
            is_delayed: due_at.filter(|at| *at <= now.mono).map(|_| false),
            changes_at: due_at.filter(|at| *at > now.mono),
            ..DelayTarget::new(DelayState::Off)
        }
    }

    fn follow(&mut self, facts: &Facts, timeout: Duration, now: Moment) -> DelayTarget {
        let mark = facts.autoscaler.deletion_mark.as_ref();
        self.deletion = match (mark, self.deletion.take()) {
            (Some(mark), Some((known, ends_at))) if *mark == known => Some((known, ends_at)),
            (mark, _) => mark.map(|mark| {
                let age = if self.has_observed {
                    Duration::ZERO
                } else {
                    age_of(mark, now.wall)
                };
                (mark.clone(), now.mono + timeout.saturating_sub(age))
            }),
        };
        self.has_observed = true;
        let ends_at = self.deletion.as_ref().map(|(_, ends_at)| *ends_at);
        let state = match ends_at {
            None if !facts.autoscaler.is_candidate => DelayState::NoCandidate,
            _ if facts.marker.as_ref().is_some_and(MarkerFact::is_out) => DelayState::Out,
            None => DelayState::Candidate,
            Some(ends_at) if ends_at <= now.mono => DelayState::TimedOut,
            Some(_) => DelayState::Deleting,
        };
        DelayTarget {
            changes_at: ends_at.filter(|_| state == DelayState::Deleting),
            ..DelayTarget::new(state)
        }
    }
}

/// The time since the hard taint was set; 0 if its value is no time, or one in the future.
fn age_of(mark: &str, now: Timestamp) -> Duration {
    let set_at = mark.parse().ok().and_then(|second| Timestamp::from_second(second).ok());
    let age = set_at.map_or(SignedDuration::ZERO, |at| now.duration_since(at));
    Duration::try_from(age).unwrap_or_default()
}

#[cfg(test)]
mod tests;
