//! A candidate's whole decision: what happened and when, to what is to be done next.
//!
//! Invariants: one thing is done at a time; a term is counted from the moment its winning or renewing write was
//! begun; the Lease is given back only after the term's work has ended, and nobody stands again before that.
//! Pure: no clock, no API. `following` is the part of one who does not lead, `leading` of one who does.

use std::time::Duration;

use headgate_clock::Moment;
use tokio::time::Instant;

use super::following::Following;
use super::leading::Leading;
use super::record::Record;
use super::sight::{Asking, Sight};
use super::timing::{Chance, Timing};

/// How long a term's work may take to come to its end.
pub(super) const WIND_UP: Duration = Duration::from_secs(3);

/// The candidates, as the leader's work counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// How many there are, this one included: told to all of them, since each looks the more rarely the more there are.
    pub candidates: u32,
    /// Whether another one is there whose node carries no signal.
    pub has_healthy_peer: bool,
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
    /// Terms one after another that were taken with a signal, since nobody else stood.
    pub(super) stood_in: u32,
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
            stood_in: 0,
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

#[cfg(test)]
mod tests {
    use headgate_clock::Clock;

    use super::*;

    /// A candidate, and the time by hand.
    struct Story {
        candidate: Candidate,
        here: Circumstances,
        now: Moment,
    }

    impl Story {
        fn begin() -> Self {
            let now = Clock::System.now();
            Self {
                candidate: Candidate::new("me".to_owned(), Timing::default(), 7, now),
                here: Circumstances::default(),
                now,
            }
        }

        /// What is done about this, so many milliseconds later.
        fn after(&mut self, millis: u64, event: Event) -> Action {
            self.now.mono += Duration::from_millis(millis);
            self.candidate.step(event, self.here, self.now)
        }

        /// Goes by to the first term: a released Lease is found and taken; gives what was written.
        fn won() -> (Self, Record) {
            let mut story = Self::begin();
            assert!(matches!(story.after(0, Event::Woke), Action::Wait(Some(_))));
            assert!(matches!(story.after(5000, Event::Woke), Action::Read(_)));
            let released = Record {
                resource_version: Some("1".to_owned()),
                number: 6,
                acquired: Some(story.now.wall),
                ..Record::default()
            };
            let Action::Write(taken, _) = story.after(10, Event::Seen(Some(released))) else {
                panic!("it is free")
            };
            assert_eq!(
                (taken.holder.as_str(), taken.number, taken.resource_version.as_deref()),
                ("me", 7, Some("1"))
            );
            let began = story.now.mono;
            let wait = story.after(500, Event::Written(taken.clone()));
            assert_eq!(wait, Action::Wait(Some(began + Duration::from_secs(2))));
            let until = began + Duration::from_secs(10);
            let leads = Duty::Lead {
                number: 7,
                until,
                leaving: false,
            };
            assert_eq!(story.candidate.duty(), leads, "counted from the start of the write");
            (story, taken)
        }
    }

    #[test]
    fn a_renewal_that_is_not_answered_moves_no_deadline() {
        let (mut story, _) = Story::won();
        let until = |story: &Story| match story.candidate.duty() {
            Duty::Lead { until, .. } => Some(until),
            _ => None,
        };
        let before = until(&story);
        let Action::Write(renewal, by) = story.after(1500, Event::Woke) else {
            panic!("it is time")
        };
        assert_eq!(by, story.now.mono + Duration::from_secs(3));
        // Whether it was written is open: what is there now has to be read before it is tried again.
        assert!(matches!(story.after(3000, Event::Unanswered), Action::Read(_)));
        let Action::Write(again, _) = story.after(10, Event::Seen(Some(renewal))) else {
            panic!("it is ours")
        };
        assert!(
            matches!(story.after(3000, Event::Unanswered), Action::Read(by) if Some(by) == before),
            "bound by the term"
        );
        assert_eq!(until(&story), before);
        assert!(matches!(story.after(10, Event::Written(again)), Action::Wait(_)));
        assert!(until(&story) > before);
    }

    #[test]
    fn a_term_that_lapsed_is_not_taken_up_again_by_a_late_answer() {
        for late in [
            Event::Woke,
            Event::Lapsed,
            Event::Unanswered,
            Event::Written(Record::default()),
        ] {
            let (mut story, _) = Story::won();
            assert!(matches!(story.after(1500, Event::Woke), Action::Write(..)));
            assert!(matches!(story.after(8500, late), Action::Wait(Some(_))));
            assert_eq!(story.candidate.duty(), Duty::WindUp { abort: false });
            // Until its work has ended it does not stand.
            assert_eq!(story.after(3000, Event::Woke), Action::Wait(None));
            assert_eq!(story.candidate.duty(), Duty::WindUp { abort: true });
            assert!(matches!(story.after(60_000, Event::WorkEnded), Action::Wait(Some(_))));
            assert_eq!(story.candidate.duty(), Duty::Idle);
        }
    }

    #[test]
    fn what_is_given_back_is_what_we_wrote_and_only_after_the_work() {
        let (mut story, taken) = Story::won();
        story.here.stopping = true;
        assert!(matches!(story.after(100, Event::Woke), Action::Wait(Some(_))));
        assert!(
            matches!(story.candidate.duty(), Duty::Lead { leaving: true, .. }),
            "its work may come to its end"
        );
        let Action::Write(released, _) = story.after(100, Event::WorkEnded) else {
            panic!("it is given back")
        };
        assert_eq!(released.resource_version, taken.resource_version);
        assert!(released.is_released() && released.number == 7);
        assert_eq!(story.candidate.duty(), Duty::Idle);
        assert_eq!(
            story.after(10, Event::Conflict),
            Action::Done,
            "somebody else's is left"
        );
    }

    #[test]
    fn a_missing_lease_is_made_first_and_taken_later() {
        let mut story = Story::begin();
        assert!(matches!(story.after(5000, Event::Woke), Action::Read(_)));
        let Action::Write(made, _) = story.after(10, Event::Seen(None)) else {
            panic!("it is made")
        };
        assert!(made.was_never_held() && made.resource_version.is_none());
        let Action::Wait(Some(look)) = story.after(10, Event::Written(made.clone())) else {
            panic!("it waits")
        };
        let millis = u64::try_from((look - story.now.mono).as_millis()).unwrap();
        assert!(millis <= 15_000);
        assert!(matches!(story.after(15_000, Event::Woke), Action::Read(_)));
        assert!(matches!(story.after(10, Event::Seen(Some(made))), Action::Write(taken, _) if taken.number == 1));
    }
}
