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
pub const MARKER_LAST_SERVING: &str = "LastServingNode";
/// Without a confirmation for so long, the condition becomes `Unknown`.
pub const MARKER_TTL: Duration = Duration::from_mins(3);

/// The longest [`MarkerFact::ttl`], whatever a message says.
const MAX_MARKER_TTL: Duration = Duration::from_mins(30);
/// How the message of a condition begins that is confirmed less often, because so many Nodes have one.
const CONFIRMED_AGAIN: &str = "Confirmed again within ";

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

impl MarkerCondition {
    /// The same with the longest time until its next confirmation in the message, where that is longer than usual.
    #[must_use]
    pub fn confirmed_again_within(self, interval: Duration) -> Self {
        let message = format!("{CONFIRMED_AGAIN}{} s. {}", interval.as_secs(), self.message);
        Self { message, ..self }
    }
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

    /// How long a confirmation counts: as `usual`, or twice the time that the message gives until the next one.
    pub fn ttl(&self, usual: Duration) -> Duration {
        let given = self.message.strip_prefix(CONFIRMED_AGAIN);
        let given = given.and_then(|rest| rest.split_once(" s. ")?.0.parse().ok());
        let given = Duration::from_secs(given.unwrap_or_default());
        given.saturating_mul(2).min(MAX_MARKER_TTL).max(usual)
    }

    /// Whether it says that the node has left its load balancers.
    pub fn is_out(&self) -> bool {
        self.status == MarkerStatus::True
    }

    /// Whether it says that the Node has no signal: nothing more is written about it then.
    pub fn is_without_signal(&self) -> bool {
        self.status == MarkerStatus::False && self.reason == MARKER_NO_SIGNAL
    }

    /// Whether it says that something is still to end: connections, or what comes before they can.
    pub fn is_pending(&self) -> bool {
        self.status == MarkerStatus::False && self.reason != MARKER_NO_SIGNAL
    }

    /// Whether a tool that waits for the condition would trust it although nothing confirms it any more.
    pub fn needs_confirmation(&self) -> bool {
        self.status != MarkerStatus::Unknown && self.reason != MARKER_NO_SIGNAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_reason_say_what_is_to_come() {
        for (status, reason, is_out, is_without_signal, is_pending, needs_confirmation) in [
            ("True", "AdminStateDown", true, false, false, true),
            ("True", MARKER_NO_SIGNAL, true, false, false, false),
            ("False", "InService", false, false, true, true),
            ("False", MARKER_NO_SIGNAL, false, true, false, false),
            ("Unknown", "Expired", false, false, false, false),
            ("odd", MARKER_NO_SIGNAL, false, false, false, false),
        ] {
            let condition = |type_: &str, status: &str| ConditionObject {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                ..ConditionObject::default()
            };
            let conditions = [condition("Ready", "True"), condition("M", status)];
            let fact = MarkerFact::find(&conditions, "M").unwrap();
            let found = (fact.is_out(), fact.is_without_signal(), fact.is_pending());
            assert_eq!(found, (is_out, is_without_signal, is_pending), "{status} {reason}");
            assert_eq!(fact.needs_confirmation(), needs_confirmation, "{status} {reason}");
            assert_eq!(MarkerFact::find(&conditions[..1], "M"), None);
        }
    }

    #[test]
    fn a_confirmation_counts_longer_where_the_message_says_so() {
        let given = |seconds| {
            let condition = MarkerCondition {
                status: MarkerStatus::True,
                reason: "AdminStateDown",
                message: "m".to_owned(),
            };
            condition.confirmed_again_within(Duration::from_secs(seconds)).message
        };
        for (message, seconds) in [
            ("m".to_owned(), 180),
            ("Confirmed again within x s. m".to_owned(), 180),
            (given(60), 180),
            (given(500), 1000),
            (given(u64::MAX), 1800),
        ] {
            let fact = MarkerFact {
                message,
                ..MarkerFact::default()
            };
            assert_eq!(fact.ttl(MARKER_TTL).as_secs(), seconds, "{}", fact.message);
        }
    }
}
