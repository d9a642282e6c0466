//! Wall-clock and monotonic time, read together.
//!
//! Invariant: headgate measures every wait and every age on the monotonic clock; the wall clock is only for people and for
//! other systems. Decisions take a [`Moment`] as a parameter and do not read a clock. An anchored clock follows tokio's time, so
//! a test that pauses that time pauses both clocks.

mod observed;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

pub use observed::{Observed, age_by_wall_clock};

/// One point in time on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Wall-clock time, for people and other systems.
    pub wall: Timestamp,
    /// Monotonic time, for ages and deadlines.
    pub mono: Instant,
}

impl Moment {
    /// The wall-clock time of an earlier or later instant.
    pub fn wall_at(self, instant: Instant) -> Timestamp {
        let signed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let ahead = signed(instant.saturating_duration_since(self.mono));
        let behind = signed(self.mono.saturating_duration_since(instant));
        // One of the two is zero.
        let time = self
            .wall
            .saturating_add(ahead)
            .and_then(|time| time.saturating_sub(behind));
        time.unwrap_or(self.wall)
    }

    /// The same to the next whole second, for a time before which something must not happen.
    pub fn whole_second_at(self, instant: Instant) -> Timestamp {
        let exact = self.wall_at(instant);
        let seconds = exact.as_second() + i64::from(exact.subsec_nanosecond() > 0);
        Timestamp::from_second(seconds).unwrap_or(exact)
    }
}

/// A time without fractions of a second, as Kubernetes stores times. With them, what was written would never equal what is read.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Bounds the pause: the process may have stood still during the work.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The pause between two runs of work on a shared thread: `times` as long as the last run took, a second at most.
pub fn pause_after(took: Duration, times: u32) -> Duration {
    took.saturating_mul(times).min(MAX_PAUSE)
}

/// A source of moments.
#[derive(Clone)]
pub enum Clock {
    /// The clocks of the machine.
    System,
    /// Monotonic time from tokio, and the wall-clock time that this function derives from it.
    Derived(Arc<dyn Fn(Instant) -> Timestamp + Send + Sync>),
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

impl Clock {
    /// A clock whose wall-clock time is `wall` now, and advances only with tokio's time.
    pub fn anchored(wall: Timestamp) -> Self {
        let mono = Instant::now();
        Self::Derived(Arc::new(move |now| Moment { wall, mono }.wall_at(now)))
    }

    /// The present time of both clocks.
    pub fn now(&self) -> Moment {
        let mono = Instant::now();
        let wall = match self {
            Self::System => Timestamp::now(),
            Self::Derived(wall) => wall(mono),
        };
        Moment { wall, mono }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_in_proportion_but_bounded() {
        let millisecond = Duration::from_millis(1);
        assert_eq!(pause_after(20 * millisecond, 4), 80 * millisecond);
        assert_eq!(pause_after(Duration::from_mins(10), 4), Duration::from_secs(1));
        assert_eq!(pause_after(Duration::MAX, 4), Duration::from_secs(1));
    }

    #[test]
    fn wall_times_are_whole_seconds_and_not_too_early() {
        let mono = Instant::now();
        for (milliseconds, second) in [(0, 90), (1, 91), (999, 91)] {
            let wall = Timestamp::from_millisecond(milliseconds).unwrap();
            let found = Moment { wall, mono }.whole_second_at(mono + Duration::from_secs(90));
            assert_eq!(found.as_millisecond(), second * 1000, "{milliseconds}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn instants_have_a_wall_clock_time() {
        let wall = Timestamp::from_second(1_000).unwrap();
        let clock = Clock::anchored(wall);
        let now = clock.now();
        let second = Duration::from_secs(1);
        assert_eq!(now.wall_at(now.mono), wall);
        assert_eq!(now.wall_at(now.mono + 5 * second).as_second(), 1_005);
        tokio::time::advance(10 * second).await;
        assert_eq!(now.wall_at(Instant::now()).as_second(), 1_010);
        let later = clock.now();
        assert_eq!(later.wall_at(now.mono), wall);
        assert_eq!(later.wall_at(later.mono + Duration::MAX / 4), Timestamp::MAX);
    }

    #[test]
    fn whole_seconds_have_no_fraction() {
        for (time, whole) in [(1_500, 1), (-500, 0), (2_000, 2)] {
            let time = Timestamp::from_millisecond(time).unwrap();
            assert_eq!(whole_seconds(time), Timestamp::from_second(whole).unwrap());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pausing_time_pauses_both_clocks_of_an_anchored_clock() {
        let start: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let clock = Clock::anchored(start);
        let before = clock.now();
        tokio::time::advance(Duration::from_millis(1500)).await;
        let after = clock.now();
        assert_eq!(before.wall, start);
        assert_eq!(after.wall.to_string(), "2026-01-02T03:04:06.5Z");
        assert_eq!(after.mono - before.mono, Duration::from_millis(1500));
    }
}
