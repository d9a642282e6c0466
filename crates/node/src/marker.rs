//! The marker on a Node: the condition `headgate.dev/OutOfLoadBalancers`, by which other tools wait until the node has left its load
//! balancers.
//!
//! [`write_marker`] is the one way to write it: a strategic merge patch of the status that names the Node's UID and no other field.
//! What it says is decided elsewhere: by the leader from what it read of the pools, or by the agent from its answers to probes.
//! [`MarkerState::due`] says when it is written.
//!
//! [`expire_marker`] is the agent's part beside a leader: a condition that no leader has confirmed for three minutes becomes `Unknown`,
//! because the leader may be dead and the pools may have changed. Time counts on the agent's own clock from the observation of the last
//! confirmation; only the first observation of a process takes the age from the wall clock, so that restarts do not prolong it. The
//! write is made from a fresh read and fails if the Node has changed since.

use std::time::Duration;

use headgate_clock::{Clock, Moment, Observed, age_by_wall_clock, whole_seconds};
use headgate_kubernetes::Decoded;
use headgate_telemetry::{Reconcile, ReconcileSpan, Reconciled, words};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::names::MARKER_CONDITION;
use super::object::{ConditionObject, NodeObject};
use super::report::NodeReport;

mod schedule;

pub use schedule::{DueMarker, MarkerState, WrittenMarker};

/// The reason of a condition that needs no confirmation: the node has no signal.
pub const MARKER_NO_SIGNAL: &str = "NoSignal";
/// Without a confirmation for so long, the condition becomes `Unknown`.
pub const MARKER_TTL: Duration = Duration::from_mins(3);

/// For one read and one write.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// After an attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The policy `headgate-nodes` accepts 2,048.
const MAX_MESSAGE_BYTES: usize = 2048;

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
    /// Reads the condition, if this is it.
    #[must_use]
    pub fn read(condition: &ConditionObject) -> Option<Self> {
        let message = condition.message.as_deref().unwrap_or_default();
        (condition.type_ == MARKER_CONDITION).then(|| Self {
            status: MarkerStatus::read(&condition.status),
            reason: condition.reason.clone().unwrap_or_default(),
            message: message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned(),
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

    /// Whether a tool that waits for the condition would trust it although nothing confirms it any more.
    fn needs_confirmation(&self) -> bool {
        self.status != MarkerStatus::Unknown && self.reason != MARKER_NO_SIGNAL
    }
}

/// Writes the condition of the Node `name`. `is_transition` says whether the status changes. The write fails with 409 if the Node has
/// another UID or, if one is given, another resource version.
///
/// # Errors
/// As from the API server.
pub async fn write_marker(
    nodes: &Api<Decoded<Node>>,
    name: &str,
    identity: NodeIdentity<'_>,
    condition: &MarkerCondition,
    is_transition: bool,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let now = whole_seconds(now);
    let MarkerCondition {
        status,
        reason,
        message,
    } = condition;
    let message = &message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)];
    let mut condition = json!({"type": MARKER_CONDITION, "status": status.as_str(), "reason": reason, "message": message,
        "lastHeartbeatTime": now});
    if is_transition {
        condition["lastTransitionTime"] = json!(now);
    }
    let mut metadata = json!({"uid": identity.uid});
    if let Some(version) = identity.resource_version {
        metadata["resourceVersion"] = json!(version);
    }
    // Conditions are merged by their type, so those of others stay.
    let patch = Patch::Strategic(json!({"metadata": metadata, "status": {"conditions": [condition]}}));
    let written = nodes.patch_status(name, &PatchParams::default(), &patch).await;
    written.map(drop)
}

/// The Node that a write is for.
#[derive(Clone, Copy, Debug)]
pub struct NodeIdentity<'a> {
    /// The Node's UID.
    pub uid: &'a str,
    /// The version that the write was made from; `None` accepts any.
    pub resource_version: Option<&'a str>,
}

/// Adopts what the Node shows; returns when it expires.
fn observe(
    observed: &mut Observed<MarkerFact>,
    shown: Option<MarkerFact>,
    ttl: Duration,
    now: Moment,
) -> Option<Instant> {
    // Without a readable time, it counts as confirmed now.
    let age = |shown: &MarkerFact| {
        shown
            .confirmed_at
            .map_or(Duration::ZERO, |at| age_by_wall_clock(at, now))
    };
    observed.observe(shown.filter(MarkerFact::needs_confirmation), age, now);
    observed.expires_at(ttl)
}

