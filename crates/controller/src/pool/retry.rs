//! After a failure of ARM: what is reported ([`LastError`]), and how long the next attempt waits ([`Backoff`]).

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use headgate_azure::{ArmError, ErrorClass};
use tokio::time::Instant;

/// As long as ARM takes to answer. The work queue in the design of cloud-provider-azure begins with 5 ms, which is five more requests
/// before anything can have changed.
const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(20);
/// A terminal error lasts until an operator changes something, such as a role assignment.
const MIN_TERMINAL_DELAY: Duration = Duration::from_secs(30);
pub(super) const MAX_TERMINAL_DELAY: Duration = Duration::from_mins(5);

/// What the last attempt failed with, until an attempt succeeds. Shown in events, logs and `headgate status`.
#[derive(Clone, Debug, PartialEq)]
pub struct LastError {
    /// Says whether and when a retry can help.
    pub class: ErrorClass,
    /// ARM's code, or headgate's own for other failures.
    pub code: String,
    /// The error as a sentence.
    pub message: String,
    /// The first of the failures that followed each other without a success.
    pub since: Instant,
}

impl LastError {
    /// From an error of the ARM client. `previous` is the last error so far.
    pub fn from_arm(error: &ArmError, previous: Option<&Self>) -> Self {
        // A 429 and the requests that the throttle gate refuses after it have different codes and one cause.
        let code = if error.is_throttled() {
            "Throttled"
        } else {
            error.code()
        };
        Self::new(error.class(), code, error.to_string(), previous)
    }

    /// From any failure. `previous` is the last error so far.
    pub fn new(class: ErrorClass, code: &str, message: String, previous: Option<&Self>) -> Self {
        Self {
            class,
            code: code.to_owned(),
            message,
            since: previous.map_or_else(Instant::now, |previous| previous.since),
        }
    }

    /// Whether ARM accepted a write and did not apply it. Only a read ends this error.
    pub(crate) fn is_ignored_write(&self) -> bool {
        self.code == ArmError::ReadBackMismatch(String::new()).code()
    }

    /// Whether class and code are equal, so that the second error need not be logged.
    pub(crate) fn is_same_kind(&self, other: &Self) -> bool {
        (self.class, &self.code) == (other.class, &other.code)
    }
}

/// Growing delays between attempts, by error class. `Retry-After` is obeyed, even above the maximum.
#[derive(Debug)]
pub(super) struct Backoff {
    retriable: ExponentialBackoff,
    terminal: ExponentialBackoff,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            retriable: exponential(MIN_DELAY, MAX_DELAY),
            terminal: terminal_delays(),
        }
    }
}

fn exponential(min: Duration, max: Duration) -> ExponentialBackoff {
    let builder = ExponentialBuilder::default().with_factor(2.0).without_max_times();
    builder.with_min_delay(min).with_max_delay(max).build()
}

/// The delays after terminal errors in a row.
pub(super) fn terminal_delays() -> ExponentialBackoff {
    exponential(MIN_TERMINAL_DELAY, MAX_TERMINAL_DELAY)
}

impl Backoff {
    /// Starts again with the shortest delay, after a success.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The delay after an error of ARM.
    pub(super) fn delay_after(&mut self, error: &ArmError) -> Duration {
        let delay = match error.class() {
            ErrorClass::Terminal => self.next_long_delay(),
            ErrorClass::Stale | ErrorClass::Retriable => self.next_delay(),
        };
        delay.max(error.retry_after(Instant::now()).unwrap_or_default())
    }

    /// The delay after a failure that lasts: a terminal one, or one that was repeated for so long.
    pub(super) fn next_long_delay(&mut self) -> Duration {
        self.terminal.next().unwrap_or(MAX_TERMINAL_DELAY)
    }

    /// The delay after a failure of another system, such as the API server.
    pub(super) fn next_delay(&mut self) -> Duration {
        self.retriable.next().unwrap_or(MAX_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::refused;
    use super::*;

    #[test]
    fn delays_grow_to_the_maximum_and_start_again_after_a_reset() {
        let mut backoff = Backoff::default();
        let conflict = refused(409, "", None);
        // backon computes in floating point.
        let delays: Vec<_> = (0..14)
            .map(|_| backoff.delay_after(&conflict).as_micros().div_ceil(1000))
            .collect();
        assert_eq!(&delays[..4], [100, 200, 400, 800]);
        assert_eq!(&delays[8..], [20_000; 6]);
        backoff.reset();
        assert_eq!(backoff.delay_after(&conflict), MIN_DELAY);
        assert_eq!(backoff.next_delay().as_millis(), 200);
    }

    #[test]
    fn errors_differ_in_class_and_code_alone() {
        let new = |class, code, message: &str| LastError::new(class, code, message.to_owned(), None);
        let conflict = new(ErrorClass::Retriable, "Conflict", "one");
        for (other, is_same) in [
            (new(ErrorClass::Retriable, "Conflict", "another"), true),
            (new(ErrorClass::Retriable, "Throttled", "one"), false),
            (new(ErrorClass::Terminal, "Conflict", "one"), false),
        ] {
            assert_eq!(conflict.is_same_kind(&other), is_same, "{other:?}");
        }
        let ignored = LastError::from_arm(&ArmError::ReadBackMismatch("p".to_owned()), None);
        assert!(ignored.is_ignored_write() && !conflict.is_ignored_write());
    }

    #[test]
    fn retry_after_exceeds_the_maximum_and_terminal_errors_wait_longer() {
        let mut backoff = Backoff::default();
        let throttled = refused(429, "", Some(100));
        assert_eq!(
            backoff.delay_after(&throttled),
            Duration::from_secs(100),
            "to the second, above every cap"
        );
        let forbidden = refused(403, "", None);
        let delays: Vec<_> = (0..5).map(|_| backoff.delay_after(&forbidden).as_secs()).collect();
        assert_eq!(delays, [30, 60, 120, 240, 300]);
    }
}
