//! When a request is sent again: after a connection error or a status that a later attempt may not get, three times at
//! most, with growing delays. Pure; the `request_path` module sends.
//!
//! A 429 of ARM is never retried here: the throttle gates handle it, and the caller decides by the error's class
//! (docs/dev/decisions.md 11). The statuses and delays are those of Microsoft's Go client, azcore. A `Retry-After` that is
//! longer than the delay replaces it; after one that is much longer ARM's answer goes to the caller.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use headgate_core::clock::Clock;

use crate::error::ArmError;
use crate::retry_after::parse_retry_after;
use crate::transport::BufferedResponse;

/// Attempts after the first one.
const MAX_RETRIES: usize = 3;
/// Delay before the first retry; it doubles with each further one.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(800);
/// ARM is not asked again after a `Retry-After` above this: the caller gets it, and leaves the shared Lease. As many of them as there
/// are retries fit into the 30 s in which a hold admits writes.
const MAX_REQUESTED_DELAY: Duration = Duration::from_secs(8);
/// Statuses of ARM after which a request is retried.
const ARM_STATUSES: &[u16] = &[408, 500, 502, 503, 504];

/// Decides whether and when a request is sent again.
#[derive(Clone, Debug)]
pub(crate) struct RetryPolicy {
    pub(crate) statuses: &'static [u16],
    /// After a longer `Retry-After` there is no further attempt.
    pub(crate) max_requested_delay: Duration,
    /// For a `Retry-After` that is a date.
    pub(crate) clock: Clock,
}

impl RetryPolicy {
    pub(crate) fn for_arm(clock: Clock) -> Self {
        Self {
            statuses: ARM_STATUSES,
            max_requested_delay: MAX_REQUESTED_DELAY,
            clock,
        }
    }

    /// The delays of one request's retries, without jitter.
    pub(crate) fn backoff() -> ExponentialBackoff {
        ExponentialBuilder::default()
            .with_min_delay(FIRST_RETRY_DELAY)
            .with_factor(2.0)
            .without_max_delay()
            .with_max_times(MAX_RETRIES)
            .build()
    }

    /// The time to wait before another attempt, or `None` for no further attempt. `backoff` is the next delay of
    /// [`Self::backoff`]; `random`, from 0 to 1, scales it by 0.8 to 1.3.
    pub(crate) fn delay(
        &self,
        outcome: &Result<BufferedResponse, ArmError>,
        backoff: Option<Duration>,
        random: f64,
    ) -> Option<Duration> {
        let jittered = backoff?.mul_f64(0.8 + random / 2.0);
        // A millisecond is the resolution of tokio's timer.
        let backoff = Duration::from_millis(u64::try_from(jittered.as_millis()).unwrap_or(u64::MAX));
        match outcome {
            Ok(response) if self.statuses.contains(&response.status().as_u16()) => {
                let requested = parse_retry_after(response.headers(), self.clock.now().wall).unwrap_or_default();
                (requested <= self.max_requested_delay).then_some(requested.max(backoff))
            }
            Err(ArmError::Connection(_)) => Some(backoff),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::Response;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn retried_outcomes_and_delays() {
        let policy = RetryPolicy::for_arm(Clock::System);
        let response = |status: u16, after: Option<&str>| {
            let mut response = Response::builder().status(status);
            if let Some(after) = after {
                response = response.header("Retry-After", after);
            }
            Ok(response.body(Bytes::new()).unwrap())
        };
        let may_have_applied = false;
        let not_permitted = ArmError::NotPermitted { may_have_applied };
        let connection = || Err(ArmError::Connection("cut".to_owned()));
        for (outcome, retried, random, expected) in [
            (response(200, None), 0, 0.5, None),
            (response(429, Some("1")), 0, 0.5, None),
            (response(404, None), 0, 0.5, None),
            (response(412, None), 0, 0.5, None),
            (response(408, None), 0, 0.4, Some(800)),
            (response(500, None), 1, 0.4, Some(1600)),
            (response(502, None), 2, 0.4, Some(3200)),
            (response(503, None), 3, 0.4, None),
            (response(504, None), 0, 0.0, Some(640)),
            (response(504, None), 0, 1.0, Some(1040)),
            (response(503, Some("7")), 0, 0.4, Some(7000)),
            (response(503, Some("8")), 0, 0.4, Some(8000)),
            (response(503, Some("9")), 0, 0.4, None),
            (response(408, Some("600")), 0, 0.4, None),
            (response(503, Some("0")), 0, 0.4, Some(800)),
            (response(501, None), 0, 0.4, None),
            (connection(), 0, 0.4, Some(800)),
            (connection(), 3, 0.4, None),
            (Err(ArmError::DeadlineExceeded), 0, 0.4, None),
            (Err(not_permitted), 0, 0.4, None),
            (Err(ArmError::Throttled { until: Instant::now() }), 0, 0.4, None),
        ] {
            let backoff = RetryPolicy::backoff().nth(retried);
            let expected = expected.map(Duration::from_millis);
            let delay = policy.delay(&outcome, backoff, random);
            assert_eq!(delay, expected, "{outcome:?} {retried}");
        }
        let patient = RetryPolicy {
            max_requested_delay: Duration::MAX,
            ..policy
        };
        let delay = patient.delay(&response(503, Some("600")), RetryPolicy::backoff().next(), 0.4);
        assert_eq!(delay, Some(Duration::from_mins(10)));
    }
}
