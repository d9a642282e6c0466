//! The whole decision about the shared Lease: when it is read, made, taken and given back.
//!
//! Level, not edge: what is wanted and what was seen say what is done next, whatever happened on the way. Invariants:
//! a Lease is taken and given back only in the version that was seen; what is given back is a hold of ours by its
//! `acquireTime`, or one under our name that nobody of us is in: left over from a leader that crashed, seen when
//! this one began, or (a request of a former leader that came late) unchanged since 10 s, which is longer than a
//! process that has just learnt that its term has ended goes on.

use std::time::Duration;

use headgate_clock::Moment;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::super::LeaseName;
use super::super::timing::Chance;
use super::record::{self, Record};
use super::sight::{Known, Sight};

/// A hold takes no new writes after this time, so that others get their turn.
const OPEN: Duration = Duration::from_mins(1);
/// Between looks while somebody waits: without a watch, and with one, which may be dead without anybody's knowing.
const POLL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// After a request that failed.
const REST: Duration = Duration::from_secs(1);
/// So many conflicts one after another, and there is a rest.
const CONFLICTS: u32 = 4;
/// A hold under our name that is not this process's is left alone as long as somebody might still be in it.
const SETTLED: Duration = Duration::from_secs(10);

/// What this process wants, at one instant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Want {
    /// Somebody waits for a hold.
    pub(super) waiting: bool,
    /// The present hold is to go on.
    pub(super) kept: bool,
    /// Something was written in it.
    pub(super) wrote: bool,
}

/// A hold of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) number: u64,
    pub(super) acquired: Timestamp,
    pub(super) closes_at: Instant,
    /// Then others may take it.
    pub(super) expires_at: Instant,
    /// Something may have been written under our name before it began.
    pub(super) wrote: bool,
}

/// One request.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Read,
    Make(Box<Lease>),
    /// Taken at this time, by the Lease and by our clock.
    Take(Box<Lease>, Claim),
    Release(Box<Lease>),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    stamp: Timestamp,
    sent: Instant,
    wrote: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// The Lease as it is now.
    Lease(Option<Box<Lease>>),
    /// The version that it followed is not the latest.
    Conflict,
    /// Anything else, which leaves open whether it took effect.
    Failed(String),
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Step {
    Ask(Request),
    /// For something to change, or until then.
    Wait(Option<Instant>),
}

/// Longer than cloud-controller-manager's first pause after it found the Lease held.
const YIELD: Duration = Duration::from_secs(6);

/// What is in the way of who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    Held {
        holder: String,
        since: Option<Timestamp>,
        expires: Option<Timestamp>,
    },
    /// Our own hold, which is closed to new writes.
    Closed,
    Failed(String),
    NotYet,
}

/// A hold under our name that is not known to be of this process.
#[derive(Clone, Copy, Debug)]
struct Leftover {
    acquired: Option<Timestamp>,
    since: Instant,
    at_start: bool,
}

/// Who decides.
#[derive(Debug)]
pub(super) struct Keeper {
    lease: LeaseName,
    name: String,
    sight: Sight,
    /// What was seen is perhaps not the latest.
    stale: bool,
    watched: bool,
    look_at: Option<Instant>,
    rest_until: Option<Instant>,
    /// After a hold that was closed by time others have their turn until then: cloud-controller-manager does not wait in
    /// line, it comes again.
    yields_until: Option<Instant>,
    conflicts: u32,
    failure: Option<String>,
    hold: Option<Hold>,
    holds: u64,
    claim: Option<Claim>,
    leftover: Option<Leftover>,
    /// Nothing was seen yet.
    first: bool,
    chance: Chance,
}

impl Keeper {
    pub(super) fn new(lease: LeaseName, name: String, seed: u64) -> Self {
        Self {
            lease,
            name,
            sight: Sight::default(),
            stale: true,
            watched: false,
            look_at: None,
            rest_until: None,
            yields_until: None,
            conflicts: 0,
            failure: None,
            hold: None,
            holds: 0,
            claim: None,
            leftover: None,
            first: true,
            chance: Chance::new(seed),
        }
    }

