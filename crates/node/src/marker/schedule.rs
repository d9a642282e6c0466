//! When the condition is written: a change of the status at once, everything else with the next confirmation. Pure.
//!
//! What is due follows from what the condition should say, what the Node shows, and the writer's last attempt. A write that failed, or that
//! someone else has overwritten, leaves nothing to repair: the Node shows another status than it should.

use std::time::Duration;

use tokio::time::Instant;

use super::{MARKER_NO_SIGNAL, MARKER_TTL, MarkerCondition, MarkerFact, MarkerStatus};

/// While a node is out. Three confirmations before the agent makes the condition `Unknown`.
const CONFIRM_INTERVAL: Duration = Duration::from_mins(1);
const _: () = assert!(CONFIRM_INTERVAL.as_secs() * 3 <= MARKER_TTL.as_secs());
/// While a node with a signal is not out: each confirmation says what is missing now.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);
/// How long the watch may take to show a write.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);
/// After a write that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// What the condition of a Node should say, and what the Node shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerState {
    /// The UID of the Node.
    pub uid: String,
    /// What the condition should say.
    pub wanted: MarkerCondition,
    /// What the Node shows.
    pub shown: Option<MarkerFact>,
}

/// A writer's last attempt to write the condition of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenMarker {
    uid: String,
    /// `None` if it failed.
    status: Option<MarkerStatus>,
    reason: &'static str,
    at: Instant,
}

/// What is to be written about a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueMarker {
    /// Another status.
    Transition,
    /// The end of the signal, with the same status.
    Ended,
    /// The same status again, with the present reason and message.
    Confirmation,
    /// Nothing until then; `None` for nothing at all.
    NotBefore(Option<Instant>),
}

impl WrittenMarker {
    /// Whether the attempt may still decide when the next one is due.
    #[must_use]
    pub fn is_recent(&self, now: Instant) -> bool {
        now < self.at + CONFIRM_INTERVAL
    }
}

impl MarkerState {
    /// A condition that differs from what the Node shows, or not.
    #[must_use]
    pub fn new(uid: String, wanted: MarkerCondition, shown: Option<MarkerFact>) -> Self {
        Self { uid, wanted, shown }
    }

    /// The condition of a node whose signal has ended. It is written once, and not confirmed.
    #[must_use]
    pub fn without_signal(uid: String, shown: Option<MarkerFact>) -> Self {
        let wanted = MarkerCondition {
            status: MarkerStatus::False,
            reason: MARKER_NO_SIGNAL,
            message: "The node has no signal.".to_owned(),
        };
        Self::new(uid, wanted, shown)
    }

    /// The record of an attempt that has just ended.
    #[must_use]
    pub fn attempted(&self, is_written: bool, now: Instant) -> WrittenMarker {
        WrittenMarker {
            uid: self.uid.clone(),
            status: is_written.then_some(self.wanted.status),
            reason: self.wanted.reason,
            at: now,
        }
    }

