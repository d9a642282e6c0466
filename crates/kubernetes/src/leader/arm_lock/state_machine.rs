//! The state machine of the shared Lease: decides when it is read, created, acquired and released.
//!
//! Level-triggered: the demand of this process and the last observation decide the next step, whatever happened before.
//! Invariants: the Lease is acquired and released only in the version that was observed. Only two kinds of holds are released:
//! one of this process, by its `acquireTime`; and a leftover, a hold under headgate's name that this process does not have.
//! A leftover of a crashed leader is released at once if it was there when this process began. Later ones can come from a
//! delayed request of a former leader; they are released when they have been unchanged for 10 s, longer than a process
//! continues after it has learned that its term has ended.
//!
//! Pure: no requests, no clock. `lock_task` carries the steps out, `hold_state` states the demand.

use std::cmp::Ordering;
use std::time::Duration;

use fastrand::Rng;
use headgate_core::clock::Moment;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::super::LeaseName;
use super::super::lease_client::LeaseError;
use super::super::timing::jittered;
use super::LockError;
use super::lock_observation::{LockObservation, ObservedLock};
use super::lock_record::{self, LockRecord};

/// A hold admits new writes for this long, so that other processes get their turn. It is enough for one change in 4 pools with
/// operations of 5 s.
const MAX_WRITE_WINDOW: Duration = Duration::from_secs(30);
/// Between reads while a writer waits and the watch does not work.
const UNWATCHED_READ_INTERVAL: Duration = Duration::from_secs(1);
/// Between reads while a writer waits and the watch works, which may be dead without an error.
const WATCHED_READ_INTERVAL: Duration = Duration::from_secs(5);
/// The wait after a failed request, or after several conflicts.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// After every so many conflicts one after another comes a wait.
const CONFLICTS_WITHOUT_DELAY: u32 = 4;
/// A leftover is released when it has been unchanged for this long.
const LEFTOVER_MIN_AGE: Duration = Duration::from_secs(10);
/// After a hold that its write window has closed, other processes have this long to acquire the Lease. It is longer than
/// cloud-controller-manager's first wait after it found the Lease held; cloud-controller-manager does not queue, it retries.
const TURN_OF_OTHERS: Duration = Duration::from_secs(6);
/// From the end of a hold's write window until it may admit writers beside an operation that is still under way. Most operations end before,
/// and cloud-controller-manager's attempt 35 s after the first then finds the Lease free.
const REOPENING_DELAY: Duration = Duration::from_secs(10);

/// What this process needs at one instant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// A writer waits for a hold.
    pub(super) has_waiters: bool,
    /// The current hold must continue.
    pub(super) keep_hold: bool,
    /// Until when a write that was dropped keeps it.
    pub(super) kept_until: Option<Instant>,
    /// Something was written to ARM in the current hold.
    pub(super) has_written: bool,
}

/// A hold of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    /// Distinguishes the holds of this process.
    pub(super) number: u64,
    /// The `acquireTime` in the Lease.
    pub(super) acquired: Timestamp,
    /// No new writes from then on.
    pub(super) closes_at: Instant,
    /// Other processes may acquire the Lease from then on.
    pub(super) expires_at: Instant,
    /// Something may have been written to ARM under headgate's name before this hold began.
    pub(super) has_written: bool,
}

impl Hold {
    /// New writes again from then on, if an operation from before it closed is still under way.
    pub(super) fn reopens_at(&self) -> Instant {
        self.closes_at + REOPENING_DELAY
    }
}

/// A request to the API server.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Read,
    Create(Box<Lease>),
    Acquire(Box<Lease>, Acquisition),
    Release(Box<Lease>),
}

/// An attempt to acquire the Lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acquisition {
    /// The `acquireTime` in the Lease.
    time: Timestamp,
    sent: Instant,
    has_written: bool,
}

/// The outcome of a request: the Lease as it is now; `None` if it does not exist.
pub(super) type Response = Result<Option<Lease>, LeaseError>;

/// What to do next.
#[derive(Debug)]
pub(super) enum Step {
    Send(Request),
    /// Wait for a change, or until then.
    Wait(Option<Instant>),
}

/// A hold under headgate's name that this process does not have.
#[derive(Clone, Copy, Debug)]
struct Leftover {
    acquired: Option<Timestamp>,
    observed: Instant,
    was_there_at_start: bool,
}

/// The state of the shared Lease, as this process knows it.
#[derive(Debug)]
pub(super) struct StateMachine {
    lease: LeaseName,
    holder: String,
    observation: LockObservation,
    /// The observation may not be the latest version.
    is_stale: bool,
    is_watched: bool,
    read_at: Option<Instant>,
    no_request_before: Option<Instant>,
    no_acquire_before: Option<Instant>,
    /// Conflicts one after another.
    conflicts: u32,
    last_error: Option<String>,
    hold: Option<Hold>,
    /// The number of the last hold.
    holds: u64,
    acquisition: Option<Acquisition>,
    leftover: Option<Leftover>,
    /// Nothing was observed yet.
    is_first_observation: bool,
    rng: Rng,
}

