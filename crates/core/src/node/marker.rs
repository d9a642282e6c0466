//! The marker on a Node: the condition `headgate.dev/OutOfLoadBalancers`, by which other tools wait until the node has left its load
//! balancers.
//!
//! What it says is decided elsewhere: by the leader from what it read of the pools, or by the agent from its answers to probes. When it
//! is written, and when it expires, is up to the writer of Nodes. The condition `headgate.dev/ConnectionsDrained` has the same form; the
//! node's agent decides it from its counts, and it neither expires nor is confirmed.

use std::time::Duration;

use jiff::Timestamp;

use super::object::ConditionObject;
use crate::telemetry::words;

/// The reason of a condition that needs no confirmation: the node has no signal.
pub const MARKER_NO_SIGNAL: &str = "NoSignal";
/// The reason of a condition that is `False` only because no other node serves a Service: its load balancer needs this node until the
/// endpoints have moved.
pub const MARKER_HELD_BACK: &str = "HeldBack";
/// Without a confirmation for so long, the condition becomes `Unknown`.
pub const MARKER_TTL: Duration = Duration::from_mins(3);

/// The policy `headgate-nodes` accepts 2,048.
pub const MAX_MARKER_MESSAGE_BYTES: usize = 2048;

words! {
    /// The status of the condition.
    #[derive(Default)]
    pub enum MarkerStatus {
        /// The node has a signal and has left its load balancers.
        True = "True",
        /// It has not, or it has no signal.
        False = "False",
        /// Nothing has confirmed it for [`MARKER_TTL`], or the status is another text.
        #[default]
        Unknown = "Unknown",
    }
}

impl MarkerStatus {
    /// Reads the value in a Node.
    #[must_use]
    pub fn read(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

/// What the condition is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerCondition {
    /// Whether the node is out.
    pub status: MarkerStatus,
    /// One word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// The condition as a Node shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkerFact {
    /// Whether the node is out.
    pub status: MarkerStatus,
    /// One word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// The condition's `lastTransitionTime`: since when it has the status.
    pub since: Option<Timestamp>,
    /// The condition's `lastHeartbeatTime`: the last confirmation, by its writer's clock.
    pub confirmed_at: Option<Timestamp>,
}

impl MarkerFact {
    /// Reads the condition of this type among those of a Node.
    #[must_use]
    pub fn find(conditions: &[ConditionObject], type_: &str) -> Option<Self> {
        let condition = conditions.iter().find(|condition| condition.type_ == type_)?;
        let message = condition.message.as_deref().unwrap_or_default();
        Some(Self {
            status: MarkerStatus::read(&condition.status),
            reason: condition.reason.clone().unwrap_or_default(),
            message: message[..message.floor_char_boundary(MAX_MARKER_MESSAGE_BYTES)].to_owned(),
            since: condition.last_transition_time.as_ref().and_then(|at| at.parse().ok()),
            confirmed_at: condition.last_heartbeat_time.as_ref().and_then(|at| at.parse().ok()),
        })
    }

    /// Whether it says that the node has left its load balancers.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.status == MarkerStatus::True
    }

    /// Whether it says that the Node has no signal: nothing more is written about it then.
    #[must_use]
    pub fn is_without_signal(&self) -> bool {
        self.status == MarkerStatus::False && self.reason == MARKER_NO_SIGNAL
    }

    /// Whether it says that something is still to end: connections, or what comes before they can.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.status == MarkerStatus::False && self.reason != MARKER_NO_SIGNAL
    }

    /// Whether a tool that waits for the condition would trust it although nothing confirms it any more.
    #[must_use]
    pub fn needs_confirmation(&self) -> bool {
        self.status != MarkerStatus::Unknown && self.reason != MARKER_NO_SIGNAL
    }
}
