//! The writers of this process that are in a hold of the shared Lease, and those that wait for one.
//!
//! Invariants: no writer enters a closed hold. A hold without writers is closed for good at the instant at which the lock task
//! finds it empty. A writer that is dropped has left, because a guard counts it; one that is dropped in a write leaves later.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::state_machine::{Demand, Hold, Obstacle};

/// How long a hold is kept after its writer was dropped during a write: the request may still arrive.
const DROPPED_WRITE_TIMEOUT: Duration = Duration::from_secs(10);

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
    obstacle: Obstacle,
}

#[derive(Debug)]
struct EnteredHold {
    number: u64,
    closes_at: Instant,
    writers: usize,
    /// For a write that was dropped.
    kept_until: Option<Instant>,
}

/// A writer that waits for a hold, until this is dropped.
pub(super) struct Waiter<'a>(&'a HoldState);

impl HoldState {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                waiting: 0,
                entered: None,
                has_written: false,
                unreleased: None,
                obstacle: Obstacle::Pending,
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
    pub(super) fn obstacle(&self) -> Obstacle {
        self.state().obstacle.clone()
    }

    /// Whether new writes may begin in a hold.
    pub(super) fn accepts_writes(&self, hold: u64, now: Instant) -> bool {
        let entered = &self.state().entered;
        entered
            .as_ref()
            .is_some_and(|entered| entered.number == hold && now < entered.closes_at)
    }

    /// Whether this process still has a hold, closed or not, as far as is known.
    pub(super) fn is_held(&self, hold: u64, now: Instant) -> bool {
        let unreleased = self.state().unreleased;
        unreleased.is_some_and(|unreleased| unreleased.number == hold && now < unreleased.expires_at)
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

    /// Publishes the current hold, the obstacle for waiting writers, and the number of other processes' holds. Returns whether
    /// a hold with writers in it was lost.
    pub(super) fn publish(&self, hold: Option<Hold>, obstacle: Obstacle, other_holds: u64) -> bool {
        let mut state = self.state();
        let mut is_lost = false;
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
        let entered = state.entered.as_mut().filter(|entered| now < entered.closes_at)?;
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

    fn demand(holds: &HoldState, now: Instant) -> (bool, bool, bool) {
        let demand = holds.demand(now);
        (demand.has_waiters, demand.keep_hold, demand.has_written)
    }

    #[test]
    fn many_share_a_hold_and_the_last_one_closes_it() {
        let (holds, now) = (HoldState::new(), Instant::now());
        let closes = now + Duration::from_mins(1);
        assert!(holds.changed().now_or_never().is_none(), "no writer has come");
        let (one, two) = (holds.wait(), holds.wait());
        assert!(holds.changed().now_or_never().is_some());
        assert_eq!((one.enter(now), demand(&holds, now)), (None, (true, false, false)));
        holds.publish(Some(hold(1, closes)), Obstacle::Closed, 0);
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
        holds.publish(None, Obstacle::Pending, 0);
        assert!(holds.is_released_or_in_use(1));
        holds.publish(Some(hold(2, closes)), Obstacle::Closed, 0);
        assert_eq!((late.enter(now), demand(&holds, now)), (Some(2), (true, true, false)));
    }

    #[test]
    fn no_writer_enters_an_old_hold() {
        let (holds, now) = (HoldState::new(), Instant::now());
        let closes = now + Duration::from_mins(1);
        holds.publish(Some(hold(1, closes)), Obstacle::Closed, 0);
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
    fn a_closed_hold_is_held_until_it_expires_or_is_lost() {
        let (holds, now) = (HoldState::new(), Instant::now());
        let closes = now + Duration::from_mins(1);
        let expires = hold(1, closes).expires_at;
        holds.publish(Some(hold(1, closes)), Obstacle::Closed, 0);
        assert_eq!(holds.wait().enter(now), Some(1));
        assert!(holds.is_held(1, closes) && !holds.is_held(2, now));
        assert!(holds.is_held(1, expires - Duration::from_millis(1)) && !holds.is_held(1, expires));
        // Released by the last writer, and acquired again.
        holds.leave(1);
        let _ = holds.demand(now);
        assert!(holds.is_held(1, now), "not released yet");
        holds.publish(Some(hold(2, closes)), Obstacle::Closed, 0);
        assert!(!holds.is_held(1, now) && holds.is_held(2, now));
        let is_lost = holds.publish(None, Obstacle::Pending, 0);
        assert!(!is_lost && !holds.is_held(2, now), "no writer was in it");
    }

    #[test]
    fn a_hold_is_kept_for_a_write_that_was_dropped() {
        let (holds, now) = (HoldState::new(), Instant::now());
        let closes = now + Duration::from_mins(1);
        holds.publish(Some(hold(1, closes)), Obstacle::Closed, 0);
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
        let (holds, now) = (HoldState::new(), Instant::now());
        let closes = now + Duration::from_mins(1);
        holds.publish(Some(hold(1, closes)), Obstacle::Closed, 0);
        assert_eq!(holds.wait().enter(now), Some(1));
        let mut other_holds = holds.other_holds();
        assert!(holds.publish(None, Obstacle::Pending, 3), "the loss is reported");
        assert_eq!(
            (other_holds.has_changed().unwrap(), *other_holds.borrow_and_update()),
            (true, 3)
        );
        assert!(!holds.accepts_writes(1, now) && holds.is_released_or_in_use(1));
        holds.publish(Some(hold(2, closes)), Obstacle::Closed, 3);
        assert!(!other_holds.has_changed().unwrap());
        assert_eq!(holds.wait().enter(now), Some(2));
        holds.mark_written(1);
        assert!(!holds.leave(1));
        assert_eq!(demand(&holds, now), (false, true, false));
    }
}
