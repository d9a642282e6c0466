//! What a failed update means for its operations.
//!
//! The statuses of responses are the updater's own table: an attempt has a price, and statuses that the ARM client has
//! retried already are not retried again. What the codes of ARM mean is the ARM client's table, whose list of final codes is the only
//! one: everything else may succeed with a later attempt.
//!
//! Source: the design of cloud-provider-azure's bounded retry ("Error Classification") with the merged correction that a
//! closed throttle gate has a time; ends of accepted operations are this project's addition.

use std::time::Duration;

use tokio::time::Instant;

/// Why an update failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// ARM answered a GET or PUT with an error.
    Response {
        /// The HTTP status of the response.
        status: u16,
        /// Whether ARM's code says that only an operator can change the result, such as `ResourceGroupNotFound` with a 404.
        is_final: bool,
        /// `Retry-After`, where it was sent and could be read.
        retry_after: Option<Duration>,
    },
    /// ARM accepted the PUT, and its operation failed.
    Operation(OperationFailure),
    /// The client's throttle gate was closed; nothing was sent.
    Throttled {
        /// When it opens, where that is known.
        until: Option<Instant>,
    },
    /// The operation succeeded, and the pool read afterwards is another one: another writer was faster.
    NotShown,
    /// Whether the update had its effect is not known: no usable answer came.
    Unknown,
    /// The update cannot be made into a request.
    Invalid,
}

/// How an accepted operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationFailure {
    /// The pool does not exist.
    Gone,
    /// ARM's code says that only an operator can change the result.
    Final,
    /// Any other code, an unknown one, or none.
    Unclear,
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

/// Classifies a failure. `now` is when it was received.
#[must_use]
pub fn classify(failure: &Failure, now: Instant) -> FailureClass {
    match failure {
        Failure::Response { is_final: true, .. } | Failure::Operation(OperationFailure::Final) | Failure::Invalid => {
            FailureClass::Terminal(TerminalCause::NonRetriable)
        }
        Failure::Response {
            status, retry_after, ..
        } => classify_status(*status, *retry_after, now),
        Failure::Operation(OperationFailure::Gone) => FailureClass::Stale,
        Failure::Throttled { until } => FailureClass::Retriable {
            not_before: until.filter(|until| *until > now),
        },
        Failure::NotShown | Failure::Unknown | Failure::Operation(OperationFailure::Unclear) => {
            FailureClass::Retriable { not_before: None }
        }
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
                is_final: false,
                retry_after: None,
            };
            assert_eq!(classify(&failure, now), class, "{status}");
        }
        let wrong_group = Failure::Response {
            status: 404,
            is_final: true,
            retry_after: None,
        };
        assert_eq!(classify(&wrong_group, now), FINAL);
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
                is_final: false,
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
    fn only_a_final_code_ends_the_attempts_without_a_status() {
        let now = Instant::now();
        for (failure, class) in [
            (Failure::Operation(OperationFailure::Gone), FailureClass::Stale),
            (Failure::Operation(OperationFailure::Final), FINAL),
            (Failure::Operation(OperationFailure::Unclear), NEXT_TICK),
            (Failure::Unknown, NEXT_TICK),
            (Failure::NotShown, NEXT_TICK),
            (Failure::Invalid, FINAL),
        ] {
            assert_eq!(classify(&failure, now), class, "{failure:?}");
        }
    }
}
