//! The annotation by which Cluster Autoscaler waits before it deletes the instance of the own node, until the node has left its load
//! balancers. What should be on the Node is decided here; pure. `reconciler` publishes it.
//!
//! Cluster Autoscaler waits only if the Node had an annotation with the prefix before the loop that decided the deletion, so the
//! annotation is set with the soft taint, which comes minutes before the hard one. It is removed when the marker is `True` and the agent
//! counts no connection that passes through the node, when the Node has neither taint, or when the timeout since the hard taint is over.
//!
//! Invariant: the annotation outlives its reason by no more than a write. The timeout counts on the own clock from the observation of the
//! hard taint; only the first observation of a process takes the age from the taint's value, by the wall clock, so that restarts do not
//! prolong it.

use std::time::Duration;

use headgate_core::clock::{Moment, Observed, age_by_wall_clock};
use jiff::Timestamp;
use tokio::time::Instant;

use headgate_core::node::Node;
use headgate_core::node::{NodeObjectState, NodeReport};

mod metrics;
mod reconciler;

pub use metrics::DeletionDelayMetrics;
pub use reconciler::{DeletionDelayTask, delay_deletion};

/// An agent that does not delay deletions removes an annotation that it has seen for so long. During a roll that changes the setting,
/// the other agent of the node wants the annotation.
const LEFTOVER_AGE: Duration = Duration::from_mins(1);

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
    /// Cluster Autoscaler deletes the node, and nothing shows that it has left its load balancers, or connections still pass through it.
    Deleting,
    /// The node has left its load balancers, and no connection is known to pass through it.
    Out,
    /// That was not so within the timeout.
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
    /// `delayTermination.clusterAutoscaler`; `None` if the setting is off.
    timeout: Option<Duration>,
    /// The value of the hard taint.
    deletion_mark: Observed<String>,
    /// Whether this process has observed the Node before.
    has_observed: bool,
    /// Since when the annotation is there although the setting is off.
    leftover_since: Option<Instant>,
}

impl DeletionDelay {
    /// Without a timeout, only an annotation that is left over is removed.
    pub fn new(timeout: Option<Duration>) -> Self {
        Self {
            timeout,
            deletion_mark: Observed::default(),
            has_observed: false,
            leftover_since: None,
        }
    }

    /// Adopts what is known of the Node; returns what should be on it.
    pub fn observe(&mut self, report: &NodeReport, now: Moment) -> DelayTarget {
        let is_present = report.object_state == NodeObjectState::Present;
        let Some(node) = report.node.as_ref().filter(|_| is_present) else {
            return DelayTarget::new(DelayState::Unknown);
        };
        match self.timeout {
            None => self.leftover(node, now),
            Some(timeout) => self.follow(node, timeout, now),
        }
    }

    fn leftover(&mut self, node: &Node, now: Moment) -> DelayTarget {
        self.leftover_since = node
            .is_deletion_delayed()
            .then(|| self.leftover_since.unwrap_or(now.mono));
        let due_at = self.leftover_since.map(|since| since + LEFTOVER_AGE);
        DelayTarget {
            is_delayed: due_at.filter(|at| *at <= now.mono).map(|_| false),
            changes_at: due_at.filter(|at| *at > now.mono),
            ..DelayTarget::new(DelayState::Off)
        }
    }

    fn follow(&mut self, node: &Node, timeout: Duration, now: Moment) -> DelayTarget {
        let has_observed = std::mem::replace(&mut self.has_observed, true);
        let age = |mark: &String| {
            if has_observed {
                Duration::ZERO
            } else {
                age_of(mark, now)
            }
        };
        self.deletion_mark
            .observe(node.deletion_mark().map(str::to_owned), age, now);
        let ends_at = self.deletion_mark.expires_at(timeout);
        let state = match ends_at {
            None if !node.is_deletion_candidate() => DelayState::NoCandidate,
            _ if node.may_go() => DelayState::Out,
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
fn age_of(mark: &str, now: Moment) -> Duration {
    let set_at = mark.parse().ok().and_then(|second| Timestamp::from_second(second).ok());
    set_at.map_or(Duration::ZERO, |at| age_by_wall_clock(at, now))
}

#[cfg(test)]
mod tests;
