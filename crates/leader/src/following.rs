//! One who does not lead: when to look at the Lease, and what to do about what was seen.
//!
//! Invariant: the looks of all together come at the rate that the number of candidates sets, whatever fails; a
//! Lease is written to only when it may be taken.

use std::time::Duration;

use headgate_clock::Moment;
use tokio::time::Instant;

use super::candidate::{Action, Candidate, Circumstances, Event, Phase};
use super::leading::Leading;
use super::record::Record;

/// When to look again.
#[derive(Clone, Debug)]
pub(super) struct Following {
    /// The next look in any case.
    look_at: Instant,
    looked_at: Instant,
    /// Whether what was seen then has not been acted on yet: a look sooner may be due.
    pending: bool,
    /// No look before this.
    rest_until: Instant,
}

impl Following {
    /// The next look comes at `look_at`.
    pub(super) fn until(look_at: Instant, now: Instant) -> Self {
        Self {
            look_at,
            looked_at: now,
            pending: false,
            rest_until: now,
        }
    }
}

impl Candidate {
    /// Waits for the next look, or looks.
    pub(super) fn follow(&mut self, following: Following, here: Circumstances, now: Moment) -> (Phase, Action) {
        if here.stopping {
            return (Phase::Done, Action::Done);
        }
        let asking = self.asking(here.signalled);
        let one_more = self
            .sight
            .one_more_look(asking, self.interval(), following.looked_at)
            .filter(|_| following.pending);
        let look_at = one_more
            .map_or(following.look_at, |look| {
                look.max(following.looked_at).min(following.look_at)
            })
            .max(following.rest_until);
        if now.mono < look_at {
            return (Phase::Following(following), Action::Wait(Some(look_at)));
        }
        let regular = following.look_at;
        (Phase::Looking { regular }, self.read(now))
    }

    /// Follows after a term, or what came of standing for one; looks no sooner than after `rest`.
    pub(super) fn follow_after(&mut self, rest: Duration, here: Circumstances, now: Moment) -> (Phase, Action) {
        let interval = self.interval();
        let mut following = Following::until(now.mono + rest + self.chance.jitter(interval), now.mono);
        following.rest_until = now.mono + rest;
        if !rest.is_zero() {
            following.look_at = following.rest_until;
        }
        self.follow(following, here, now)
    }

    /// Follows after a request that came to nothing. If it might have made us the holder, the next look is soon, once.
    pub(super) fn follow_after_failure(&mut self, soon: bool, here: Circumstances, now: Moment) -> (Phase, Action) {
        self.failures = self.failures.saturating_add(1);
        let interval = self.interval();
        let retry = self.timing.retry_period();
        let wait = if self.sight.candidates().is_none() {
            let growing = retry.saturating_mul(2_u32.saturating_pow(self.failures - 1));
            growing.min(interval)
        } else if soon && self.failures == 1 {
            retry
        } else {
            interval
        };
        let following = Following::until(now.mono + self.chance.jitter(wait), now.mono);
        self.follow(following, here, now)
    }

    /// A look was answered, or not; the next regular one was to come then.
    pub(super) fn looked(
        &mut self,
        event: Event,
        regular: Instant,
        here: Circumstances,
        now: Moment,
    ) -> (Phase, Action) {
        let Event::Seen(found) = event else {
            return self.follow_after_failure(false, here, now);
        };
        let Some(found) = found else {
            return self.make(here, now);
        };
        if !found.is_released() && found.holder != self.identity {
            self.stood_in = 0;
        }
        self.sight.observe(found, &self.timing, now);
        if !here.stopping && self.sight.is_free(self.asking(here.signalled), now.mono) {
            let number = self.sight.next_number();
            let free = self.sight.record().cloned().unwrap_or_default();
            let taken = free.taken(&self.identity, number, &self.timing, now.wall);
            let standing = Phase::Standing {
                began: now.mono,
                number,
                signalled: here.signalled,
            };
            return (standing, self.write(taken, now));
        }
        self.follow_what_was_seen(regular, here, now)
    }

    /// There is no Lease: makes one, for all to see from when on it is there. Only then can it be taken.
    fn make(&mut self, here: Circumstances, now: Moment) -> (Phase, Action) {
        self.sight.observe_none();
        if here.stopping {
            return (Phase::Done, Action::Done);
        }
        let new = Record::new(self.sight.highest(), now.wall);
        (Phase::Making, self.write(new, now))
    }

    /// The Lease was made, or not.
    pub(super) fn made(&mut self, event: Event, here: Circumstances, now: Moment) -> (Phase, Action) {
        match event {
            Event::Written(record) => {
                self.sight.observe(record, &self.timing, now);
                self.follow_what_was_seen(now.mono, here, now)
            }
            _ => self.follow_after_failure(false, here, now),
        }
    }

    /// Waits for the next regular look, which was to come at `regular`, or for one more.
    fn follow_what_was_seen(&mut self, regular: Instant, here: Circumstances, now: Moment) -> (Phase, Action) {
        self.failures = 0;
        let interval = self.interval();
        // Whoever looked together would do so for ever, and nobody in between.
        let grew = interval / 2 > std::mem::replace(&mut self.interval_before, interval);
        let wait = if grew {
            self.chance.spread(interval)
        } else {
            self.chance.jitter(interval)
        };
        let mut look_at = now.mono + wait;
        let long = (interval / 2).min(self.timing.lease_duration());
        if !grew && regular >= now.mono + long {
            // This was one look more, long before the regular one, which stays where it is.
            look_at = look_at.min(regular);
        }
        let mut following = Following::until(look_at, now.mono);
        following.pending = true;
        self.follow(following, here, now)
    }

    /// The write that would make us the leader was answered, or not.
    pub(super) fn stood(
        &mut self,
        event: Event,
        mut leading: Leading,
        here: Circumstances,
        now: Moment,
    ) -> (Phase, Action) {
        match event {
            Event::Written(record) => {
                self.sight.observe(record.clone(), &self.timing, now);
                if here.stopping {
                    let released = record.released(record.failed_terms, now.wall);
                    return self.give_back(Some(released), Duration::ZERO, here, now);
                }
                self.won(&mut leading, record);
                if leading.is_over(now) {
                    return self.follow_after_failure(true, here, now);
                }
                self.failures = 0;
                self.lead(leading, Event::Woke, here, now)
            }
            Event::Conflict | Event::Refused => self.follow_after_failure(false, here, now),
            _ => self.follow_after_failure(true, here, now),
        }
    }

    fn interval(&self) -> Duration {
        self.timing.interval(self.sight.candidates())
    }
}