    pub(super) fn hold(&self) -> Option<Hold> {
        self.hold
    }

    /// How often somebody else was seen to have had the Lease.
    pub(super) fn others(&self) -> u64 {
        self.sight.others()
    }

    pub(super) fn obstacle(&self, now: Moment) -> Obstacle {
        if self.hold.is_some() {
            return Obstacle::Closed;
        }
        match (&self.failure, self.sight.record()) {
            (Some(failure), _) => Obstacle::Failed(failure.clone()),
            (None, Some(record)) if !record.is_free_for(&self.name, now.wall) => Obstacle::Held {
                holder: record.holder.clone(),
                since: record.acquired,
                expires: record.expires(),
            },
            _ => Obstacle::NotYet,
        }
    }

    /// What to do next.
    pub(super) fn next(&mut self, want: Want, now: Moment) -> Step {
        let step = self.due(want, now);
        let request = match step {
            Step::Ask(request) => request,
            Step::Wait(_) => return step,
        };
        if let Some(rest) = self.rest_until.filter(|rest| now.mono < *rest) {
            return Step::Wait(Some(rest));
        }
        if let Request::Take(_, claim) = &request {
            self.sight.claim(&self.name, claim.stamp);
            self.claim = Some(*claim);
        }
        Step::Ask(request)
    }

    fn due(&self, want: Want, now: Moment) -> Step {
        if self.hold.is_some() && want.kept && !self.stale {
            // Closing changes what those want who wait.
            let closes = self.hold.map(|hold| hold.closes_at);
            return Step::Wait(closes.filter(|closes| now.mono < *closes));
        }
        let lease = match self.sight.known() {
            Known::Nothing => return Step::Ask(Request::Read),
            _ if self.stale => return Step::Ask(Request::Read),
            Known::Missing if want.waiting => {
                return Step::Ask(Request::Make(Box::new(record::new(&self.lease))));
            }
            Known::Missing => return Step::Wait(None),
            Known::Found(lease, record) => (&**lease, record),
        };
        match (self.hold, want.waiting) {
            (Some(_), _) => self.release(lease.0, want.wrote),
            (None, true) => self.take(lease, now),
            (None, false) => self.clear(lease.0, now),
        }
    }

    fn release(&self, lease: &Lease, wrote: bool) -> Step {
        let writer = wrote.then_some(self.name.as_str());
        Step::Ask(Request::Release(Box::new(record::released(lease, writer))))
    }

    /// Takes the Lease, or waits for it.
    fn take(&self, (lease, record): (&Lease, &Record), now: Moment) -> Step {
        if let Some(until) = self.yields_until.filter(|until| now.mono < *until) {
            return Step::Wait(Some(until));
        }
        if record.is_free_for(&self.name, now.wall) {
            let stamp = record::stamp(record, now.wall);
            let claim = Claim {
                stamp,
                sent: now.mono,
                wrote: record.is_held_by(&self.name) && self.leftover_wrote(),
            };
            return Step::Ask(Request::Take(Box::new(record::taken(lease, &self.name, stamp)), claim));
        }
        let look_at = self.look_at.unwrap_or(now.mono);
        if now.mono >= look_at {
            return Step::Ask(Request::Read);
        }
        // One microsecond later it is not held any more.
        let expiry = record.expires().and_then(|expires| {
            let left = expires
                .duration_since(now.wall)
                .saturating_add(SignedDuration::from_micros(1));
            Some(now.mono + Duration::try_from(left).ok()?)
        });
        Step::Wait(Some(expiry.map_or(look_at, |expiry| expiry.min(look_at))))
    }

    /// Gives back what is held under our name by nobody of us.
    fn clear(&self, lease: &Lease, now: Moment) -> Step {
        let Some(leftover) = self.leftover else {
            return Step::Wait(None);
        };
        let settled = leftover.since + SETTLED;
        if leftover.at_start || self.is_claimed(leftover) || now.mono >= settled {
            self.release(lease, self.leftover_wrote())
        } else {
            Step::Wait(Some(settled))
        }
    }

