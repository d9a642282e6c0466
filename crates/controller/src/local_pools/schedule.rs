//! When the next tick is.
//!
//! Invariants: the first tick comes one interval after the start; ticks do not overlap; ticks that were missed while one
//! took longer than the interval are not made up for.

use std::time::Duration;

use tokio::time::Instant;

/// The times of ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TickSchedule {
    interval: Duration,
    next_at: Instant,
}

impl TickSchedule {
    /// An interval of 0 is taken as 1 ms.
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        let interval = interval.max(Duration::from_millis(1));
        Self {
            interval,
            next_at: now + interval,
        }
    }

    /// When the next tick is due.
    pub(super) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// A tick has ended: the next one is at the next multiple of the interval.
    pub(super) fn tick_ended(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.next_at);
        let beyond = late.as_nanos() % self.interval.as_nanos();
        let beyond = Duration::from_nanos(u64::try_from(beyond).unwrap_or_default());
        self.next_at = now.max(self.next_at) + self.interval.saturating_sub(beyond);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_keep_their_interval_and_skip_missed_ones() {
        let (start, seconds) = (Instant::now(), Duration::from_secs);
        let mut schedule = TickSchedule::new(seconds(30), start);
        assert_eq!(schedule.next_at(), start + seconds(30));
        for (ended, next) in [(30, 60), (61, 90), (200, 210), (210, 240), (215, 270)] {
            schedule.tick_ended(start + seconds(ended));
            assert_eq!(schedule.next_at(), start + seconds(next), "{ended}");
        }
        let zero = TickSchedule::new(Duration::ZERO, start);
        assert!(zero.next_at() > start);
    }
}
