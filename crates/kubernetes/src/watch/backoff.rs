//! The time between an error of a watch, or the end of one that was too short, and the next attempt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::DefaultBackoff;
use tokio::time::Instant;

use super::error::WatchErrorReason;

/// An expired watch starts again without backoff once in this time. A watch that expires more often gets the backoff
/// of other errors.
const EXPIRED_WITHOUT_BACKOFF_INTERVAL: Duration = Duration::from_mins(1);

/// A watch that ends earlier after it was accepted, without an error and without an event, is too short. As in client-go.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);

/// kube's exponential backoff with jitter, except that an expired watch starts again at once: it continues with a list,
/// as usual after an outage, and a change may have waited for that list.
#[derive(Default)]
pub(super) struct WatchBackoff {
    exponential: DefaultBackoff,
    last_restart: Option<Instant>,
}

impl WatchBackoff {
    /// The consumer's state is current: the next delay is short again.
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

/// The delay after a watch that was too short: kube shows no such end, and starts the next watch without any. Clones share it.
#[derive(Clone, Default)]
pub(super) struct ShortWatches(Arc<Mutex<LastWatch>>);

#[derive(Default)]
struct LastWatch {
    /// When it was accepted, if it has shown nothing since.
    accepted_at: Option<Instant>,
    exponential: DefaultBackoff,
}

impl ShortWatches {
    fn last(&self) -> MutexGuard<'_, LastWatch> {
        // No section that holds the mutex can panic halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch was accepted.
    pub(super) fn accepted(&self) {
        self.last().accepted_at = Some(Instant::now());
    }

    /// An event was shown, or an error, which has a backoff of its own. Those of a list between two watches change nothing.
    pub(super) fn showed_something(&self) {
        let mut last = self.last();
        if last.accepted_at.take().is_some() {
            last.exponential.reset();
        }
    }

    /// The delay before the next watch; `None` unless the last one was too short. A second attempt has none.
    pub(super) fn delay(&self) -> Option<Duration> {
        let mut last = self.last();
        let accepted_at = last.accepted_at.take()?;
        if accepted_at.elapsed() < MIN_WATCH_DURATION {
            return last.exponential.next();
        }
        last.exponential.reset();
        None
    }
}
