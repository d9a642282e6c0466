//! A candidate's whole decision: what happened and when, to what is to be done next.
//!
//! Invariants: one thing is done at a time; a term is counted from the moment its winning or renewing write was
//! begun; the Lease is given back only after the term's work has ended, and nobody stands again before that.
//! Pure: no clock, no API. `following` is the part of one who does not lead, `leading` of one who does.

use std::time::Duration;

use tokio::time::Instant;

use super::following::Following;
use super::leading::Leading;
use super::record::Record;
use super::sight::{Asking, Sight};
use super::timing::{Chance, Timing};
use crate::clock::Moment;

/// How long a term's work may take to come to its end.
pub(super) const WIND_UP: Duration = Duration::from_secs(3);

/// The candidates, as the leader's work counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// How many there are, this one included: told to all of them, since each looks the more rarely the more there are.
    pub candidates: u32,
    /// Whether another one is there whose node carries no signal.
    pub relief: bool,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The time that was waited for has come, or the circumstances are others.
    Woke,
    /// The Lease as it is; `None` if there is none.
    Seen(Option<Record>),
    /// The Lease as we wrote it.
    Written(Record),
    /// Somebody else wrote first.
    Conflict,
    /// Nothing was written, and nothing will be for a while.
    Refused,
    /// No answer that could be used: it may have been written, or be written yet.
    Unanswered,
    /// The term's deadline passed before its renewal was known to its work.
    Lapsed,
    /// The term's work ended, of itself or because it was told to.
    WorkEnded,
}

/// What is to be done next; its outcome is the next event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Read the Lease, giving up at this time.
    Read(Instant),
    /// Write this, giving up at this time: a new Lease if it follows no version.
    Write(Record, Instant),
    /// Wait for this time, for other circumstances, or for the work to end.
    Wait(Option<Instant>),
    /// Nothing, for ever.
    Done,
}

/// What counts of the world at this moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Circumstances {
    /// The process is to stop.
    pub(super) stopping: bool,
    /// The own node carries a signal.
    pub(super) signalled: bool,
    /// The other candidates, as far as a leader knows.
    pub(super) fleet: Option<Fleet>,
}

/// What the term's work should be doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// There is no term and no work.
    Idle,
    /// Its work, in this term.
    Lead { number: i32, until: Instant, leaving: bool },
    /// Coming to its end; the term has ended.
    WindUp {
        /// It has had its time.
        abort: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Phase {
    Following(Following),
    /// Reading the Lease, which is anybody's.
    Looking {
        /// When the next look was to come in any case.
        regular: Instant,
    },
    /// Writing a Lease where there was none.
    Making,
    /// Writing the Lease, which was found free.
    Standing {
        began: Instant,
        number: i32,
        signalled: bool,
    },
    Leading(Leading),
    /// The term has ended, its work has not.
    WindingUp {
        release: Option<Record>,
        rest: Duration,
        abort_at: Instant,
        abort: bool,
    },
    /// Giving the Lease back.
    Releasing {
        rest: Duration,
    },
    Done,
}

/// A candidate's state.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) identity: String,
    pub(super) timing: Timing,
    pub(super) chance: Chance,
    pub(super) sight: Sight,
    /// Requests one after another that came to nothing while nobody led here.
    pub(super) failures: u32,
    /// Terms one after another that our own work failed in.
    pub(super) failed_terms: u32,
    /// The interval that the last answered look set.
    pub(super) interval_before: Duration,
    phase: Phase,
}

impl Candidate {
    /// A candidate that starts now. No other process, and no other candidate in this one, may have its identity.
    pub(super) fn new(identity: String, timing: Timing, seed: u64, now: Moment) -> Self {
        let mut chance = Chance::new(seed);
        let first_look = now.mono + chance.first_look();
        Self {
            identity,
            timing,
            chance,
            sight: Sight::default(),
            failures: 0,
            failed_terms: 0,
            interval_before: Duration::ZERO,
            phase: Phase::Following(Following::until(first_look, now.mono)),
        }
    }

    /// Takes in what happened, in these circumstances at this moment, and says what is to be done.
    pub(super) fn step(&mut self, event: Event, here: Circumstances, now: Moment) -> Action {
        let (phase, action) = match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Following(following) => self.follow(following, here, now),
            Phase::Looking { regular } => self.looked(event, regular, here, now),
            Phase::Making => self.made(event, here, now),
            Phase::Standing {
                began,
                number,
                signalled,
            } => self.stood(event, Leading::candidate(number, signalled, began), here, now),
            Phase::Leading(leading) => self.lead(leading, event, here, now),
            Phase::WindingUp { release, rest, .. } if event == Event::WorkEnded => {
                self.give_back(release, rest, here, now)
            }
            Phase::WindingUp {
                release,
                rest,
                abort_at,
                ..
            } => {
                let abort = now.mono >= abort_at;
                let phase = Phase::WindingUp {
                    release,
                    rest,
                    abort_at,
                    abort,
                };
                (phase, Action::Wait((!abort).then_some(abort_at)))
            }
            Phase::Releasing { rest } => {
                // Given back, or somebody else's, or it expires.
                self.follow_after(rest, here, now)
            }
            Phase::Done => (Phase::Done, Action::Done),
        };
        self.phase = phase;
        action
    }

    /// What the term's work should be doing now.
    pub(super) fn duty(&self) -> Duty {
        match &self.phase {
            Phase::Leading(leading) => leading.duty(),
            Phase::WindingUp { abort, .. } => Duty::WindUp { abort: *abort },
            _ => Duty::Idle,
        }
    }

    /// Gives the Lease back once there is no work left, then rests.
    pub(super) fn give_back(
        &mut self,
        release: Option<Record>,
        rest: Duration,
        here: Circumstances,
        now: Moment,
    ) -> (Phase, Action) {
        match release {
            Some(record) => (Phase::Releasing { rest }, self.write(record, now)),
            None => self.follow_after(rest, here, now),
        }
    }

    pub(super) fn read(&self, now: Moment) -> Action {
        Action::Read(now.mono + self.timing.request_timeout())
    }

    pub(super) fn write(&self, record: Record, now: Moment) -> Action {
        Action::Write(record, now.mono + self.timing.request_timeout())
    }

    pub(super) fn asking(&self, signalled: bool) -> Asking<'_> {
        Asking {
            identity: &self.identity,
            signalled,
            timing: &self.timing,
        }
    }
}
