//! The writers of this process that are in a hold of the shared Lease, and those that wait for one.
//!
//! Invariants: no writer enters a closed hold, but 10 s later while an operation that began before it closed is still under way, because
//! that keeps the Lease anyway. Operations that begin later count for nobody, so a hold ends at most one write after the last early one. A
//! hold without writers is closed for good at the instant at which the lock task finds it empty. A writer that is dropped has left, because a
//! guard counts it; one that is dropped in a write leaves later.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::LockError;
use super::state_machine::{Demand, Hold};

/// How long a hold is kept after its writer was dropped during a write: the request may still arrive.
const DROPPED_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A closed hold admits nobody whose write could not end before others may acquire the Lease: two minutes for a read of the pool, and as much
/// for the operation.
const MIN_TIME_TO_EXPIRY: Duration = Duration::from_mins(4);
/// A write ends so long before the hold expires, by its deadline.
const EXPIRY_MARGIN: Duration = Duration::from_secs(30);

/// The state of the current hold, shared by the writers and the lock task.
#[derive(Debug)]
pub(super) struct HoldState {
    state: Mutex<State>,
    /// Wakes the lock task.
    changed: Notify,
    other_holds: watch::Sender<u64>,
    /// The writes under way.
    writes: watch::Sender<usize>,
}

#[derive(Debug)]
struct State {
    waiting: usize,
    /// The hold that writers can enter, or that still has some.
    entered: Option<EnteredHold>,
    /// Something was written to ARM in the hold that was entered last.
    has_written: bool,
    /// The hold that is not released yet.
    unreleased: Option<Hold>,
    /// No request and no watch raises a doubt that the Lease is this process's.
    is_confirmed: bool,
    obstacle: LockError,
}

#[derive(Debug)]
struct EnteredHold {
    number: u64,
    closes_at: Instant,
    writers: usize,
    /// The operations under way that began before the hold closed.
    early_operations: usize,
    /// For a write that was dropped.
    kept_until: Option<Instant>,
}

impl State {
    /// The hold that was entered, if new writes may begin in it.
    fn open_hold(&mut self, now: Instant) -> Option<&mut EnteredHold> {
        let may_reopen = |hold: Hold| hold.reopens_at() <= now && now + MIN_TIME_TO_EXPIRY <= hold.expires_at;
        let admits_late = self.is_confirmed && self.unreleased.is_some_and(may_reopen);
        let is_open =
            |entered: &&mut EnteredHold| now < entered.closes_at || (admits_late && entered.early_operations > 0);
        self.entered.as_mut().filter(is_open)
    }
}

/// A writer that waits for a hold, until this is dropped.
pub(super) struct Waiter<'a>(&'a HoldState);