/// Makes the condition of the Node `name` `Unknown` when nothing has confirmed it for `ttl`. Never ends by itself.
pub async fn expire_marker(
    client: Client,
    name: String,
    ttl: Duration,
    mut reports: watch::Receiver<NodeReport>,
    clock: Clock,
) {
    let mut observed = Observed::default();
    let mut retry_at = Instant::now();
    loop {
        let shown = reports
            .borrow_and_update()
            .node
            .as_ref()
            .and_then(|node| node.marker.clone());
        let expires_at = observe(&mut observed, shown, ttl, clock.now());
        let expires_at = expires_at.map(|at| at.max(retry_at));
        tokio::select! {
            changed = reports.changed() => if changed.is_err() {
                // The watch of the Node has ended: the process stops, and aborts this task.
                return std::future::pending().await;
            },
            () = sleep_until(expires_at.unwrap_or_else(Instant::now)), if expires_at.is_some() => {
                if let Some(shown) = observed.value() {
                    let span = ReconcileSpan::start(Reconciled::Marker, || Reconcile {
                        node: Some(&name),
                        ..Reconcile::default()
                    });
                    let attempt = timeout(ATTEMPT_TIMEOUT, span.run(expire(&client, &name, shown, ttl, &clock)));
                    let error = match attempt.await {
                        Ok(Ok(())) => None,
                        Ok(Err(error)) => Some(headgate_telemetry::error_chain(&error)),
                        Err(_) => Some(format!("no answer within {} s", ATTEMPT_TIMEOUT.as_secs())),
                    };
                    if let Some(error) = error {
                        span.fail("NotWritten", &error);
                        tracing::warn!(node = name, error, retry_in = ?RETRY_INTERVAL, "unconfirmed marker not made unknown");
                    }
                }
                retry_at = Instant::now() + RETRY_INTERVAL;
            }
        }
    }
}

async fn expire(
    client: &Client,
    name: &str,
    shown: &MarkerFact,
    ttl: Duration,
    clock: &Clock,
) -> Result<(), kube::Error> {
    let node = Api::<Decoded<NodeObject>>::all(client.clone()).get_opt(name).await?;
    let Some(node) = node.map(Decoded::into_object).transpose()? else {
        return Ok(());
    };
    if node.status.conditions.iter().find_map(MarkerFact::read).as_ref() != Some(shown) {
        // Confirmed meanwhile; the watch will show it.
        return Ok(());
    }
    let identity = NodeIdentity {
        uid: node.metadata.uid.as_deref().unwrap_or_default(),
        resource_version: node.metadata.resource_version.as_deref(),
    };
    let condition = MarkerCondition {
        status: MarkerStatus::Unknown,
        reason: "NotConfirmed",
        message: format!("No leader has confirmed this condition for {} s.", ttl.as_secs()),
    };
    let nodes = Api::<Decoded<Node>>::all(client.clone());
    write_marker(&nodes, name, identity, &condition, true, clock.now().wall).await
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fact(status: &str, reason: &str, confirmed_at: &str) -> MarkerFact {
        let condition = json!({"type": MARKER_CONDITION, "status": status, "reason": reason, "message": "m",
            "lastHeartbeatTime": confirmed_at});
        MarkerFact::read(&serde_json::from_value(condition).unwrap()).unwrap()
    }

    /// When a condition expires that a Node shows.
    #[derive(Default)]
    struct Expiry(Observed<MarkerFact>);

    impl Expiry {
        fn observe(&mut self, shown: Option<MarkerFact>, ttl: Duration, now: Moment) -> Option<Instant> {
            observe(&mut self.0, shown, ttl, now)
        }
    }

    #[test]
    fn condition_expires_by_the_own_clock_and_only_while_it_needs_a_confirmation() {
        let start = Clock::System.now();
        let after = |seconds: u32| Moment {
            wall: start.wall + seconds * SECOND,
            mono: start.mono + seconds * SECOND,
        };
        let first = fact("True", "AdminStateDown", &after(0).wall.to_string());
        let mut expiry = Expiry::default();
        assert_eq!(expiry.observe(None, MARKER_TTL, after(0)), None);
        assert_eq!(
            expiry.observe(Some(first.clone()), MARKER_TTL, after(1)),
            Some(after(180).mono),
            "the first observation counts from the confirmation"
        );
        assert_eq!(
            expiry.observe(Some(first), MARKER_TTL, after(100)),
            Some(after(180).mono),
            "another report of the same condition prolongs nothing"
        );
        // A writer whose clock is wrong by an hour.
        let second = fact("True", "AdminStateDown", "2020-01-01T00:00:00Z");
        assert_eq!(
            expiry.observe(Some(second), MARKER_TTL, after(110)),
            Some(after(290).mono)
        );
        for settled in [
            fact("False", MARKER_NO_SIGNAL, "x"),
            fact("Unknown", "NotConfirmed", "x"),
        ] {
            assert_eq!(expiry.observe(Some(settled), MARKER_TTL, after(120)), None);
        }
        let unproved = fact("False", "NotDown", "x");
        assert_eq!(
            expiry.observe(Some(unproved), MARKER_TTL, after(130)),
            Some(after(310).mono)
        );
    }

    #[test]
    fn restart_does_not_prolong_an_old_condition() {
        let now = Clock::System.now();
        for (age, left) in [(0, 180), (100, 80), (180, 0), (9999, 0), (-50, 180)] {
            let at = now.wall.checked_sub(SignedDuration::from_secs(age)).unwrap();
            let shown = fact("True", "AdminStateDown", &at.to_string());
            let expires_at = Expiry::default().observe(Some(shown), MARKER_TTL, now).unwrap();
            assert_eq!(expires_at - now.mono, left * SECOND, "{age}");
        }
        let unreadable = fact("True", "AdminStateDown", "yesterday");
        let expires_at = Expiry::default().observe(Some(unreadable), MARKER_TTL, now).unwrap();
        assert_eq!(expires_at - now.mono, MARKER_TTL);
    }
}
