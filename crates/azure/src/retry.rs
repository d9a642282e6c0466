//! A request whose server or connection failed is sent again, three times at most and within the caller's deadline.
//!
//! This stands under every caller (DESIGN decision 11), who classifies what comes out. A 429 is never retried: it is
//! the gates' business. The statuses are those of Microsoft's Go client. What a server says about when to
//! come again is obeyed; where that is after the deadline, its answer goes up at once.

use std::time::Duration;

use headgate_clock::Clock;
use tokio::time::{Instant, sleep_until};
use tower::ServiceExt as _;

use super::error::ArmError;
use super::retry_after::retry_after;
use super::stack::{Around, Below, Call};
use super::transport::Answer;

/// Tries after the first.
const MOST: u32 = 3;
/// Between the first two tries, as with Microsoft's Go client; then twice that, and so on.
const FIRST: Duration = Duration::from_millis(800);

/// An earlier try of this request may have been carried out; stands among an answer's extensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaybeDone;

/// Which statuses are worth another try.
#[derive(Clone, Debug)]
pub(super) struct Retry {
    pub(super) statuses: &'static [u16],
    pub(super) clock: Clock,
}

impl Retry {
    /// For ARM.
    pub(super) fn arm(clock: Clock) -> Self {
        let statuses = &[408, 500, 502, 503, 504];
        Self { statuses, clock }
    }

    /// What is to be waited before another try; nothing where there is to be none.
    fn pause(&self, outcome: &Result<BufferedResponse, ArmError>, retried: u32, random: f64) -> Option<Duration> {
        if retried >= MOST {
            return None;
        }
        let backoff = FIRST.mul_f64(f64::from(2_u32.pow(retried)) * (0.8 + random / 2.0));
        match outcome {
            Ok(answer) if self.statuses.contains(&answer.status().as_u16()) => {
                let told = retry_after(answer.headers(), self.clock.now().wall);
                Some(told.map_or(backoff, |told| told.max(backoff)))
            }
            Err(ArmError::Connection(_)) => Some(backoff),
            _ => None,
        }
    }
}

impl Around for Retry {
    async fn around<S: Below>(self, call: Call, below: S) -> Result<BufferedResponse, ArmError> {
        let mut retried = 0;
        loop {
            let outcome = below.clone().oneshot(call.clone()).await;
            let pause = self.pause(&outcome, retried, random());
            let again = pause.and_then(|pause| Instant::now().checked_add(pause));
            let Some(again) = again.filter(|again| *again < call.deadline) else {
                return outcome.map(|mut answer| {
                    if retried > 0 {
                        answer.extensions_mut().insert(MaybeDone);
                    }
                    answer
                });
            };
            match &outcome {
                Ok(answer) => {
                    tracing::debug!(method = %call.method, path = call.uri.path(), status = answer.status().as_u16(), "again");
                }
                Err(error) => tracing::debug!(method = %call.method, path = call.uri.path(), %error, "again"),
            }
            sleep_until(again).await;
            retried += 1;
        }
    }
}

/// From 0 to 1; so that those who failed together do not come again together.
pub(super) fn random() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX / 2)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::Response;

    use super::*;

    #[test]
    fn what_is_tried_again_and_when() {
        let retry = Retry::arm(Clock::System);
        let answer = |status: u16, after: Option<&str>| {
            let mut response = Response::builder().status(status);
            if let Some(after) = after {
                response = response.header("Retry-After", after);
            }
            Ok(response.body(Bytes::new()).unwrap())
        };
        let connection = || Err(ArmError::Connection("cut".to_owned()));
        for (outcome, retried, random, pause) in [
            (answer(200, None), 0, 0.5, None),
            (answer(429, Some("1")), 0, 0.5, None),
            (answer(404, None), 0, 0.5, None),
            (answer(412, None), 0, 0.5, None),
            (answer(408, None), 0, 0.4, Some(800)),
            (answer(500, None), 1, 0.4, Some(1600)),
            (answer(502, None), 2, 0.4, Some(3200)),
            (answer(503, None), 3, 0.4, None),
            (answer(504, None), 0, 0.0, Some(640)),
            (answer(504, None), 0, 1.0, Some(1040)),
            (answer(503, Some("7")), 0, 0.4, Some(7000)),
            (answer(503, Some("0")), 0, 0.4, Some(800)),
            (answer(501, None), 0, 0.4, None),
            (connection(), 0, 0.4, Some(800)),
            (connection(), 3, 0.4, None),
            (Err(ArmError::DeadlineExceeded), 0, 0.4, None),
            (Err(ArmError::NotPermitted), 0, 0.4, None),
            (Err(ArmError::Throttled { until: Instant::now() }), 0, 0.4, None),
        ] {
            let expected = pause.map(Duration::from_millis);
            assert_eq!(
                retry.pause(&outcome, retried, random),
                expected,
                "{outcome:?} {retried}"
            );
        }
    }

    #[test]
    fn random_numbers() {
        for _ in 0..100 {
            assert!((0.0..=1.0).contains(&random()));
        }
    }
}
