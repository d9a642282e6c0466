//! One who leads: renewing, giving the Lease over, and losing it.
//!
//! Invariants: a term ends at its deadline at the latest, which only an answered write moves; what is given back
//! is what we wrote or read as ours, so that nobody else's Lease is touched; work that fails costs this
//! instance a rest that grows, and the next leader too, once it has failed there as well.

use std::time::Duration;

use headgate_clock::Moment;
use tokio::time::Instant;

use super::candidate::{Action, Candidate, Circumstances, Duty, Event, Phase, WIND_UP};
use super::record::Record;
use super::timing::Timing;

/// The longest rest after work that failed.
const LONGEST_REST: Duration = Duration::from_mins(10);
/// Who took over with a signal, since nobody else stood, keeps the Lease this long before giving it over, and twice as
/// long the next time, if nobody has stood in between: each time costs a gap.
const STAND_IN: Duration = Duration::from_mins(1);
const LONGEST_STAND_IN: Duration = Duration::from_mins(16);
/// A term that lasts this long has not failed, whatever becomes of it.
const STEADY: Duration = Duration::from_mins(1);

/// A term as its holder sees it.
#[derive(Clone, Debug)]
pub(super) struct Leading {
    number: i32,
    signalled: bool,
    began: Instant,
    /// Not to be given over sooner because of a signal.
    stands_in_until: Instant,
    /// The start of the last attempt to write.
    attempt: Instant,
    until: Instant,
    renew_at: Instant,
    /// The Lease as we last wrote it, or read it as ours.
    record: Record,
    /// Whether that is its latest version, as far as we know.
    sure: bool,
    leave_by: Option<Instant>,
}

impl Leading {
    /// One whose winning write began then.
    pub(super) fn candidate(number: i32, signalled: bool, began: Instant) -> Self {
        Self {
            number,
            signalled,
            began,
            stands_in_until: began,
            attempt: began,
            until: began,
            renew_at: began,
            record: Record::default(),
            sure: false,
            leave_by: None,
        }
    }

    /// The last attempt is known to have succeeded.
    pub(super) fn written(&mut self, record: Record, timing: &Timing) {
        self.until = self.attempt + timing.renew_deadline();
        self.renew_at = self.attempt + timing.retry_period();
        self.record = record;
        self.sure = true;
    }

    pub(super) fn duty(&self) -> Duty {
        Duty::Lead {
            number: self.number,
            until: self.until,
            leaving: self.leave_by.is_some(),
        }
    }

    pub(super) fn is_over(&self, now: Moment) -> bool {
        now.mono >= self.until
    }

    fn is_steady(&self, now: Moment) -> bool {
        now.mono - self.began >= STEADY
    }

    /// Whether the own node has a signal and somebody without one would take over.
    fn hands_over(&self, here: Circumstances, now: Moment) -> bool {
        here.signalled && now.mono >= self.stands_in_until && here.fleet.is_some_and(|fleet| fleet.has_healthy_peer)
    }
}

impl Candidate {
    /// The term was won; with a signal it is so since nobody else stood.
    pub(super) fn won(&mut self, leading: &mut Leading, record: Record) {
        leading.written(record, &self.timing);
        if leading.signalled {
            let doubled = STAND_IN.saturating_mul(2_u32.saturating_pow(self.stood_in));
            leading.stands_in_until = leading.began + doubled.min(LONGEST_STAND_IN);
            self.stood_in = self.stood_in.saturating_add(1);
        } else {
            self.stood_in = 0;
        }
    }

