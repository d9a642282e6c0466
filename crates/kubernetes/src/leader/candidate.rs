//! The decisions of a candidate: from what happened, and when, to what it does next.
//!
//! Invariants: a candidate does one thing at a time. It creates the ledger before a Lease that does not exist. It writes to the term of a Lease
//! only if it may acquire or create it, or holds it. The reads of all candidates together come at the rate that the number of candidates sets,
//! whatever fails. A term ends at its deadline at the latest. The Lease is released after the term's work has ended, in the version that this
//! candidate wrote or read as its own, and the candidate contends again only after that. One that stops after a failed request reads once
//! whether the Lease is its own. Work that fails makes this instance abstain for a growing time, and the others wait too, once it has failed for
//! them. The one other write is that of a volunteer: a candidate that finds a holder that cannot work offers to succeed it, in an annotation and
//! nothing else.
//!
//! Pure: no clock, no API. `held_term` is the term of a candidate that leads, `release` what ends it for others; when a Lease may be
//! acquired is left to `observed_lease`, and how long to wait to `timing`.

mod held_term;
mod release;

use std::time::Duration;

use fastrand::Rng;
use headgate_core::clock::Moment;
use headgate_core::throttle::ThrottledUntil;
use tokio::time::Instant;

use super::election_record::ElectionRecord;
use super::fleet::Fleet;
use super::observed_lease::{Contender, ObservedLease};
use super::successor_request::Inability;
use super::timing::{
    LEASE_DURATION, MAX_FAILED_TERM_BACKOFF, REQUEST_TIMEOUT, RETRY_PERIOD, WORK_STOP_TIMEOUT, failed_request_backoff,
    failed_term_backoff, first_read_delay, jittered, read_interval, spread, unpublished_read_interval,
};
pub(super) use held_term::Handover;
use held_term::HeldTerm;
use release::Release;

/// How the work of a term ended, as `leader_task` decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkOutcome {
    /// At the end of the term, or after a handover was requested.
    Finished,
    /// By itself, in a valid term.
    Failed,
}

/// The result of the last action, or the reason for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The time that was waited for has come, or an input has changed.
    Woke,
    /// A read returned the Lease; `None` if it does not exist.
    Read(Option<ElectionRecord>),
    /// The ledger did not exist, and this candidate created it.
    LedgerCreated,
    /// A write succeeded; the Lease is now like this.
    Written(ElectionRecord),
    /// The Lease has changed since the version that a write followed, or what was to be created exists.
    Conflict,
    /// The API server refused a request, and would refuse it again.
    Refused,
    /// No usable response: the request may have taken effect, or may take effect later.
    NoResponse,
    /// The deadline of the term passed before the leader task learned of a renewal.
    DeadlinePassed,
    /// The work of the term ended.
    WorkEnded(WorkOutcome),
}

/// What to do next. Its outcome is the next event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one action at a time")]
pub(super) enum Action {
    /// Read the Lease, with this deadline.
    Read(Instant),
    /// Create the ledger, with this deadline.
    CreateLedger(Instant),
    /// Write this record, with this deadline. Without a resourceVersion it creates the Lease.
    Write(ElectionRecord, Instant),
    /// Wait for this time, for a change of an input, or for the end of the work.
    Wait(Option<Instant>),
    /// The candidate has stopped.
    Stop,
}

/// The time and the state of the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs {
    pub(super) now: Moment,
    /// Whether the process is stopping.
    pub(super) is_stopping: bool,
    /// The own node has a signal.
    pub(super) is_signalled: bool,
    /// The candidates; `None` if they are counted from the Nodes and the work of a term has reported none.
    pub(super) fleet: Option<Fleet>,
    /// That the work of the term cannot be done, as it reports.
    pub(super) unable: Option<Inability>,
    /// Until when ARM throttles requests, as the work reports.
    pub(super) throttle: ThrottledUntil,
}

/// The target state of the leader task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskTarget {
    /// No term and no work.
    Idle,
    /// Work in a term with this deadline.
    Run(TermTarget),
    /// The term has ended; its work ends, or is aborted.
    Stop { abort: bool },
}