impl StateMachine {
    pub(super) fn new(lease: LeaseName, holder: String, rng: Rng) -> Self {
        Self {
            lease,
            holder,
            observation: LockObservation::default(),
            is_stale: true,
            is_watched: false,
            read_at: None,
            no_request_before: None,
            no_acquire_before: None,
            conflicts: 0,
            last_error: None,
            hold: None,
            holds: 0,
            acquisition: None,
            leftover: None,
            is_first_observation: true,
            rng,
        }
    }

    pub(super) fn hold(&self) -> Option<Hold> {
        self.hold
    }

    /// Whether the watch works, and no request has left it open what the Lease is now.
    pub(super) fn is_confirmed(&self) -> bool {
        self.is_watched && !self.is_stale
    }

    /// How many holds of other processes have been observed to end.
    pub(super) fn other_holds(&self) -> u64 {
        self.observation.other_holds()
    }

    /// What prevents a waiting writer from entering a hold.
    pub(super) fn obstacle(&self, now: Moment) -> LockError {
        let lease = format!("Lease {}", self.lease.name);
        if self.hold.is_some() {
            return LockError::Closed { lease };
        }
        match (self.last_error.clone(), self.observation.record()) {
            (Some(error), _) => LockError::Failed { lease, error },
            (None, Some(record)) if !record.is_acquirable_by(&self.holder, now.wall) => LockError::Held {
                lease,
                holder: record.lease.holder.clone(),
                since: record.lease.acquired,
                expires: record.lease.expires(),
            },
            _ => LockError::Timeout { lease },
        }
    }

    /// Returns what to do next. The outcome of a request goes to [`StateMachine::handle_response`].
    pub(super) fn next(&mut self, demand: Demand, now: Moment) -> Step {
        let step = self.due(demand, now);
        let request = match step {
            Step::Send(request) => request,
            Step::Wait(_) => return step,
        };
        if let Some(delayed) = self.no_request_before.filter(|delayed| now.mono < *delayed) {
            return Step::Wait(Some(delayed));
        }
        if let Request::Acquire(_, acquisition) = &request {
            self.observation.begin_acquire(&self.holder, acquisition.time);
            self.acquisition = Some(*acquisition);
        }
        Step::Send(request)
    }

    fn due(&self, demand: Demand, now: Moment) -> Step {
        if let Some(hold) = self.hold.filter(|_| demand.keep_hold && !self.is_stale) {
            // When the hold closes or may open again, the demand of the waiting writers changes.
            let changes_at = [Some(hold.closes_at), Some(hold.reopens_at()), demand.kept_until];
            let changes_at = changes_at.into_iter().flatten().filter(|at| now.mono < *at);
            return Step::Wait(changes_at.min());
        }
        let (lease, record) = match self.observation.observed() {
            ObservedLock::Unknown => return Step::Send(Request::Read),
            _ if self.is_stale => return Step::Send(Request::Read),
            ObservedLock::Missing if demand.has_waiters => {
                return Step::Send(Request::Create(Box::new(lock_record::new_lease(&self.lease))));
            }
            ObservedLock::Missing => return Step::Wait(None),
            ObservedLock::Present(lease, record) => (&**lease, record),
        };
        match (self.hold, demand.has_waiters) {
            (Some(_), _) => self.release(lease, demand.has_written),
            (None, true) => self.acquire(lease, record, now),
            (None, false) => self.release_leftover(lease, now),
        }
    }

    fn release(&self, lease: &Lease, has_written: bool) -> Step {
        let writer = has_written.then_some(self.holder.as_str());
        Step::Send(Request::Release(Box::new(lock_record::released(lease, writer))))
    }

    /// Acquires the Lease, or waits for it.
    fn acquire(&self, lease: &Lease, record: &LockRecord, now: Moment) -> Step {
        if let Some(until) = self.no_acquire_before.filter(|until| now.mono < *until) {
            return Step::Wait(Some(until));
        }
        if record.is_acquirable_by(&self.holder, now.wall) {
            let time = record.lease.next_time(now.wall);
            let acquisition = Acquisition {
                time,
                sent: now.mono,
                has_written: record.is_held_by(&self.holder) && self.has_leftover_written(),
            };
            let lease = lock_record::acquired(lease, &self.holder, time);
            return Step::Send(Request::Acquire(Box::new(lease), acquisition));
        }
        let read_at = self.read_at.unwrap_or(now.mono);
        if now.mono >= read_at {
            return Step::Send(Request::Read);
        }
        // The hold has expired one microsecond after its last instant.
        let expired_at = record.lease.expires().and_then(|expires| {
            let remaining = expires.duration_since(now.wall);
            let remaining = remaining.saturating_add(SignedDuration::from_micros(1));
            Some(now.mono + Duration::try_from(remaining).ok()?)
        });
        Step::Wait(Some(expired_at.map_or(read_at, |expired_at| expired_at.min(read_at))))
    }

