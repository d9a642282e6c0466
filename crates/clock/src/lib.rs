//! Wall-clock and monotonic time, read together.
//!
//! Invariant: headgate measures every wait and every age on the monotonic clock; the wall clock is only for people and for
//! other systems. Decisions take a [`Moment`] as a parameter and do not read a clock. An anchored clock follows tokio's time, so
//! a test that pauses that time pauses both clocks.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// One point in time on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Wall-clock time, for people and other systems.
    pub wall: Timestamp,
    /// Monotonic time, for ages and deadlines.
    pub mono: Instant,
}

/// A source of moments.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The clocks of the machine.
    System,
    /// Monotonic time from tokio, and wall-clock time derived from it, counted from this moment.
    Anchored(Moment),
}

impl Clock {
    /// A clock whose wall-clock time is `wall` now, and advances only with tokio's time.
    #[must_use]
    pub fn anchored(wall: Timestamp) -> Self {
        Self::Anchored(Moment {
            wall,
            mono: Instant::now(),
        })
    }

    /// The present time of both clocks.
    #[must_use]
    pub fn now(&self) -> Moment {
        let mono = Instant::now();
        match self {
            Self::System => Moment {
                wall: Timestamp::now(),
                mono,
            },
            Self::Anchored(anchor) => {
                let elapsed = SignedDuration::try_from(mono - anchor.mono).unwrap_or(SignedDuration::MAX);
                Moment {
                    wall: anchor.wall.saturating_add(elapsed).unwrap_or(Timestamp::MAX),
                    mono,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
