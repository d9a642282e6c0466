//! When the work of a term that is handed over ends: once every change is sent, or none may be any more
//! ([`HANDOVER_WRITE_WINDOW`]); but what was sent is answered first ([`HANDOVER_ANSWER_TIMEOUT`]).

use std::time::Duration;

use tokio::time::Instant;

use crate::pool::{HANDOVER_ANSWER_TIMEOUT, HANDOVER_WRITE_WINDOW};

/// How long a signal of the own Node is waited for, which is a common reason for a handover: the election learns of it from the agent,
/// a moment before the store of all Nodes shows it. Within [`HANDOVER_WRITE_WINDOW`].
const OWN_SIGNAL_TIMEOUT: Duration = Duration::from_millis(500);

/// The end of a term that is handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handover {
    pub(super) requested: Instant,
}

/// How far the work has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// A write is on its way.
    pub(super) is_writing: bool,
    /// ARM has accepted every change that is due by the signals that are known.
    pub(super) is_all_sent: bool,
    /// A signal of the own Node is known, and counts.
    pub(super) has_own_signal: bool,
}

impl Handover {
    /// Whether the work ends now.
    pub(super) fn is_over(self, progress: Progress, now: Instant) -> bool {
        let elapsed = now - self.requested;
        let is_answered = !progress.is_writing || elapsed >= HANDOVER_WRITE_WINDOW + HANDOVER_ANSWER_TIMEOUT;
        let is_complete = progress.has_own_signal || elapsed >= OWN_SIGNAL_TIMEOUT;
        is_answered && (elapsed >= HANDOVER_WRITE_WINDOW || (progress.is_all_sent && is_complete))
    }

    /// When time alone may end the work next.
    pub(super) fn next_at(self, progress: Progress, now: Instant) -> Instant {
        let after = if progress.is_writing {
            HANDOVER_WRITE_WINDOW + HANDOVER_ANSWER_TIMEOUT
        } else if now - self.requested < OWN_SIGNAL_TIMEOUT {
            OWN_SIGNAL_TIMEOUT
        } else {
            HANDOVER_WRITE_WINDOW
        };
        self.requested + after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handover_ends_once_all_is_sent_and_answered_or_the_time_for_it_is_over() {
        let requested = Instant::now();
        let handover = Handover { requested };
        for (millis, is_writing, is_all_sent, has_own_signal, is_over, next) in [
            (0, false, true, true, true, 500),
            (0, false, true, false, false, 500),
            (499, false, true, false, false, 500),
            (500, false, true, false, true, 900),
            (500, false, false, true, false, 900),
            (899, false, false, false, false, 900),
            (900, false, false, false, true, 900),
            (0, true, true, true, false, 1_900),
            (1_899, true, false, true, false, 1_900),
            (1_900, true, true, true, true, 1_900),
        ] {
            let now = requested + Duration::from_millis(millis);
            let progress = Progress {
                is_writing,
                is_all_sent,
                has_own_signal,
            };
            assert_eq!(
                handover.is_over(progress, now),
                is_over,
                "{progress:?} after {millis} ms"
            );
            let next_at = requested + Duration::from_millis(next);
            assert_eq!(
                handover.next_at(progress, now),
                next_at,
                "{progress:?} after {millis} ms"
            );
        }
    }
}
