//! Converts the result of a write into the outcome of a batch. Pure.
//!
//! What ARM's codes mean is `headgate-azure`'s table for all writes; which statuses are worth another attempt is the updater's
//! (docs/decisions.md 11).

use headgate_azure::{ArmError, ErrorClass};
use headgate_local_pools::{BatchOutcome, Failure, OperationFailure};

/// The outcome of a batch that took part in a write which failed. A write that was not sent was no attempt.
#[must_use]
pub fn batch_outcome(error: &ArmError) -> BatchOutcome {
    let is_final = error.class() == ErrorClass::Terminal;
    let failure = match error {
        ArmError::Busy(_) | ArmError::NotPermitted | ArmError::RateLimited | ArmError::Token(_) => {
            return BatchOutcome::NotAttempted;
        }
        ArmError::ErrorResponse {
            status, retry_after, ..
        } => Failure::Response {
            status: status.as_u16(),
            is_final,
            retry_after: *retry_after,
        },
        ArmError::OperationFailed { .. } => Failure::Operation(if is_final {
            OperationFailure::Final
        } else if error.is_about_deleted_resource() {
            OperationFailure::Gone
        } else {
            OperationFailure::Unclear
        }),
        ArmError::ReadBackMismatch(_) => Failure::NotShown,
        ArmError::Throttled { until } => Failure::Throttled { until: Some(*until) },
        ArmError::Connection(_) | ArmError::DeadlineExceeded | ArmError::InvalidResponse(_) | ArmError::TooLarge(_) => {
            Failure::Unknown
        }
    };
    BatchOutcome::Failed {
        failure,
        error: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_azure::{ErrorBody, OperationFailure, TokenError};
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
            (
                response(404, "ResourceGroupNotFound", None),
                is_final,
                ErrorClass::Terminal,
            ),
            (
                response(404, "SubscriptionNotFound", None),
                is_final,
                ErrorClass::Terminal,
            ),
            (ArmError::Connection("reset".into()), next_tick, ErrorClass::Retriable),
            (ArmError::DeadlineExceeded, next_tick, ErrorClass::Retriable),
            (
                ArmError::InvalidResponse("<html>".into()),
                next_tick,
                ErrorClass::Retriable,
            ),
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
            (OperationFailure::Failed, body("", &[]), next_tick),
            (OperationFailure::Failed, body("Failed", &[]), next_tick),
            (OperationFailure::Failed, body("NeverHeardOf", &[]), next_tick),
            (
                OperationFailure::Failed,
                body("ConflictingConcurrentWriteNotAllowed", &[]),
                next_tick,
            ),
            (OperationFailure::Failed, body("ServiceUnavailable", &[]), next_tick),
            (OperationFailure::Failed, body("ServerTimeout", &[]), next_tick),
            (OperationFailure::Failed, body("OperationTimedOut", &[]), next_tick),
            (OperationFailure::Failed, body("GatewayTimeout", &[]), next_tick),
            (OperationFailure::Failed, body("PreconditionFailed", &[]), next_tick),
            (
                OperationFailure::Failed,
                body("Failed", &["ResourceNotFound"]),
                FailureClass::Stale,
            ),
        ] {
            let error = ArmError::OperationFailed { status, error };
            assert_eq!(class(&error, now), expected, "{error}");
        }
    }

    #[test]
    fn what_was_not_sent_is_no_attempt() {
        let no_token = TokenError::Connection("https://login".into());
        for error in [
            ArmError::Busy("lb".into()),
            ArmError::NotPermitted,
            ArmError::RateLimited,
            ArmError::Token(no_token),
        ] {
            assert_eq!(batch_outcome(&error), BatchOutcome::NotAttempted);
        }
    }
}
