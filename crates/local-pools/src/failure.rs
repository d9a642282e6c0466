//! What a failed update means for its operations.
//!
//! This is the updater's own table. The ARM client has another one: there a 412 is stale and 5xx are retriable, because
//! admin states are planned again from each read. Here an attempt has a price, and statuses that the ARM client has
//! retried already are not retried again.
//!
//! Source: the design of cloud-provider-azure's bounded retry ("Error Classification") with the merged correction that a
//! closed throttle gate has a time; ARM codes of accepted operations are this project's addition.

use std::time::Duration;

use tokio::time::Instant;

/// Why an update failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// ARM answered a GET or PUT with an error.
    Response {
        /// The HTTP status of the response.
        status: u16,
        /// `Retry-After`, where it was sent and could be read.
        retry_after: Option<Duration>,
    },
    /// ARM accepted the PUT, and its operation failed.
    Operation {
        /// ARM's codes, outermost first. The status `Canceled` stands for a missing code.
        codes: Vec<String>,
    },
    /// The client's throttle gate was closed; nothing was sent.
    Throttled {
        /// When it opens, where that is known.
        until: Option<Instant>,
    },
    /// The operation succeeded, and the pool read afterwards is another one: another writer was faster.
    NotShown,
    /// Connections, timeouts, tokens, and everything else without a status of ARM's.
    Other,
}

/// Why a failure is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminalCause {
    /// The ARM client has retried this status already.
    ClientRetriesExhausted,
    /// Another attempt has the same result.
    NonRetriable,
}

/// What a failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// The pool is gone. The operations are dropped without an event or a metric.
    Stale,
    /// The operations are tried again.
    Retriable {
        /// Not before this time; `None` for the next tick.
        not_before: Option<Instant>,
    },
    /// The operations are dropped with an event.
    Terminal(TerminalCause),
}

/// Statuses that the ARM client retries within one request.
const RETRIED_BY_CLIENT: [u16; 5] = [408, 500, 502, 503, 504];

/// Codes of accepted operations; the outermost code in one of the lists decides.
const STALE_CODES: [&str; 3] = ["NotFound", "ResourceNotFound", "ParentResourceNotFound"];
const RETRIABLE_CODES: [&str; 12] = [
    "CanceledAndSupersededDueToAnotherOperation",
    "Canceled",
    "AnotherOperationInProgress",
    "RetryableError",
    "RetryableErrorDueToAnotherOperation",
    "ReferencedResourceNotProvisioned",
    "InternalServerError",
    "Conflict",
    "PreconditionFailed",
    "PreconditionFailedEtagMismatch",
    "TooManyRequests",
    "SubscriptionRequestsThrottled",
];

/// Classifies a failure. `now` is when it was received.
#[must_use]
pub fn classify(failure: &Failure, now: Instant) -> FailureClass {
    match failure {
        Failure::Response { status, retry_after } => classify_status(*status, *retry_after, now),
        Failure::Operation { codes } => classify_codes(codes),
        Failure::Throttled { until } => FailureClass::Retriable {
            not_before: until.filter(|until| *until > now),
        },
        Failure::NotShown => FailureClass::Retriable { not_before: None },
        Failure::Other => FailureClass::Terminal(TerminalCause::NonRetriable),
    }
}

fn classify_status(status: u16, retry_after: Option<Duration>, now: Instant) -> FailureClass {
    match status {
        404 => FailureClass::Stale,
        429 => FailureClass::Retriable {
            not_before: retry_after
                .filter(|wait| !wait.is_zero())
                .and_then(|wait| now.checked_add(wait)),
        },
        409 | 412 => FailureClass::Retriable { not_before: None },
        status if RETRIED_BY_CLIENT.contains(&status) => FailureClass::Terminal(TerminalCause::ClientRetriesExhausted),
        _ => FailureClass::Terminal(TerminalCause::NonRetriable),
    }
}

fn classify_codes(codes: &[String]) -> FailureClass {
    let is_one_of = |list: &[&str], code: &str| list.iter().any(|known| known.eq_ignore_ascii_case(code));
    let class = codes.iter().find_map(|code| {
        if is_one_of(&STALE_CODES, code) {
            return Some(FailureClass::Stale);
        }
        is_one_of(&RETRIABLE_CODES, code).then_some(FailureClass::Retriable { not_before: None })
    });
    class.unwrap_or(FailureClass::Terminal(TerminalCause::NonRetriable))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT_TICK: FailureClass = FailureClass::Retriable { not_before: None };
    const EXHAUSTED: FailureClass = FailureClass::Terminal(TerminalCause::ClientRetriesExhausted);
    const FINAL: FailureClass = FailureClass::Terminal(TerminalCause::NonRetriable);

    #[test]
    fn statuses() {
        let now = Instant::now();
        for (status, class) in [
            (404, FailureClass::Stale),
            (409, NEXT_TICK),
            (412, NEXT_TICK),
            (429, NEXT_TICK),
            (408, EXHAUSTED),
            (500, EXHAUSTED),
            (502, EXHAUSTED),
            (503, EXHAUSTED),
            (504, EXHAUSTED),
            (400, FINAL),
            (401, FINAL),
            (403, FINAL),
            (410, FINAL),
            (501, FINAL),
            (505, FINAL),
        ] {
            let failure = Failure::Response {
                status,
                retry_after: None,
            };
            assert_eq!(classify(&failure, now), class, "{status}");
        }
    }

    #[test]
    fn only_throttling_parks() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        for (status, retry_after, not_before) in [
            (429, Some(90), Some(now + seconds(90))),
            (429, Some(0), None),
            (429, None, None),
            (409, Some(90), None),
            (412, Some(90), None),
        ] {
            let failure = Failure::Response {
                status,
                retry_after: retry_after.map(seconds),
            };
            assert_eq!(
                classify(&failure, now),
                FailureClass::Retriable { not_before },
                "{status} {retry_after:?}"
            );
        }
        for (until, not_before) in [
            (None, None),
            (Some(now), None),
            (now.checked_sub(seconds(1)), None),
            (Some(now + seconds(7)), Some(now + seconds(7))),
        ] {
            assert_eq!(
                classify(&Failure::Throttled { until }, now),
                FailureClass::Retriable { not_before }
            );
        }
    }

    #[test]
    fn operations_are_classified_by_their_codes() {
        let now = Instant::now();
        for (codes, class) in [
            (
                &["Canceled", "CanceledAndSupersededDueToAnotherOperation"][..],
                NEXT_TICK,
            ),
            (&["Failed", "canceledandsupersededduetoanotheroperation"], NEXT_TICK),
            (&["AnotherOperationInProgress"], NEXT_TICK),
            (&["RetryableError"], NEXT_TICK),
            (&["InternalServerError"], NEXT_TICK),
            (&["PreconditionFailed"], NEXT_TICK),
            (&["NotFound"], FailureClass::Stale),
            (&["ResourceNotFound", "RetryableError"], FailureClass::Stale),
            (&["InvalidRequestFormat"], FINAL),
            (&["Failed"], FINAL),
            (&[], FINAL),
        ] {
            let failure = Failure::Operation {
                codes: codes.iter().map(|code| (*code).to_owned()).collect(),
            };
            assert_eq!(classify(&failure, now), class, "{codes:?}");
        }
    }

    #[test]
    fn everything_else() {
        let now = Instant::now();
        assert_eq!(classify(&Failure::Other, now), FINAL);
        assert_eq!(classify(&Failure::NotShown, now), NEXT_TICK);
    }
}
