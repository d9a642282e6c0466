//! Converts the result of a write into the outcome of a batch. Pure.
//!
//! `headgate-azure` has its own classes for admin states (`ErrorClass`). They are not used here, because the updater's differ
//! (docs/decisions.md 11): it gets the status or the codes and classifies them itself.

use headgate_azure::{ArmError, ErrorBody};
use headgate_local_pools::{BatchOutcome, Failure};

/// The outcome of a batch that took part in a write which failed. A write that was not sent, because ARM is busy with the load
/// balancer or the permit ended, was no attempt.
#[must_use]
pub fn batch_outcome(error: &ArmError) -> BatchOutcome {
    let failure = match error {
        ArmError::Busy(_) | ArmError::NotPermitted => return BatchOutcome::NotAttempted,
        ArmError::ErrorResponse {
            status, retry_after, ..
        } => Failure::Response {
            status: status.as_u16(),
            retry_after: *retry_after,
        },
        ArmError::OperationFailed { status, error } => {
            let mut codes = Vec::new();
            collect_codes(error, &mut codes);
            codes.push(status.as_str().to_owned());
            Failure::Operation { codes }
        }
        ArmError::ReadBackMismatch(_) => Failure::NotShown,
        ArmError::Throttled { until } => Failure::Throttled { until: Some(*until) },
        ArmError::Connection(_)
        | ArmError::DeadlineExceeded
        | ArmError::Token(_)
        | ArmError::InvalidResponse(_)
        | ArmError::TooLarge(_) => Failure::Other,
    };
    BatchOutcome::Failed {
        failure,
        error: error.to_string(),
    }
}

/// The codes of an error and of everything in it, outermost first. `ErrorBody` bounds its own depth.
fn collect_codes(error: &ErrorBody, codes: &mut Vec<String>) {
    if !error.code.is_empty() {
        codes.push(error.code.clone());
    }
    for detail in &error.details {
        collect_codes(detail, codes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_azure::{ErrorClass, OperationFailure};
    use headgate_local_pools::{FailureClass, TerminalCause, classify};
    use hyper::StatusCode;
    use tokio::time::Instant;

    use super::*;

    fn response(status: u16, code: &str, retry_after: Option<u64>) -> ArmError {
        ArmError::ErrorResponse {
            status: StatusCode::from_u16(status).unwrap(),
            error: body(code, &[]),
            retry_after: retry_after.map(Duration::from_secs),
            may_have_applied: false,
        }
    }

    fn body(code: &str, details: &[&str]) -> ErrorBody {
        ErrorBody {
            code: code.to_owned(),
            message: String::new(),
            details: details.iter().map(|code| body(code, &[])).collect(),
        }
    }

    fn class(error: &ArmError, now: Instant) -> FailureClass {
        let BatchOutcome::Failed { failure, error: text } = batch_outcome(error) else {
            panic!("{error} is an attempt")
        };
        assert_eq!(text, error.to_string());
        classify(&failure, now)
    }

    #[test]
    fn the_two_tables_differ_where_they_should() {
        let now = Instant::now();
        let next_tick = FailureClass::Retriable { not_before: None };
        let exhausted = FailureClass::Terminal(TerminalCause::ClientRetriesExhausted);
        let is_final = FailureClass::Terminal(TerminalCause::NonRetriable);
        for (error, updater, admin_state) in [
            (response(412, "PreconditionFailed", None), next_tick, ErrorClass::Stale),
            (
                response(503, "ServiceUnavailable", None),
                exhausted,
                ErrorClass::Retriable,
            ),
            (
                response(409, "AnotherOperationInProgress", None),
                next_tick,
                ErrorClass::Retriable,
            ),
            (response(404, "NotFound", None), FailureClass::Stale, ErrorClass::Stale),
            (
                response(403, "AuthorizationFailed", None),
                is_final,
                ErrorClass::Terminal,
            ),
            (ArmError::ReadBackMismatch("p".into()), next_tick, ErrorClass::Terminal),
            (ArmError::Connection("reset".into()), is_final, ErrorClass::Retriable),
            (ArmError::DeadlineExceeded, is_final, ErrorClass::Retriable),
        ] {
            assert_eq!((class(&error, now), error.class()), (updater, admin_state), "{error}");
        }
    }

    #[test]
    fn throttling_keeps_its_time() {
        let now = Instant::now();
        let until = now + Duration::from_secs(90);
        let parked = FailureClass::Retriable {
            not_before: Some(until),
        };
        assert_eq!(class(&response(429, "TooManyRequests", Some(90)), now), parked);
        assert_eq!(class(&ArmError::Throttled { until }, now), parked);
    }

    #[test]
    fn operations_are_classified_by_every_code() {
        let now = Instant::now();
        let next_tick = FailureClass::Retriable { not_before: None };
        let is_final = FailureClass::Terminal(TerminalCause::NonRetriable);
        for (status, error, expected) in [
            (OperationFailure::Canceled, body("", &[]), next_tick),
            (
                OperationFailure::Failed,
                body("Failed", &["CanceledAndSupersededDueToAnotherOperation"]),
                next_tick,
            ),
            (OperationFailure::Failed, body("InvalidRequestFormat", &[]), is_final),
            (OperationFailure::Failed, body("", &[]), is_final),
        ] {
            assert_eq!(class(&ArmError::OperationFailed { status, error }, now), expected);
        }
    }

    #[test]
    fn what_was_not_sent_is_no_attempt() {
        for error in [ArmError::Busy("lb".into()), ArmError::NotPermitted] {
            assert_eq!(batch_outcome(&error), BatchOutcome::NotAttempted);
        }
    }
}