    /// Goes on leading, or stops.
    pub(super) fn lead(
        &mut self,
        mut leading: Leading,
        event: Event,
        here: Circumstances,
        now: Moment,
    ) -> (Phase, Action) {
        if event == Event::Lapsed || leading.is_over(now) {
            return self.lost(event == Event::WorkEnded, here, now);
        }
        let retry_at = (leading.attempt + self.timing.retry_period()).max(now.mono);
        match event {
            Event::Written(record) => {
                self.sight.observe(record.clone(), &self.timing, now);
                leading.written(record, &self.timing);
            }
            Event::Seen(Some(record)) if record.holder == self.identity && record.number == leading.number => {
                leading.record = record;
                leading.sure = true;
            }
            Event::Seen(found) => {
                match found {
                    Some(record) => self.sight.observe(record, &self.timing, now),
                    None => self.sight.observe_none(),
                }
                return self.lost(false, here, now);
            }
            // Somebody may only have set an annotation.
            Event::Conflict if leading.sure => {
                leading.sure = false;
                leading.renew_at = now.mono;
            }
            Event::Conflict | Event::Refused | Event::Unanswered => {
                leading.sure = false;
                leading.renew_at = retry_at;
            }
            Event::WorkEnded if leading.leave_by.is_some() => {
                let released = Self::released(&leading, now);
                return self.give_back(Some(released), Duration::ZERO, here, now);
            }
            Event::WorkEnded => return self.failed(&leading, here, now),
            Event::Woke | Event::Lapsed => {}
        }
        if leading.leave_by.is_none() && (here.stopping || leading.hands_over(here, now)) {
            leading.leave_by = Some(now.mono + WIND_UP);
        }
        match leading.leave_by {
            Some(leave_by) if now.mono >= leave_by => {
                let phase = Phase::WindingUp {
                    release: Some(Self::released(&leading, now)),
                    rest: Duration::ZERO,
                    abort_at: now.mono,
                    abort: true,
                };
                (phase, Action::Wait(None))
            }
            _ if now.mono >= leading.renew_at => self.renew(leading, here, now),
            leave_by => {
                let wait = leave_by.map_or(leading.renew_at, |leave_by| leave_by.min(leading.renew_at));
                let wait = wait.min(leading.until);
                (Phase::Leading(leading), Action::Wait(Some(wait)))
            }
        }
    }

    /// Renews, having read again what is not surely the latest version.
    fn renew(&mut self, mut leading: Leading, here: Circumstances, now: Moment) -> (Phase, Action) {
        leading.attempt = now.mono;
        let action = if leading.sure {
            let candidates = here.fleet.map(|fleet| fleet.candidates);
            let mut record = leading.record.renewed(&self.timing, candidates, now.wall);
            if leading.is_steady(now) {
                record.failed_terms = 0;
            }
            self.write(record, now)
        } else {
            self.read(now)
        };
        let action = match action {
            Action::Read(by) => Action::Read(by.min(leading.until)),
            Action::Write(record, by) => Action::Write(record, by.min(leading.until)),
            other => other,
        };
        (Phase::Leading(leading), action)
    }

    /// The term has ended and the Lease is not ours to give back, as far as we know.
    fn lost(&mut self, work_ended: bool, here: Circumstances, now: Moment) -> (Phase, Action) {
        if work_ended {
            return self.follow_after(Duration::ZERO, here, now);
        }
        let abort_at = now.mono + WIND_UP;
        let phase = Phase::WindingUp {
            release: None,
            rest: Duration::ZERO,
            abort_at,
            abort: false,
        };
        (phase, Action::Wait(Some(abort_at)))
    }

    /// The work ended of itself: the Lease is given back, and this instance rests.
    fn failed(&mut self, leading: &Leading, here: Circumstances, now: Moment) -> (Phase, Action) {
        let lasted = now.mono - leading.began;
        self.failed_terms = if lasted >= LONGEST_REST {
            1
        } else {
            self.failed_terms + 1
        };
        let rest = rest(self.failed_terms, self.timing.lease_duration());
        let before = if leading.is_steady(now) {
            0
        } else {
            leading.record.failed_terms
        };
        let released = leading.record.released(before.saturating_add(1), now.wall);
        self.give_back(Some(released), rest, here, now)
    }

    fn released(leading: &Leading, now: Moment) -> Record {
        let failed_terms = if leading.is_steady(now) {
            0
        } else {
            leading.record.failed_terms
        };
        leading.record.released(failed_terms, now.wall)
    }
}

/// How long to rest after this many terms that failed one after another.
fn rest(failed_terms: u32, lease: Duration) -> Duration {
    let doubled = lease.saturating_mul(2_u32.saturating_pow(failed_terms.saturating_sub(1)));
    doubled.min(LONGEST_REST)
}