/// A term as it should be now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TermTarget {
    pub(super) number: i32,
    pub(super) until: Instant,
    pub(super) handover: Option<Handover>,
    /// The start of the last successful write.
    pub(super) renewed: Moment,
    /// What the term before left.
    pub(super) throttle: ThrottledUntil,
}

/// When a candidate that does not lead reads the Lease.
#[derive(Clone, Debug)]
struct ReadSchedule {
    /// The next regular read.
    next_read: Instant,
    last_read: Instant,
    /// Whether the last read can make an extra read due before the regular one.
    may_read_early: bool,
}

impl ReadSchedule {
    fn at(next_read: Instant, now: Instant) -> Self {
        Self {
            next_read,
            last_read: now,
            may_read_early: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Acquisition {
    /// The start of the write, or of the creation of the ledger before it.
    began: Moment,
    term: i32,
    is_signalled: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Waits for the next read.
    Waiting(ReadSchedule),
    /// A read of the Lease is in progress.
    Reading {
        /// The time of the next regular read, which this read may precede.
        regular_read: Instant,
    },
    /// Creates the ledger, since the Lease does not exist.
    CreatingLedger {
        began: Moment,
    },
    /// A write that acquires the Lease is in progress.
    Acquiring(Acquisition),
    /// A write that acquires nothing is in progress: it creates the Lease without a holder, or offers to succeed the holder.
    Writing {
        /// The time of the next regular read.
        regular_read: Instant,
    },
    Leading(HeldTerm),
    /// The term has ended; its work has not.
    StoppingWork {
        /// The release of the Lease after the work, if it is still this candidate's.
        release: Option<Release>,
        abort_at: Instant,
        abort: bool,
    },
    Releasing(Release),
    Stopped,
}

/// The next phase, and what to do in it.
type Transition = (Phase, Action);

/// The state of a candidate.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    identity: String,
    rng: Rng,
    observed: ObservedLease,
    /// The Lease was missing beside a ledger when it was read last.
    is_missing_beside_ledger: bool,
    /// Failed requests one after another, while this candidate does not lead.
    failed_requests: u32,
    /// Acquisitions in a row that got no response.
    unanswered_acquisitions: u32,
    /// Terms of this candidate whose work failed, since one lasted for the longest backoff.
    failed_terms: u32,
    /// Signalled terms of this candidate, since it read the Lease without a signal.
    signalled_terms: u32,
    /// Reads of a held Lease in which no leader had published the number of candidates.
    unpublished_reads: u32,
    /// The read interval after the last successful read.
    last_interval: Duration,
    phase: Phase,
}

impl Candidate {
    /// A candidate that starts now. Its identity is unique among all candidates, present and past.
    pub(super) fn new(identity: String, seed: u64, now: Moment) -> Self {
        let mut rng = Rng::with_seed(seed);
        let first_read = now.mono + first_read_delay(&mut rng);
        Self {
            identity,
            rng,
            observed: ObservedLease::default(),
            is_missing_beside_ledger: false,
            failed_requests: 0,
            unanswered_acquisitions: 0,
            failed_terms: 0,
            signalled_terms: 0,
            unpublished_reads: 0,
            last_interval: Duration::ZERO,
            phase: Phase::Waiting(ReadSchedule::at(first_read, now.mono)),
        }
    }

    /// Handles an event and returns what to do next.
    pub(super) fn step(&mut self, event: Event, inputs: Inputs) -> Action {
        let (phase, action) = match std::mem::replace(&mut self.phase, Phase::Stopped) {
            Phase::Waiting(schedule) => self.wait_for_read(schedule, inputs),
            Phase::Reading { regular_read } => self.handle_read(event, regular_read, inputs),
            Phase::CreatingLedger { began } => self.handle_ledger_created(&event, began, inputs),
            Phase::Writing { regular_read } => self.handle_written(event, regular_read, inputs),
            Phase::Acquiring(acquisition) => self.handle_acquired(event, acquisition, inputs),
            Phase::Leading(held) => self.lead(held, event, inputs),
            Phase::StoppingWork { release, .. } if matches!(event, Event::WorkEnded(_)) => match release {
                Some(release) => release_lease(release, inputs),
                None => self.wait_after_term(Duration::ZERO, inputs),
            },
            Phase::StoppingWork { release, abort_at, .. } => {
                let abort = inputs.now.mono >= abort_at;
                let phase = Phase::StoppingWork {
                    release,
                    abort_at,
                    abort,
                };
                (phase, Action::Wait((!abort).then_some(abort_at)))
            }
            Phase::Releasing(release) => {
                let backoff = release.backoff;
                match release.after(event, &self.identity, inputs.now) {
                    Some(release) => release_lease(release, inputs),
                    None => self.wait_after_term(backoff, inputs),
                }
            }
            Phase::Stopped => (Phase::Stopped, Action::Stop),
        };
        self.phase = phase;
        action
    }

    /// The target state of the leader task.
    pub(super) fn task_target(&self) -> TaskTarget {
        match &self.phase {
            Phase::Leading(held) => held.task_target(),
            Phase::StoppingWork { abort, .. } => TaskTarget::Stop { abort: *abort },
            _ => TaskTarget::Idle,
        }
    }

    /// Waits for the next read, or reads.
    fn wait_for_read(&mut self, schedule: ReadSchedule, inputs: Inputs) -> Transition {
        let regular_read = schedule.next_read;
        if inputs.is_stopping {
            // After a failed request the Lease may be this candidate's: read once, so that it is released.
            return if std::mem::take(&mut self.failed_requests) > 0 {
                (Phase::Reading { regular_read }, read_request(inputs))
            } else {
                (Phase::Stopped, Action::Stop)
            };
        }
        let extra_read = self
            .observed
            .extra_read_at(self.contender(inputs), self.interval(), schedule.last_read)
            .filter(|_| schedule.may_read_early);
        let read_at = extra_read.map_or(schedule.next_read, |read| {
            read.max(schedule.last_read).min(schedule.next_read)
        });
        if inputs.now.mono < read_at {
            return (Phase::Waiting(schedule), Action::Wait(Some(read_at)));
        }
        (Phase::Reading { regular_read }, read_request(inputs))
    }

    /// Waits after a term, or after the attempt to acquire one, for at least `backoff`.
    fn wait_after_term(&mut self, backoff: Duration, inputs: Inputs) -> Transition {
        let (now, interval) = (inputs.now.mono, self.interval());
        let wait = if backoff.is_zero() {
            jittered(&mut self.rng, interval)
        } else {
            backoff
        };
        self.wait_for_read(ReadSchedule::at(now + wait, now), inputs)
    }

    /// Waits after a failed request. If it may have acquired the Lease, the next read comes soon, once.
    fn wait_after_failure(&mut self, may_hold: bool, inputs: Inputs) -> Transition {
        self.failed_requests = self.failed_requests.saturating_add(1);
        self.unanswered_acquisitions = self.unanswered_acquisitions.saturating_add(may_hold.into());
        let wait = if self.observed.candidates().is_none() {
            failed_request_backoff(self.failed_requests)
        } else if may_hold && self.unanswered_acquisitions == 1 {
            RETRY_PERIOD
        } else {
            self.interval().max(RETRY_PERIOD)
        };
        let now = inputs.now.mono;
        let schedule = ReadSchedule::at(now + jittered(&mut self.rng, wait), now);
        self.wait_for_read(schedule, inputs)
    }

    /// Waits after a successful read or creation; `regular_read` is when the next regular read was due before it.
    fn wait_after_read(&mut self, regular_read: Instant, inputs: Inputs) -> Transition {
        (self.failed_requests, self.unanswered_acquisitions) = (0, 0);
        let (now, interval) = (inputs.now.mono, self.interval());
        // Candidates that read at the same time would otherwise do so forever, and none in between. Not while their number is about to be
        // published: the next read has to come after the leader's next renewal.
        let before = std::mem::replace(&mut self.last_interval, interval);
        let has_grown = interval / 2 > before && !self.is_unpublished();
        let wait = if has_grown {
            spread(&mut self.rng, interval)
        } else {
            jittered(&mut self.rng, interval)
        };
        let mut next_read = now + wait;
        let early = (interval / 2).min(LEASE_DURATION);
        if !has_grown && regular_read >= now + early {
            // This was an extra read, long before the regular one, which stays where it is.
            next_read = next_read.min(regular_read);
        }
        let schedule = ReadSchedule {
            may_read_early: true,
            ..ReadSchedule::at(next_read, now)
        };
        self.wait_for_read(schedule, inputs)
    }

    fn handle_read(&mut self, event: Event, regular_read: Instant, inputs: Inputs) -> Transition {
        let Event::Read(found) = event else {
            if inputs.is_stopping {
                return (Phase::Stopped, Action::Stop);
            }
            return self.wait_after_failure(false, inputs);
        };
        let Some(found) = found else {
            return self.create(inputs);
        };
        if !inputs.is_signalled {
            self.signalled_terms = 0;
        }
        self.is_missing_beside_ledger = false;
        self.observed.observe(found, inputs.now);
        if self.is_unpublished() {
            self.unpublished_reads = self.unpublished_reads.saturating_add(1);
        }
        let contender = self.contender(inputs);
        let is_acquirable = self.observed.is_acquirable(contender, inputs.now.mono);
        if (inputs.is_stopping || contender.is_last_choice)
            && let Some(release) = self.release_of_own(inputs.now)
        {
            return release_lease(release, inputs);
        }
        if inputs.is_stopping {
            return self.wait_after_read(regular_read, inputs);
        }
        if !is_acquirable {
            return match self.volunteer(inputs) {
                Some(record) => (Phase::Writing { regular_read }, write_request(record, inputs)),
                None => self.wait_after_read(regular_read, inputs),
            };
        }
        self.acquire(inputs.now, inputs)
    }

    /// The release of a Lease that this candidate holds without a term: a write without a response acquired it, or did not release it.
    fn release_of_own(&self, now: Moment) -> Option<Release> {
        let own = Contender {
            identity: &self.identity,
            is_last_choice: false,
        };
        let record = self.observed.record()?;
        let is_own = record.lease.holder == self.identity && self.observed.is_acquirable(own, now.mono);
        is_own.then(|| Release::new(record.released(record.failed_terms, now.wall), true, now.mono))
    }

    /// Acquires the Lease as it was observed last; creates it if it does not exist.
    fn acquire(&self, began: Moment, inputs: Inputs) -> Transition {
        let term = self.observed.next_term();
        let free = self.observed.record().cloned().unwrap_or_default();
        let acquired = free.acquired(&self.identity, term, inputs.now.wall);
        let acquisition = Acquisition {
            began,
            term,
            is_signalled: inputs.is_signalled,
        };
        (Phase::Acquiring(acquisition), write_request(acquired, inputs))
    }

    /// The Lease with this candidate as the successor of a holder that cannot work. `None` if none is requested, another
    /// candidate has volunteered, or this one is no better: it gave up recently, or its node has a signal.
    fn volunteer(&self, inputs: Inputs) -> Option<ElectionRecord> {
        let record = self.observed.record()?;
        let is_wanted = record.unable.is_some();
        let is_free = !record.is_released() && record.lease.holder != self.identity && record.successor.is_none();
        let has_given_up = record.give_ups.contains(&self.identity, inputs.now.wall);
        (is_wanted && is_free && !has_given_up && !inputs.is_signalled).then(|| record.with_successor(&self.identity))
    }

    fn handle_written(&mut self, event: Event, regular_read: Instant, inputs: Inputs) -> Transition {
        match event {
            Event::Written(record) => {
                self.observed.observe(record, inputs.now);
                self.wait_after_read(regular_read, inputs)
            }
            _ => self.wait_after_failure(false, inputs),
        }
    }

    /// Creates the ledger before the missing Lease, so that every term begins beside a ledger.
    fn create(&mut self, inputs: Inputs) -> Transition {
        self.observed.observe_missing();
        if inputs.is_stopping {
            return (Phase::Stopped, Action::Stop);
        }
        let action = Action::CreateLedger(inputs.now.mono + REQUEST_TIMEOUT);
        (Phase::CreatingLedger { began: inputs.now }, action)
    }

    /// Creates the missing Lease. Where no ledger was, no leader has led, and the candidate that created the ledger acquires the
    /// Lease by creating it. Elsewhere the Lease is created without a holder, so that every candidate observes from when on it
    /// exists, and can be acquired only after that.
    ///
    /// The first term counts from before the ledger's creation: another candidate's cannot begin for a lease duration after that.
    fn handle_ledger_created(&mut self, event: &Event, began: Moment, inputs: Inputs) -> Transition {
        let is_created = *event == Event::LedgerCreated;
        if !is_created && !matches!(event, Event::Conflict | Event::Refused) {
            return self.wait_after_failure(false, inputs);
        }
        if inputs.is_stopping {
            return (Phase::Stopped, Action::Stop);
        }
        let has_existed = self.observed.has_existed();
        if is_created && !has_existed && !self.contender(inputs).is_last_choice {
            return self.acquire(began, inputs);
        }
        let was_missing = std::mem::replace(&mut self.is_missing_beside_ledger, true);
        if *event == Event::Conflict && !has_existed && !was_missing {
            // The candidate that created the ledger may be about to create the Lease.
            let (now, wait) = (inputs.now.mono, jittered(&mut self.rng, RETRY_PERIOD));
            return self.wait_for_read(ReadSchedule::at(now + wait, now), inputs);
        }
        let record = ElectionRecord::unheld(self.observed.highest_term());
        let regular_read = inputs.now.mono;
        (Phase::Writing { regular_read }, write_request(record, inputs))
    }

    /// Handles the response to the write that acquires the Lease.
    fn handle_acquired(&mut self, event: Event, acquisition: Acquisition, inputs: Inputs) -> Transition {
        let record = match event {
            Event::Written(record) => record,
            Event::Conflict | Event::Refused => {
                self.unanswered_acquisitions = 0;
                return self.wait_after_failure(false, inputs);
            }
            _ => return self.wait_after_failure(true, inputs),
        };
        self.observed.observe(record.clone(), inputs.now);
        if inputs.is_stopping {
            let released = record.released(record.failed_terms, inputs.now.wall);
            return release_lease(Release::new(released, true, inputs.now.mono), inputs);
        }
        let mut held = HeldTerm::new(acquisition.term, acquisition.began, record);
        if acquisition.is_signalled {
            held = held.signalled(self.signalled_terms);
            self.signalled_terms = self.signalled_terms.saturating_add(1);
        }
        if held.is_over(inputs.now.mono) {
            return self.wait_after_failure(true, inputs);
        }
        (self.failed_requests, self.unanswered_acquisitions) = (0, 0);
        self.lead(held, Event::Woke, inputs)
    }

    /// Leads on, or ends the term.
    fn lead(&mut self, mut held: HeldTerm, event: Event, inputs: Inputs) -> Transition {
        let now = inputs.now.mono;
        if event == Event::DeadlinePassed || held.is_over(now) {
            return self.lose_term(matches!(event, Event::WorkEnded(_)), inputs);
        }
        if held.age(now) >= MAX_FAILED_TERM_BACKOFF {
            self.failed_terms = 0;
        }
        match event {
            Event::Written(record) => {
                self.observed.observe(record.clone(), inputs.now);
                held.renewed(record);
            }
            Event::Read(Some(record))
                if record.lease.holder == self.identity && record.lease.transitions == held.number =>
            {
                held.record = record;
                held.is_record_current = true;
            }
            Event::Read(found) => {
                match found {
                    Some(record) => self.observed.observe(record, inputs.now),
                    None => self.observed.observe_missing(),
                }
                return self.lose_term(false, inputs);
            }
            // Perhaps only an annotation was changed.
            Event::Conflict if held.is_record_current => {
                held.is_record_current = false;
                held.renew_at = now;
            }
            Event::Conflict | Event::Refused | Event::NoResponse => {
                held.is_record_current = false;
                held.renew_at = (held.attempt.mono + RETRY_PERIOD).max(now);
            }
            Event::WorkEnded(WorkOutcome::Finished) => {
                return release_lease(Release::new(held.released(inputs), held.is_record_current, now), inputs);
            }
            Event::WorkEnded(WorkOutcome::Failed) => return self.fail_term(&held, inputs),
            Event::Woke | Event::LedgerCreated | Event::DeadlinePassed => {}
        }
        if held.stop_work_by.is_none()
            && let Some(handover) = held.due_handover(inputs)
        {
            held.handover = Some(handover);
            held.stop_work_by = Some(now + WORK_STOP_TIMEOUT);
        }
        if held.stop_work_by.is_some_and(|stop_work_by| now >= stop_work_by) {
            let phase = Phase::StoppingWork {
                release: Some(Release::new(held.released(inputs), held.is_record_current, now)),
                abort_at: now,
                abort: true,
            };
            return (phase, Action::Wait(None));
        }
        if now >= held.renew_at {
            return renew(held, inputs);
        }
        let wait = [Some(held.renew_at), Some(held.until), held.stop_work_by];
        let wait = wait.into_iter().flatten().min();
        (Phase::Leading(held), Action::Wait(wait))
    }

    /// Ends a term whose Lease may be another's by now, so that it is not released.
    fn lose_term(&mut self, has_work_ended: bool, inputs: Inputs) -> Transition {
        if has_work_ended {
            return self.wait_after_term(Duration::ZERO, inputs);
        }
        let abort_at = inputs.now.mono + WORK_STOP_TIMEOUT;
        let phase = Phase::StoppingWork {
            release: None,
            abort_at,
            abort: false,
        };
        (phase, Action::Wait(Some(abort_at)))
    }

    /// Releases the Lease after the work has failed, and abstains.
    fn fail_term(&mut self, held: &HeldTerm, inputs: Inputs) -> Transition {
        let now = inputs.now;
        self.failed_terms = self.failed_terms.saturating_add(1);
        let failed_terms = held.failed_terms_before(now.mono).saturating_add(1);
        let released = held.record.released(failed_terms, now.wall);
        let released = released.reported(None, inputs.throttle, now);
        let mut release = Release::new(released, held.is_record_current, now.mono);
        release.backoff = failed_term_backoff(self.failed_terms);
        release_lease(release, inputs)
    }

    fn contender(&self, inputs: Inputs) -> Contender<'_> {
        Contender {
            identity: &self.identity,
            is_last_choice: inputs.is_signalled || self.has_given_up(inputs),
        }
    }

    fn has_given_up(&self, inputs: Inputs) -> bool {
        let record = self.observed.record();
        record.is_some_and(|record| record.give_ups.contains(&self.identity, inputs.now.wall))
    }

    fn interval(&self) -> Duration {
        if self.is_unpublished() {
            unpublished_read_interval(self.unpublished_reads)
        } else {
            read_interval(self.observed.candidates())
        }
    }

    /// Whether the Lease is held and no leader has published the number of candidates.
    fn is_unpublished(&self) -> bool {
        let is_held = self.observed.record().is_some_and(|record| !record.is_released());
        is_held && self.observed.candidates().is_none()
    }
}

/// Takes the next step of a release.
fn release_lease(mut release: Release, inputs: Inputs) -> Transition {
    let action = release.next_action(inputs.now.mono);
    (Phase::Releasing(release), action)
}

/// Renews the Lease, or reads it first if its latest version is not known.
fn renew(mut held: HeldTerm, inputs: Inputs) -> Transition {
    let now = inputs.now;
    held.attempt = now;
    let deadline = held.until.min(now.mono + REQUEST_TIMEOUT);
    let action = if held.is_record_current {
        let candidates = inputs.fleet.map(|fleet| fleet.candidates);
        let record = held.record.renewed(candidates, now.wall);
        let mut record = record.reported(inputs.unable, inputs.throttle, now);
        record.failed_terms = held.failed_terms_before(now.mono);
        Action::Write(record, deadline)
    } else {
        Action::Read(deadline)
    };
    (Phase::Leading(held), action)
}

fn read_request(inputs: Inputs) -> Action {
    Action::Read(inputs.now.mono + REQUEST_TIMEOUT)
}

fn write_request(record: ElectionRecord, inputs: Inputs) -> Action {
    Action::Write(record, inputs.now.mono + REQUEST_TIMEOUT)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