    /// Releases a leftover that is due.
    fn release_leftover(&self, lease: &Lease, now: Moment) -> Step {
        let Some(leftover) = self.leftover else {
            return Step::Wait(None);
        };
        let due_at = leftover.observed + LEFTOVER_MIN_AGE;
        if leftover.was_there_at_start || self.is_from_acquisition(leftover) || now.mono >= due_at {
            self.release(lease, self.has_leftover_written())
        } else {
            Step::Wait(Some(due_at))
        }
    }

    /// Whether a leftover is from this process's last attempt to acquire the Lease, whose response was lost.
    fn is_from_acquisition(&self, leftover: Leftover) -> bool {
        self.acquisition
            .is_some_and(|acquisition| leftover.acquired == Some(acquisition.time))
    }

    /// Whether something may have been written to ARM in the leftover. It may if its history is unknown.
    fn has_leftover_written(&self) -> bool {
        let acquisition = self
            .leftover
            .filter(|leftover| self.is_from_acquisition(*leftover))
            .and(self.acquisition);
        acquisition.is_none_or(|acquisition| acquisition.has_written)
    }

    /// Handles what the watch showed; `None` means that the Lease does not exist.
    pub(super) fn handle_watch(&mut self, lease: Option<Lease>, now: Moment) {
        self.is_watched = true;
        self.last_error = None;
        match lease {
            Some(lease) => match self.observation.observe_watch(lease) {
                Ordering::Greater => {
                    self.handle_observation(now);
                    // An API server that sends changes can be asked.
                    self.no_request_before = None;
                }
                Ordering::Equal => {}
                // The watch lags, or etcd was restored from a backup.
                Ordering::Less => self.is_stale = true,
            },
            // It has no version, so it may be out of date.
            None => self.is_stale = true,
        }
    }

    /// Handles an error of the watch.
    pub(super) fn handle_watch_error(&mut self, now: Moment) {
        if std::mem::take(&mut self.is_watched) {
            self.read_at = Some(now.mono + jittered(&mut self.rng, UNWATCHED_READ_INTERVAL));
        }
    }

    /// Handles the outcome of a request.
    pub(super) fn handle_response(&mut self, request: &Request, response: Response, now: Moment) {
        match response {
            Ok(lease) => {
                self.last_error = None;
                if !matches!(request, Request::Read) {
                    self.conflicts = 0;
                }
                self.observation.observe_response(lease);
                match request {
                    Request::Acquire(lease, acquisition) => self.begin_hold(lease, *acquisition),
                    Request::Release(_) => {
                        let was_closed = self.hold.is_some_and(|hold| now.mono >= hold.closes_at);
                        self.no_acquire_before = was_closed.then_some(now.mono + TURN_OF_OTHERS);
                        self.hold = None;
                    }
                    Request::Read | Request::Create(_) => {}
                }
                self.handle_observation(now);
            }
            Err(LeaseError::Conflict) => {
                self.is_stale = true;
                if matches!(request, Request::Acquire(..)) {
                    self.acquisition = None;
                    self.observation.cancel_acquire();
                }
                self.conflicts += 1;
                if self.conflicts.is_multiple_of(CONFLICTS_WITHOUT_DELAY) {
                    self.no_request_before = Some(now.mono + jittered(&mut self.rng, RETRY_DELAY));
                }
            }
            Err(LeaseError::Refused(error) | LeaseError::NoResponse(error)) => {
                self.is_stale = true;
                self.last_error = Some(error);
                self.no_request_before = Some(now.mono + jittered(&mut self.rng, RETRY_DELAY));
            }
        }
    }

    fn begin_hold(&mut self, lease: &Lease, acquisition: Acquisition) {
        self.holds += 1;
        let seconds = LockRecord::from_lease(lease).lease.duration_seconds;
        let duration = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        self.hold = Some(Hold {
            number: self.holds,
            acquired: acquisition.time,
            // A write that has begun must end before the hold expires.
            closes_at: acquisition.sent + MAX_WRITE_WINDOW.min(duration / 2),
            expires_at: acquisition.sent + duration,
            has_written: acquisition.has_written,
        });
    }

    /// Draws the conclusions from an observation that is the latest version, as far as is known.
    fn handle_observation(&mut self, now: Moment) {
        self.is_stale = false;
        let interval = if self.is_watched {
            WATCHED_READ_INTERVAL
        } else {
            UNWATCHED_READ_INTERVAL
        };
        self.read_at = Some(now.mono + jittered(&mut self.rng, interval));
        let record = self
            .observation
            .record()
            .filter(|record| record.is_held_by(&self.holder));
        let acquired = record.map(|record| record.lease.acquired);
        self.hold = self.hold.filter(|hold| acquired == Some(Some(hold.acquired)));
        let was_there_at_start = std::mem::take(&mut self.is_first_observation);
        self.leftover = acquired
            .filter(|_| self.hold.is_none())
            .map(|acquired| match self.leftover {
                Some(leftover) if leftover.acquired == acquired => leftover,
                _ => Leftover {
                    acquired,
                    observed: now.mono,
                    was_there_at_start,
                },
            });
    }
}

#[cfg(test)]
mod tests;