    /// What is due.
    #[must_use]
    pub fn due(&self, written: Option<&WrittenMarker>, now: Instant) -> DueMarker {
        let written = written.filter(|written| written.uid == self.uid);
        if let Some(WrittenMarker { status: None, at, .. }) = written
            && now < *at + RETRY_INTERVAL
        {
            return DueMarker::NotBefore(Some(*at + RETRY_INTERVAL));
        }
        let written = written.and_then(|written| Some((written.status?, written.reason, written.at)));
        // What the watch may not show yet.
        let echo = written.filter(|(.., at)| now < *at + ECHO_TIMEOUT);
        let (status, reason) = match (echo, &self.shown) {
            (Some((status, reason, _)), _) => (Some(status), reason),
            (None, Some(shown)) => (Some(shown.status), shown.reason.as_str()),
            (None, None) => (None, ""),
        };
        if status != Some(self.wanted.status) {
            return DueMarker::Transition;
        }
        let echo_ends = echo.map(|(.., at)| at + ECHO_TIMEOUT);
        if self.wanted.reason == MARKER_NO_SIGNAL {
            return if reason == MARKER_NO_SIGNAL {
                // What the watch shows then decides.
                DueMarker::NotBefore(echo_ends)
            } else {
                DueMarker::Ended
            };
        }
        let interval = match self.wanted.status {
            MarkerStatus::True => CONFIRM_INTERVAL,
            MarkerStatus::False | MarkerStatus::Unknown => PROGRESS_INTERVAL,
        };
        match written {
            Some((.., at)) if now < at + interval => DueMarker::NotBefore(echo_ends.or(Some(at + interval))),
            _ => DueMarker::Confirmation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const OUT: (MarkerStatus, &str) = (MarkerStatus::True, "AdminStateDown");
    const NOT_DOWN: (MarkerStatus, &str) = (MarkerStatus::False, "NotDown");
    const ENDED: (MarkerStatus, &str) = (MarkerStatus::False, MARKER_NO_SIGNAL);

    fn state(wanted: (MarkerStatus, &'static str), shown: Option<(&str, &str)>) -> MarkerState {
        let wanted = MarkerCondition {
            status: wanted.0,
            reason: wanted.1,
            message: "m".to_owned(),
        };
        let shown = shown.map(|(status, reason)| MarkerFact {
            status: MarkerStatus::read(status),
            reason: reason.to_owned(),
            ..MarkerFact::default()
        });
        MarkerState::new("u".to_owned(), wanted, shown)
    }

    #[test]
    fn due_writes() {
        use DueMarker::{Confirmation, Ended, NotBefore, Transition};
        let now = Instant::now() + 3600 * SECOND;
        let after = |wanted, seconds: u32| Some(state(wanted, None).attempted(true, now - seconds * SECOND));
        let failed = |seconds: u32| Some(state(OUT, None).attempted(false, now - seconds * SECOND));
        let at = |seconds: u32| NotBefore(Some(now + seconds * SECOND));
        let (out, not_down) = (Some(("True", "AdminStateDown")), Some(("False", "NotDown")));
        let (ended, unknown) = (Some(("False", MARKER_NO_SIGNAL)), Some(("Unknown", "NotConfirmed")));
        for (what, wanted, shown, written, expected) in [
            ("first signal", NOT_DOWN, None, None, Transition),
            ("not shown yet", NOT_DOWN, None, after(NOT_DOWN, 1), at(4)),
            ("lost", NOT_DOWN, None, after(NOT_DOWN, 5), Transition),
            ("out", OUT, not_down, after(NOT_DOWN, 1), Transition),
            ("out, not shown yet", OUT, not_down, after(OUT, 1), at(4)),
            ("confirmed lately", OUT, out, after(OUT, 20), at(40)),
            ("to be confirmed", OUT, out, after(OUT, 60), Confirmation),
            ("a new leader", OUT, out, None, Confirmation),
            (
                "another message waits",
                NOT_DOWN,
                Some(("False", "NotRead")),
                after(NOT_DOWN, 20),
                at(10),
            ),
            (
                "progress",
                NOT_DOWN,
                Some(("False", "NotRead")),
                after(NOT_DOWN, 30),
                Confirmation,
            ),
            ("the agent made it unknown", OUT, unknown, after(OUT, 30), Transition),
            ("someone else wrote it", NOT_DOWN, out, after(NOT_DOWN, 9), Transition),
            ("the signal ends", ENDED, out, after(OUT, 1), Transition),
            ("it ends before the node was out", ENDED, not_down, None, Ended),
            ("ended", ENDED, ended, None, NotBefore(None)),
            ("ended, not shown yet", ENDED, out, after(ENDED, 2), at(3)),
            ("a failed write waits", OUT, None, failed(1), at(1)),
            ("and is repeated", OUT, None, failed(2), Transition),
        ] {
            assert_eq!(state(wanted, shown).due(written.as_ref(), now), expected, "{what}");
        }
        let other = MarkerState {
            uid: "v".to_owned(),
            ..state(OUT, None)
        };
        let other = other.attempted(true, now);
        assert_eq!(
            state(OUT, None).due(Some(&other), now),
            Transition,
            "another Node of the name"
        );
    }
}
