//! Wall-clock and monotonic time, read together.
//!
//! Every wait and every age in headgate is measured on the monotonic side; the wall clock is only
//! ever shown to people and peers. Decisions take a [`Moment`] as a parameter and never read a clock
//! themselves. A clock anchored to a wall time follows tokio's (possibly paused) time, so that a
//! test which pauses time pauses both sides.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// One point in time, as both clocks saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Wall-clock time, for people and peers.
    pub wall: Timestamp,
    /// Monotonic time, for ages and deadlines.
    pub mono: Instant,
}

/// Where moments come from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clocks.
    System,
    /// Wall time derived from monotonic time, starting at an anchor.
    Anchored(Moment),
}

impl Clock {
    /// A clock that starts at `wall` now and advances with tokio's time only.
    #[must_use]
    pub fn anchored(wall: Timestamp) -> Self {
        Self::Anchored(Moment {
            wall,
            mono: Instant::now(),
        })
    }

    /// The present moment.
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
    async fn an_anchored_clock_pauses_both_sides() {
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
