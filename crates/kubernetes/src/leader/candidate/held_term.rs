//! A term as its holder knows it: its deadline, the next renewal, and the Lease as written or read last.
//!
//! Invariant: only a successful write moves the deadline, and it counts from the start of that write.

use std::time::Duration;

use headgate_core::clock::Moment;
use headgate_core::throttle::ThrottledUntil;
use tokio::time::Instant;

use super::super::election_record::ElectionRecord;
use super::super::successor_request::InabilityReason;
use super::super::timing::{RENEW_DEADLINE, RETRY_PERIOD, SUCCESSFUL_TERM_DURATION, signalled_term_min_duration};
use super::{Inputs, TaskTarget, TermTarget};

/// Why a term ends although its deadline has not passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// The process stops, or the own node has a signal.
    Requested,
    /// The work cannot be done here, and another candidate has volunteered.
    GaveUp(InabilityReason),
}

/// A term that this candidate holds.
#[derive(Clone, Debug)]
pub(super) struct HeldTerm {
    pub(super) number: i32,
    /// The start of the write that acquired the Lease.
    began: Instant,
    /// The start of the last attempt to renew.
    pub(super) attempt: Moment,
    /// The start of the last successful write.
    renewed_at: Moment,
    /// The end of the term, unless a renewal prolongs it.
    pub(super) until: Instant,
    pub(super) renew_at: Instant,
    /// A signalled term: no handover before this.
    no_handover_before: Instant,
    /// The Lease as this candidate wrote it, or read it as its own, last.
    pub(super) record: ElectionRecord,
    /// Whether that is its latest version, as far as is known.
    pub(super) is_record_current: bool,
    /// A handover is requested, and the work must end by then.
    pub(super) stop_work_by: Option<Instant>,
    /// Why the handover is requested.
    pub(super) handover: Option<Handover>,
    /// Until when ARM throttles requests, as the leader before left it.
    inherited_throttle: ThrottledUntil,
}

impl HeldTerm {
    /// A term that was acquired by a write that began at `began` and wrote `record`.
    pub(super) fn new(number: i32, began: Moment, record: ElectionRecord) -> Self {
        let mut held = Self {
            number,
            began: began.mono,
            attempt: began,
            renewed_at: began,
            until: began.mono,
            renew_at: began.mono,
            no_handover_before: began.mono,
            record: ElectionRecord::default(),
            is_record_current: false,
            stop_work_by: None,
            handover: None,
            inherited_throttle: record.throttle.until(began),
        };
        held.renewed(record);
        held
    }

    /// The same as a signalled term, after this many others of this candidate.
    pub(super) fn signalled(self, signalled_terms: u32) -> Self {
        let no_handover_before = self.began + signalled_term_min_duration(signalled_terms);
        Self {
            no_handover_before,
            ..self
        }
    }

    /// The last attempt has succeeded.
    pub(super) fn renewed(&mut self, record: ElectionRecord) {
        self.renewed_at = self.attempt;
        self.until = self.attempt.mono + RENEW_DEADLINE;
        self.renew_at = self.attempt.mono + RETRY_PERIOD;
        self.record = record;
        self.is_record_current = true;
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        now - self.began
    }

    /// Failed terms one after another before this one; none once it has lasted for some time.
    pub(super) fn failed_terms_before(&self, now: Instant) -> u32 {
        if self.age(now) >= SUCCESSFUL_TERM_DURATION {
            0
        } else {
            self.record.failed_terms
        }
    }

    /// Why the Lease is to be given to another candidate, if it is: the process stops, or the own node has a signal and
    /// another candidate's has none, or the work cannot be done here and another candidate has volunteered.
    pub(super) fn due_handover(&self, inputs: Inputs) -> Option<Handover> {
        let has_healthy_peer = inputs.fleet.is_some_and(|fleet| fleet.has_healthy_peer);
        let is_due = inputs.now.mono >= self.no_handover_before;
        if inputs.is_stopping || (inputs.is_signalled && is_due && has_healthy_peer) {
            return Some(Handover::Requested);
        }
        let has_successor = self.record.successor.is_some() && self.record.unable.is_some();
        let unable = inputs.unable.filter(|_| has_successor)?;
        Some(Handover::GaveUp(unable.reason))
    }

