//! The time between an error of a watch and the next attempt.

use std::time::Duration;

use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::DefaultBackoff;
use tokio::time::Instant;

use super::error::WatchErrorReason;

/// An expired watch starts again without backoff once in this time. A watch that expires more often gets the backoff
/// of other errors.
const EXPIRED_WITHOUT_BACKOFF_INTERVAL: Duration = Duration::from_mins(1);

/// kube's exponential backoff with jitter, except that an expired watch starts again at once: it continues with a list,
/// as usual after an outage, and a change may have waited for that list.
#[derive(Default)]
pub(super) struct WatchBackoff {
    exponential: DefaultBackoff,
    last_restart: Option<Instant>,
}

impl WatchBackoff {
    /// The API server has answered: the next delay is short again.
    pub(super) fn reset(&mut self) {
        self.exponential.reset();
    }

    /// The delay after an error.
    pub(super) fn after(&mut self, reason: WatchErrorReason) -> Duration {
        let is_due = |last: Instant| last.elapsed() > EXPIRED_WITHOUT_BACKOFF_INTERVAL;
        if reason == WatchErrorReason::Expired && self.last_restart.is_none_or(is_due) {
            self.last_restart = Some(Instant::now());
            return Duration::ZERO;
        }
        // kube's backoff has no last element.
        self.exponential.next().unwrap_or_default()
    }
}