impl HoldState {
    pub(super) fn new(obstacle: LockError) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: 0,
                entered: None,
                has_written: false,
                unreleased: None,
                is_confirmed: false,
                obstacle,
            }),
            changed: Notify::new(),
            other_holds: watch::Sender::new(0),
            writes: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No section that holds the mutex can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a writer that waits.
    pub(super) fn wait(&self) -> Waiter<'_> {
        self.state().waiting += 1;
        self.changed.notify_one();
        Waiter(self)
    }

    /// What prevents the waiting writers from entering.
    pub(super) fn obstacle(&self) -> LockError {
        self.state().obstacle.clone()
    }

    /// Whether new writes may begin in a hold.
    pub(super) fn accepts_writes(&self, hold: u64, now: Instant) -> bool {
        let mut state = self.state();
        state.open_hold(now).is_some_and(|entered| entered.number == hold)
    }

    /// Whether this process still has a hold, closed or not, as far as is known.
    pub(super) fn is_held(&self, hold: u64, now: Instant) -> bool {
        let unreleased = self.state().unreleased;
        unreleased.is_some_and(|unreleased| unreleased.number == hold && now < unreleased.expires_at)
    }

    /// Until when a write that begins now may take; `None` if the hold is lost or expired, which [`Self::is_held`] says.
    pub(super) fn write_deadline(&self, hold: u64, now: Instant) -> Option<Instant> {
        let unreleased = self.state().unreleased?;
        let is_held = unreleased.number == hold && now < unreleased.expires_at;
        unreleased.expires_at.checked_sub(EXPIRY_MARGIN).filter(|_| is_held)
    }

    /// Records that something was written to ARM in a hold.
    pub(super) fn mark_written(&self, hold: u64) {
        let mut state = self.state();
        if state.entered.as_ref().is_some_and(|entered| entered.number == hold) {
            state.has_written = true;
        }
    }

    /// Records that a write to ARM begins in a hold.
    pub(super) fn begin_write(&self, hold: u64) {
        self.mark_written(hold);
        self.writes.send_modify(|writes| *writes += 1);
    }

    /// Records that an operation begins with its write, and returns whether the hold is not closed.
    pub(super) fn begin_operation(&self, hold: u64, now: Instant) -> bool {
        let mut state = self.state();
        let is_early = |entered: &&mut EnteredHold| entered.number == hold && now < entered.closes_at;
        let Some(entered) = state.entered.as_mut().filter(is_early) else {
            return false;
        };
        entered.early_operations += 1;
        true
    }

    /// Records the end of an operation that began before the hold closed.
    pub(super) fn end_early_operation(&self, hold: u64) {
        let mut state = self.state();
        if let Some(entered) = state.entered.as_mut().filter(|entered| entered.number == hold) {
            entered.early_operations = entered.early_operations.saturating_sub(1);
        }
    }

    /// Records that a write has ended, or was dropped.
    pub(super) fn end_write(&self) {
        self.writes.send_modify(|writes| *writes -= 1);
    }

    /// The number of writes under way.
    pub(super) fn writes(&self) -> watch::Receiver<usize> {
        self.writes.subscribe()
    }

    /// Keeps a hold for a write that was dropped.
    pub(super) fn keep(&self, hold: u64, now: Instant) {
        let mut state = self.state();
        if let Some(entered) = state.entered.as_mut().filter(|entered| entered.number == hold) {
            entered.kept_until = Some(now + DROPPED_WRITE_TIMEOUT);
        }
    }

    /// Removes a writer from a hold, and returns whether it was the last one.
    pub(super) fn leave(&self, hold: u64) -> bool {
        let mut state = self.state();
        let Some(entered) = state.entered.as_mut().filter(|entered| entered.number == hold) else {
            return false;
        };
        entered.writers = entered.writers.saturating_sub(1);
        let is_last = entered.writers == 0;
        drop(state);
        self.changed.notify_one();
        is_last
    }

    /// Whether a hold is released, or is in use again.
    pub(super) fn is_released_or_in_use(&self, hold: u64) -> bool {
        let state = self.state();
        let is_in_use = state
            .entered
            .as_ref()
            .is_some_and(|entered| entered.number == hold && entered.writers > 0);
        is_in_use || state.unreleased.is_none_or(|unreleased| unreleased.number != hold)
    }

    /// The number of holds of other processes that have ended.
    pub(super) fn other_holds(&self) -> watch::Receiver<u64> {
        self.other_holds.subscribe()
    }

    /// Waits for a writer to come or leave.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The demand at this instant. A hold that no writer is in and none can enter is closed for good.
    pub(super) fn demand(&self, now: Instant) -> Demand {
        let mut state = self.state();
        let has_waiters = state.waiting > 0;
        let entered = state.entered.as_ref();
        let kept_until = entered
            .and_then(|entered| entered.kept_until)
            .filter(|until| now < *until);
        let is_used = |entered: &EnteredHold| entered.writers > 0 || (has_waiters && now < entered.closes_at);
        let keep_hold = kept_until.is_some() || entered.is_some_and(is_used);
        if !keep_hold {
            state.entered = None;
        }
        Demand {
            has_waiters,
            keep_hold,
            kept_until,
            has_written: state.has_written,
        }
    }

    /// Publishes the current hold, whether nothing raises a doubt about it, the obstacle for waiting writers, and the number of other
    /// processes' holds. Returns whether a hold with writers in it was lost.
    pub(super) fn publish(
        &self,
        hold: Option<Hold>,
        is_confirmed: bool,
        obstacle: LockError,
        other_holds: u64,
    ) -> bool {
        let mut state = self.state();
        let mut is_lost = false;
        state.is_confirmed = is_confirmed;
        let before = std::mem::replace(&mut state.unreleased, hold);
        state.obstacle = obstacle;
        if before != hold {
            is_lost = state.entered.take().is_some_and(|entered| entered.writers > 0);
            if let Some(hold) = hold {
                state.has_written = hold.has_written;
                state.entered = Some(EnteredHold {
                    number: hold.number,
                    closes_at: hold.closes_at,
                    writers: 0,
                    early_operations: 0,
                    kept_until: None,
                });
            }
        }
        drop(state);
        self.other_holds
            .send_if_modified(|known| std::mem::replace(known, other_holds) != other_holds);
        is_lost
    }
}

