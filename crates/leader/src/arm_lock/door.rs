//! Who of this process is in a hold, and who waits for one.
//!
//! Invariants: nobody enters a hold that is shut, and a hold is shut for good in the same instant in which nobody is
//! found in it; whoever goes away without a word is counted out by his guard.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::keeper::{Hold, Obstacle, Want};

/// The door of the present hold, which many come to and one keeps.
#[derive(Debug)]
pub(super) struct Door {
    state: Mutex<State>,
    /// Wakes the keeper.
    knocks: Notify,
    others: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    waiting: usize,
    /// The hold that may be entered, or is not empty yet.
    open: Option<Open>,
    /// In the hold that was open last.
    wrote: bool,
    /// The hold that is not given back yet, and when it expires.
    held: Option<(u64, Instant)>,
    obstacle: Obstacle,
}

#[derive(Debug)]
struct Open {
    number: u64,
    closes_at: Instant,
    inside: usize,
}

/// One who waits; waits no more once this is dropped.
pub(super) struct Waiting<'door>(&'door Door);

impl Door {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                waiting: 0,
                open: None,
                wrote: false,
                held: None,
                obstacle: Obstacle::NotYet,
            }),
            knocks: Notify::new(),
            others: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues up.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.state().waiting += 1;
        self.knocks.notify_one();
        Waiting(self)
    }

    /// What is in the way of those who wait.
    pub(super) fn obstacle(&self) -> Obstacle {
        self.state().obstacle.clone()
    }

    pub(super) fn is_open(&self, number: u64, now: Instant) -> bool {
        let open = &self.state().open;
        open.as_ref()
            .is_some_and(|open| open.number == number && now < open.closes_at)
    }

    /// Whether a hold is still ours, open or not, as far as is known.
    pub(super) fn is_held(&self, number: u64, now: Instant) -> bool {
        let held = self.state().held;
        held.is_some_and(|(held, expires_at)| held == number && now < expires_at)
    }

    /// Something was written in a hold.
    pub(super) fn wrote(&self, number: u64) {
        let mut state = self.state();
        if state.open.as_ref().is_some_and(|open| open.number == number) {
            state.wrote = true;
        }
    }

    /// One leaves a hold; whether he was the last.
    pub(super) fn leave(&self, number: u64) -> bool {
        let mut state = self.state();
        let Some(open) = state.open.as_mut().filter(|open| open.number == number) else {
            return false;
        };
        open.inside = open.inside.saturating_sub(1);
        let last = open.inside == 0;
        drop(state);
        self.knocks.notify_one();
        last
    }

    /// Whether a hold is not to be given back any more, or was.
    pub(super) fn is_settled(&self, number: u64) -> bool {
        let state = self.state();
        let again = state
            .open
            .as_ref()
            .is_some_and(|open| open.number == number && open.inside > 0);
        again || state.held.is_none_or(|(held, _)| held != number)
    }

    /// How often others gave the Lease back.
    pub(super) fn others(&self) -> watch::Receiver<u64> {
        self.others.subscribe()
    }

    /// Waits until somebody came or went.
    pub(super) async fn knocked(&self) {
        self.knocks.notified().await;
    }

    /// What is wanted now. A hold that nobody is in, nor can enter, is shut.
    pub(super) fn want(&self, now: Instant) -> Want {
        let mut state = self.state();
        let waiting = state.waiting > 0;
        let kept = state
            .open
            .as_ref()
            .is_some_and(|open| open.inside > 0 || (waiting && now < open.closes_at));
        if !kept {
            state.open = None;
        }
        Want {
            waiting,
            kept,
            wrote: state.wrote,
        }
    }

    /// The keeper says what it holds, what is in the way, and how often others had the Lease; whether a hold that
    /// somebody is in was lost.
    pub(super) fn publish(&self, hold: Option<Hold>, obstacle: Obstacle, others: u64) -> bool {
        let mut state = self.state();
        let mut lost = false;
        let before = state.held;
        state.obstacle = obstacle;
        state.held = hold.map(|hold| (hold.number, hold.expires_at));
        if before != state.held {
            lost = state.open.take().is_some_and(|open| open.inside > 0);
            if let Some(hold) = hold {
                state.wrote = hold.wrote;
                state.open = Some(Open {
                    number: hold.number,
                    closes_at: hold.closes_at,
                    inside: 0,
                });
            }
        }
        drop(state);
        self.others
            .send_if_modified(|known| std::mem::replace(known, others) != others);
        lost
    }
}