    fn is_claimed(&self, leftover: Leftover) -> bool {
        self.claim.is_some_and(|claim| leftover.acquired == Some(claim.stamp))
    }

    /// Whether something may have been written in what is held under our name: where nobody knows, it may.
    fn leftover_wrote(&self) -> bool {
        let claim = self
            .leftover
            .filter(|leftover| self.is_claimed(*leftover))
            .and(self.claim);
        claim.is_none_or(|claim| claim.wrote)
    }

    /// The watch showed the Lease, or that there is none.
    pub(super) fn watched(&mut self, lease: Option<Lease>, now: Moment) {
        self.watched = true;
        self.failure = None;
        match lease {
            Some(lease) => {
                if self.sight.watched(lease) {
                    self.saw(now);
                    // Whoever is told of it can be asked.
                    self.rest_until = None;
                }
            }
            // It tells no version: it may be the past.
            None => self.stale = true,
        }
    }

    /// The watch is in trouble.
    pub(super) fn watch_failed(&mut self, now: Moment) {
        if std::mem::take(&mut self.watched) {
            self.look_at = Some(now.mono + self.chance.jitter(POLL[0]));
        }
    }

    /// A request was answered, or not.
    pub(super) fn answered(&mut self, request: &Request, answer: Answer, now: Moment) {
        match answer {
            Answer::Lease(lease) => {
                self.failure = None;
                if !matches!(request, Request::Read) {
                    self.conflicts = 0;
                }
                self.sight.answered(lease.map(|lease| *lease));
                match request {
                    Request::Take(lease, claim) => self.begin(lease, *claim),
                    Request::Release(_) => {
                        let was_closed = self.hold.is_some_and(|hold| now.mono >= hold.closes_at);
                        self.yields_until = was_closed.then_some(now.mono + YIELD);
                        self.hold = None;
                    }
                    Request::Read | Request::Make(_) => {}
                }
                self.saw(now);
            }
            Answer::Conflict => {
                self.stale = true;
                if matches!(request, Request::Take(..)) {
                    self.claim = None;
                    self.sight.disclaim();
                }
                self.conflicts += 1;
                if self.conflicts.is_multiple_of(CONFLICTS) {
                    self.rest_until = Some(now.mono + self.chance.jitter(REST));
                }
            }
            Answer::Failed(failure) => {
                self.stale = true;
                self.failure = Some(failure);
                self.rest_until = Some(now.mono + self.chance.jitter(REST));
            }
        }
    }

    fn begin(&mut self, lease: &Lease, claim: Claim) {
        self.holds += 1;
        // Never so long that it expires under who is in.
        let lasts = Duration::from_secs(u64::try_from(Record::of(lease).seconds).unwrap_or_default());
        self.hold = Some(Hold {
            number: self.holds,
            acquired: claim.stamp,
            closes_at: claim.sent + OPEN.min(lasts / 2),
            expires_at: claim.sent + lasts,
            wrote: claim.wrote,
        });
    }

    /// What is known is the latest, as far as anybody can tell.
    fn saw(&mut self, now: Moment) {
        self.stale = false;
        self.look_at = Some(now.mono + self.chance.jitter(POLL[usize::from(self.watched)]));
        let record = self.sight.record().filter(|record| record.is_held_by(&self.name));
        let acquired = record.map(|record| record.acquired);
        self.hold = self.hold.filter(|hold| acquired == Some(Some(hold.acquired)));
        let at_start = std::mem::take(&mut self.first);
        self.leftover = acquired
            .filter(|_| self.hold.is_none())
            .map(|acquired| match self.leftover {
                Some(leftover) if leftover.acquired == acquired => leftover,
                _ => Leftover {
                    acquired,
                    since: now.mono,
                    at_start,
                },
            });
    }
}

#[cfg(test)]
mod tests;
