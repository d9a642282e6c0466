//! The release of the Lease. After a failure the Lease is read, and released once more if it still shows this candidate's term.

use std::time::Duration;

use headgate_core::clock::Moment;
use tokio::time::Instant;

use super::super::election_record::ElectionRecord;
use super::super::timing::{REQUEST_TIMEOUT, RETRY_PERIOD};
use super::{Action, Event};

/// A release that is in progress, or begins once the work has ended.
#[derive(Clone, Debug)]
pub(super) struct Release {
    /// The Lease without a holder, as this candidate writes it.
    record: ElectionRecord,
    /// Whether that follows the latest version, as far as is known; the Lease is read before otherwise.
    is_current: bool,
    /// No request is sent before this.
    not_before: Instant,
    /// A request has failed.
    has_failed: bool,
    /// How long to abstain after that.
    pub(super) backoff: Duration,
}

impl Release {
    pub(super) fn new(record: ElectionRecord, is_current: bool, now: Instant) -> Self {
        Self {
            record,
            is_current,
            not_before: now,
            has_failed: false,
            backoff: Duration::ZERO,
        }
    }

    /// The release after the response to its last request; `None` once the Lease is released, or another's, or is left to expire.
    pub(super) fn after(mut self, event: Event, identity: &str, now: Moment) -> Option<Self> {
        match event {
            Event::Woke => {}
            Event::Read(Some(found))
                if found.lease.holder == identity && found.lease.transitions == self.record.lease.transitions =>
            {
                self.record.lease = found.released(found.failed_terms, now.wall).lease;
                (self.is_current, self.not_before) = (true, now.mono);
            }
            Event::Conflict | Event::NoResponse if !self.has_failed => {
                (self.has_failed, self.is_current) = (true, false);
                if event == Event::Conflict {
                    // Perhaps only an annotation was changed.
                    self.not_before = now.mono;
                }
            }
            _ => return None,
        }
        Some(self)
    }

    /// What to do next: the write, the read before it, or the wait before either.
    pub(super) fn next_action(&mut self, now: Instant) -> Action {
        if now < self.not_before {
            return Action::Wait(Some(self.not_before));
        }
        self.not_before = now + RETRY_PERIOD;
        if self.is_current {
            Action::Write(self.record.clone(), now + REQUEST_TIMEOUT)
        } else {
            Action::Read(now + REQUEST_TIMEOUT)
        }
    }
}