    pub(super) fn task_target(&self) -> TaskTarget {
        TaskTarget::Run(TermTarget {
            number: self.number,
            until: self.until,
            renewed: self.renewed_at,
            handover: self.handover,
            throttle: self.inherited_throttle,
        })
    }

    /// The record that releases the Lease at the end of a term that has not failed.
    pub(super) fn released(&self, inputs: Inputs) -> ElectionRecord {
        let now = inputs.now;
        let released = self.record.released(self.failed_terms_before(now.mono), now.wall);
        let released = released.reported(None, inputs.throttle, now);
        match self.handover {
            // The released record has no holder.
            Some(Handover::GaveUp(reason)) => released.gave_up(&self.record.lease.holder, reason, now.wall),
            _ => released,
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::clock::Clock;
    use jiff::Timestamp;

    use super::super::super::fleet::Fleet;
    use super::super::super::successor_request::Inability;
    use super::*;

    /// After so many seconds of a signalled term.
    fn handover(
        second: u64,
        change: impl FnOnce(&mut Inputs),
        record: impl FnOnce(&mut ElectionRecord),
    ) -> Option<Handover> {
        let began = Clock::System.now();
        let mut held = HeldTerm::new(1, began, ElectionRecord::default()).signalled(0);
        record(&mut held.record);
        let mut inputs = Inputs {
            now: Moment {
                mono: began.mono + Duration::from_secs(second),
                ..began
            },
            is_stopping: false,
            is_signalled: false,
            fleet: None,
            unable: None,
            throttle: ThrottledUntil::default(),
        };
        change(&mut inputs);
        held.due_handover(inputs)
    }

    #[test]
    fn a_term_is_handed_over_for_a_stop_or_for_a_signal_where_another_has_none() {
        for (second, is_stopping, is_signalled, has_healthy_peer, is_due) in [
            (0, true, false, false, true),
            (60, false, true, true, true),
            (59, false, true, true, false),
            (60, false, true, false, false),
            (60, false, false, true, false),
            (0, false, false, false, false),
        ] {
            let change = |inputs: &mut Inputs| {
                (inputs.is_stopping, inputs.is_signalled) = (is_stopping, is_signalled);
                inputs.fleet = Some(Fleet {
                    candidates: 3,
                    has_healthy_peer,
                });
            };
            let found = handover(second, change, |_| {});
            let expected = is_due.then_some(Handover::Requested);
            let what = format!("{second} {is_stopping} {is_signalled} {has_healthy_peer}");
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn failed_terms_count_no_more_after_a_successful_minute() {
        let began = Clock::System.now();
        let mut held = HeldTerm::new(1, began, ElectionRecord::default());
        held.record.failed_terms = 3;
        for (second, failed_terms) in [(0, 3), (59, 3), (60, 0)] {
            let now = began.mono + Duration::from_secs(second);
            assert_eq!(held.failed_terms_before(now), failed_terms, "{second}");
        }
    }

    #[test]
    fn a_term_without_work_is_handed_over_once_another_has_volunteered() {
        let unable = Some(Inability {
            reason: InabilityReason::Lists,
            since: Timestamp::UNIX_EPOCH,
        });
        for (is_unable, is_reported, has_successor, is_due) in [
            (true, true, true, true),
            (false, true, true, false),
            (true, false, true, false),
            (true, true, false, false),
        ] {
            let change = |inputs: &mut Inputs| inputs.unable = unable.filter(|_| is_unable);
            let record = |record: &mut ElectionRecord| {
                record.unable = unable.filter(|_| is_reported);
                record.successor = has_successor.then(|| "other".to_owned());
            };
            let expected = is_due.then_some(Handover::GaveUp(InabilityReason::Lists));
            let found = handover(0, change, record);
            assert_eq!(found, expected, "{is_unable} {is_reported} {has_successor}");
        }
    }
}