impl Waiting<'_> {
    /// Enters the hold that is open, if one is; its number.
    pub(super) fn enter(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.state();
        let open = state.open.as_mut().filter(|open| now < open.closes_at)?;
        open.inside += 1;
        Some(open.number)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
        self.0.knocks.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;

    fn hold(number: u64, closes_at: Instant) -> Hold {
        Hold {
            number,
            acquired: Timestamp::UNIX_EPOCH,
            closes_at,
            expires_at: closes_at + Duration::from_mins(14),
            wrote: false,
        }
    }

    fn wants(door: &Door, now: Instant) -> (bool, bool, bool) {
        let want = door.want(now);
        (want.waiting, want.kept, want.wrote)
    }

    #[test]
    fn many_share_a_hold_and_the_last_one_shuts_it() {
        let (door, now) = (Door::new(), Instant::now());
        let closes = now + Duration::from_mins(1);
        let (one, two) = (door.wait(), door.wait());
        assert_eq!((one.enter(now), wants(&door, now)), (None, (true, false, false)));
        door.publish(Some(hold(1, closes)), Obstacle::Closed, 0);
        assert_eq!(wants(&door, now), (true, true, false), "for those who wait");
        assert_eq!((one.enter(now), two.enter(now)), (Some(1), Some(1)));
        drop((one, two));
        assert!(!door.leave(1) && door.is_settled(1), "one is in");
        door.wrote(1);
        assert_eq!(wants(&door, now), (false, true, true));
        assert!(door.leave(1));
        // A third comes before anybody looks.
        let three = door.wait();
        assert_eq!(three.enter(now), Some(1));
        assert!(door.is_settled(1), "who left need not wait for him");
        drop(three);
        assert!(door.leave(1) && !door.is_settled(1));
        assert_eq!(wants(&door, now), (false, false, true), "shut");
        let late = door.wait();
        assert_eq!((late.enter(now), door.is_open(1, now)), (None, false));
        assert_eq!(wants(&door, now), (true, false, true), "not opened again");
        door.publish(None, Obstacle::NotYet, 0);
        assert!(door.is_settled(1));
        door.publish(Some(hold(2, closes)), Obstacle::Closed, 0);
        assert_eq!((late.enter(now), wants(&door, now)), (Some(2), (true, true, false)));
    }

    #[test]
    fn a_hold_that_is_old_is_entered_by_nobody() {
        let (door, now) = (Door::new(), Instant::now());
        let closes = now + Duration::from_mins(1);
        door.publish(Some(hold(1, closes)), Obstacle::Closed, 0);
        let one = door.wait();
        assert_eq!(one.enter(now), Some(1));
        drop(one);
        let two = door.wait();
        assert_eq!((two.enter(closes), door.is_open(1, closes)), (None, false));
        assert_eq!(wants(&door, closes), (true, true, false), "one is still in");
        door.leave(1);
        assert_eq!(wants(&door, closes), (true, false, false));
        drop(two);
        assert_eq!(wants(&door, closes), (false, false, false));
    }

    #[test]
    fn a_hold_is_ours_beyond_its_closing_until_it_expires_or_is_lost() {
        let (door, now) = (Door::new(), Instant::now());
        let closes = now + Duration::from_mins(1);
        let expires = hold(1, closes).expires_at;
        door.publish(Some(hold(1, closes)), Obstacle::Closed, 0);
        assert_eq!(door.wait().enter(now), Some(1));
        assert!(door.is_held(1, closes) && !door.is_held(2, now));
        assert!(door.is_held(1, expires - Duration::from_millis(1)) && !door.is_held(1, expires));
        // Given back by the last, and taken anew.
        door.leave(1);
        let _ = door.want(now);
        assert!(door.is_held(1, now), "not given back yet");
        door.publish(Some(hold(2, closes)), Obstacle::Closed, 0);
        assert!(!door.is_held(1, now) && door.is_held(2, now));
        door.publish(None, Obstacle::NotYet, 0);
        assert!(!door.is_held(2, now));
    }

    #[test]
    fn a_hold_that_was_lost_counts_nobody_of_the_next() {
        let (door, now) = (Door::new(), Instant::now());
        let closes = now + Duration::from_mins(1);
        door.publish(Some(hold(1, closes)), Obstacle::Closed, 0);
        assert_eq!(door.wait().enter(now), Some(1));
        assert!(door.publish(None, Obstacle::NotYet, 3), "and that is told");
        assert_eq!(*door.others().borrow(), 3);
        assert!(!door.is_open(1, now) && door.is_settled(1));
        door.publish(Some(hold(2, closes)), Obstacle::Closed, 3);
        assert_eq!(door.wait().enter(now), Some(2));
        door.wrote(1);
        assert!(!door.leave(1));
        assert_eq!(wants(&door, now), (false, true, false));
    }
}