impl Waiter<'_> {
    /// Enters the hold that accepts writes, if there is one, and returns its number.
    pub(super) fn enter(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.state();
        let entered = state.open_hold(now)?;
        entered.writers += 1;
        Some(entered.number)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use jiff::Timestamp;

    use super::*;

    fn hold(number: u64, closes_at: Instant) -> Hold {
        Hold {
            number,
            acquired: Timestamp::UNIX_EPOCH,
            closes_at,
            expires_at: closes_at + Duration::from_mins(14),
            has_written: false,
        }
    }

    fn obstacle() -> LockError {
        LockError::Timeout { lease: String::new() }
    }

    /// A hold that closes in a minute, now, and when it closes.
    fn opened() -> (HoldState, Instant, Instant) {
        let (holds, now) = (HoldState::new(obstacle()), Instant::now());
        let closes = now + Duration::from_mins(1);
        holds.publish(Some(hold(1, closes)), true, obstacle(), 0);
        (holds, now, closes)
    }

    fn demand(holds: &HoldState, now: Instant) -> (bool, bool, bool) {
        let demand = holds.demand(now);
        (demand.has_waiters, demand.keep_hold, demand.has_written)
    }

    #[test]
    fn many_share_a_hold_and_the_last_one_closes_it() {
        let (holds, now) = (HoldState::new(obstacle()), Instant::now());
        let closes = now + Duration::from_mins(1);
        assert!(holds.changed().now_or_never().is_none(), "no writer has come");
        let (one, two) = (holds.wait(), holds.wait());
        assert!(holds.changed().now_or_never().is_some());
        assert_eq!((one.enter(now), demand(&holds, now)), (None, (true, false, false)));
        holds.publish(Some(hold(1, closes)), true, obstacle(), 0);
        assert_eq!(demand(&holds, now), (true, true, false), "for the waiting writers");
        assert_eq!((one.enter(now), two.enter(now)), (Some(1), Some(1)));
        assert!(holds.accepts_writes(1, now) && !holds.accepts_writes(2, now));
        drop((one, two));
        assert!(!holds.leave(1) && holds.is_released_or_in_use(1), "one is still in");
        holds.mark_written(1);
        assert_eq!(demand(&holds, now), (false, true, true));
        assert!(holds.leave(1));
        // A third comes before the lock task looks.
        let three = holds.wait();
        assert_eq!(three.enter(now), Some(1));
        assert!(holds.is_released_or_in_use(1), "the writer that left need not wait");
        drop(three);
        assert!(holds.leave(1) && !holds.is_released_or_in_use(1));
        assert_eq!(demand(&holds, now), (false, false, true), "closed for good");
        let late = holds.wait();
        assert_eq!((late.enter(now), holds.accepts_writes(1, now)), (None, false));
        assert_eq!(demand(&holds, now), (true, false, true), "not opened again");
        holds.publish(None, true, obstacle(), 0);
        assert!(holds.is_released_or_in_use(1));
        holds.publish(Some(hold(2, closes)), true, obstacle(), 0);
        assert_eq!((late.enter(now), demand(&holds, now)), (Some(2), (true, true, false)));
    }

    #[test]
    fn no_writer_enters_an_old_hold() {
        let (holds, now, closes) = opened();
        let one = holds.wait();
        assert_eq!(one.enter(now), Some(1));
        drop(one);
        let two = holds.wait();
        assert_eq!((two.enter(closes), holds.accepts_writes(1, closes)), (None, false));
        assert_eq!(demand(&holds, closes), (true, true, false), "one is still in");
        holds.leave(1);
        assert_eq!(demand(&holds, closes), (true, false, false));
        drop(two);
        assert_eq!(demand(&holds, closes), (false, false, false));
    }

    #[test]
    fn a_closed_hold_admits_writers_while_an_operation_from_before_is_under_way() {
        let now = Instant::now();
        let closes = now + Duration::from_mins(1);
        let reopens = hold(1, closes).reopens_at();
        let last = hold(1, closes).expires_at - MIN_TIME_TO_EXPIRY;
        let moment = Duration::from_millis(1);
        for (began, is_confirmed, at, is_admitted) in [
            (closes - moment, true, closes, false),
            (closes - moment, true, reopens - moment, false),
            (closes - moment, true, reopens, true),
            (closes, true, reopens, false),
            (closes - moment, false, reopens, false),
            (closes - moment, true, last, true),
            (closes - moment, true, last + moment, false),
        ] {
            let what = format!("{:?} {is_confirmed} {:?}", began - now, at - now);
            let holds = HoldState::new(obstacle());
            holds.publish(Some(hold(1, closes)), is_confirmed, obstacle(), 0);
            assert_eq!([(); 3].map(|()| holds.wait().enter(now)), [Some(1); 3]);
            assert!(!holds.begin_operation(2, began), "of another hold");
            assert_eq!(holds.begin_operation(1, began), began < closes);
            let late = holds.wait();
            assert_eq!(holds.accepts_writes(1, at), is_admitted, "{what}");
            assert_eq!(late.enter(at), is_admitted.then_some(1), "{what}");
            if !is_admitted {
                continue;
            }
            // One that begins later opens it for nobody.
            assert!(holds.begin_operation(1, closes - moment) && !holds.begin_operation(1, at));
            holds.end_early_operation(2);
            holds.end_early_operation(1);
            assert!(holds.accepts_writes(1, at), "another one is under way");
            holds.end_early_operation(1);
            assert_eq!((late.enter(at), holds.accepts_writes(1, at)), (None, false), "{what}");
            drop(late);
            for is_last in [false, false, false, true] {
                assert!(demand(&holds, at).1, "{what}: one is still in");
                assert_eq!(holds.leave(1), is_last);
            }
            assert_eq!(demand(&holds, at), (false, false, false));
        }
    }

    #[test]
    fn a_write_ends_before_the_hold_expires() {
        let (holds, now) = (HoldState::new(obstacle()), Instant::now());
        let expires = hold(1, now).expires_at;
        assert_eq!(holds.write_deadline(1, now), None);
        holds.publish(Some(hold(1, now)), true, obstacle(), 0);
        let deadlines = [(1, now), (2, now), (1, expires)].map(|(number, now)| holds.write_deadline(number, now));
        assert_eq!(deadlines, [Some(expires - EXPIRY_MARGIN), None, None]);
    }

    #[test]
    fn a_closed_hold_is_held_until_it_expires_or_is_lost() {
        let (holds, now, closes) = opened();
        let expires = hold(1, closes).expires_at;
        assert_eq!(holds.wait().enter(now), Some(1));
        assert!(holds.is_held(1, closes) && !holds.is_held(2, now));
        assert!(holds.is_held(1, expires - Duration::from_millis(1)) && !holds.is_held(1, expires));
        // Released by the last writer, and acquired again.
        holds.leave(1);
        let _ = holds.demand(now);
        assert!(holds.is_held(1, now), "not released yet");
        holds.publish(Some(hold(2, closes)), true, obstacle(), 0);
        assert!(!holds.is_held(1, now) && holds.is_held(2, now));
        let is_lost = holds.publish(None, true, obstacle(), 0);
        assert!(!is_lost && !holds.is_held(2, now), "no writer was in it");
    }

    #[test]
    fn a_hold_is_kept_for_a_write_that_was_dropped() {
        let (holds, now, _) = opened();
        assert_eq!(holds.wait().enter(now), Some(1));
        let writes = holds.writes();
        holds.begin_write(1);
        assert_eq!((*writes.borrow(), demand(&holds, now)), (1, (false, true, true)));
        holds.keep(1, now);
        holds.end_write();
        assert!(holds.leave(1));
        assert_eq!((*writes.borrow(), demand(&holds, now)), (0, (false, true, true)));
        let kept_until = holds.demand(now).kept_until.unwrap();
        assert_eq!(kept_until, now + DROPPED_WRITE_TIMEOUT);
        // The others go on meanwhile.
        assert_eq!(holds.wait().enter(now), Some(1));
        assert!(holds.leave(1));
        assert_eq!(demand(&holds, kept_until), (false, false, true));
        assert!(holds.is_held(1, kept_until), "until the release");
        holds.keep(1, now);
        assert_eq!(demand(&holds, now), (false, false, true), "closed for good");
    }

    #[test]
    fn writers_of_a_lost_hold_do_not_count_in_the_next() {
        let (holds, now, closes) = opened();
        assert_eq!(holds.wait().enter(now), Some(1));
        let mut other_holds = holds.other_holds();
        assert!(holds.publish(None, true, obstacle(), 3), "the loss is reported");
        assert!(other_holds.has_changed().unwrap());
        assert_eq!(*other_holds.borrow_and_update(), 3);
        assert!(!holds.accepts_writes(1, now) && holds.is_released_or_in_use(1));
        holds.publish(Some(hold(2, closes)), true, obstacle(), 3);
        assert!(!other_holds.has_changed().unwrap());
        assert_eq!(holds.wait().enter(now), Some(2));
        holds.mark_written(1);
        assert!(!holds.leave(1));
        assert_eq!(demand(&holds, now), (false, true, false));
    }
}
