//! How long to leave ARM alone after a failure: longer each time, as ARM says where it says so, and long at once
//! where somebody has to change something first.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use headgate_azure::{ArmError, ErrorClass};
use tokio::time::Instant;

const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_secs(20);
/// Where it will fail until somebody changes something, such as a right.
const SHORTEST_OF_TERMINAL: Duration = Duration::from_secs(30);
const LONGEST_OF_TERMINAL: Duration = Duration::from_mins(5);

/// The pauses after one failure after another.
#[derive(Debug)]
pub(super) struct Pauses {
    growing: ExponentialBackoff,
    terminal: ExponentialBackoff,
}

impl Default for Pauses {
    fn default() -> Self {
        let between = |shortest, longest| {
            let builder = ExponentialBuilder::default().with_factor(2.0).without_max_times();
            builder.with_min_delay(shortest).with_max_delay(longest).build()
        };
        Self {
            growing: between(SHORTEST, LONGEST),
            terminal: between(SHORTEST_OF_TERMINAL, LONGEST_OF_TERMINAL),
        }
    }
}

impl Pauses {
    /// Something succeeded, or something else is wanted now: the next pause is short.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The pause after this failure.
    pub(super) fn after(&mut self, error: &ArmError) -> Duration {
        let (pauses, longest) = match error.class() {
            ErrorClass::Terminal => (&mut self.terminal, LONGEST_OF_TERMINAL),
            ErrorClass::Stale | ErrorClass::Retriable => (&mut self.growing, LONGEST),
        };
        let pause = pauses.next().unwrap_or(longest);
        pause.max(error.retry_after(Instant::now()).unwrap_or_default())
    }

    /// The pause after a failure that was not ARM's.
    pub(super) fn after_other(&mut self) -> Duration {
        self.growing.next().unwrap_or(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use headgate_azure::ErrorBody;
    use hyper::StatusCode;

    use super::*;

    fn refused(status: StatusCode, retry_after: Option<u64>) -> ArmError {
        ArmError::ErrorResponse {
            status,
            error: ErrorBody::default(),
            retry_after: retry_after.map(Duration::from_secs),
            may_have_applied: false,
        }
    }

    #[test]
    fn pauses_grow_to_their_cap_and_are_short_again() {
        let mut pauses = Pauses::default();
        let conflict = refused(StatusCode::CONFLICT, None);
        // The library counts in fractions.
        let got: Vec<_> = (0..14)
            .map(|_| pauses.after(&conflict).as_micros().div_ceil(1000))
            .collect();
        assert_eq!(&got[..4], [5, 10, 20, 40]);
        assert_eq!(&got[12..], [20_000, 20_000]);
        pauses.succeeded();
        assert_eq!(pauses.after(&conflict), SHORTEST);
        assert_eq!(pauses.after_other(), SHORTEST * 2);
    }

    #[test]
    fn what_arm_says_and_what_will_not_pass() {
        let mut pauses = Pauses::default();
        let throttled = refused(StatusCode::TOO_MANY_REQUESTS, Some(100));
        assert_eq!(
            pauses.after(&throttled),
            Duration::from_secs(100),
            "to the second, above every cap"
        );
        let forbidden = refused(StatusCode::FORBIDDEN, None);
        let got: Vec<_> = (0..5).map(|_| pauses.after(&forbidden).as_secs()).collect();
        assert_eq!(got, [30, 60, 120, 240, 300]);
    }
}
