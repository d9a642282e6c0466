//! What an error of ARM means for an update. The classes are those of `headgate-azure`, as for admin states (docs/dev/decisions.md 11).

use headgate_azure::{ArmError, ErrorClass};
use tokio::time::Instant;

use super::settle::UpdateOutcome;

/// What a failed attempt means for its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The pool is gone. The operations are dropped without an event or a metric.
    Missing,
    /// The next attempt may succeed; so does every failure that is not known to be final.
    Retriable {
        /// Not before this time; `None` for the next tick.
        not_before: Option<Instant>,
    },
    /// Each attempt fails until an operator changes something. The operations are dropped with an event.
    Terminal,
}

/// The outcome of an update whose write or read failed at `now`. What was not sent was no attempt.
pub(super) fn update_outcome(error: &ArmError, now: Instant) -> UpdateOutcome {
    if error.is_not_sent() {
        return UpdateOutcome::NotAttempted {
            not_before: error.retry_after(now).map(|wait| now + wait),
        };
    }
    let failure = match error.class() {
        _ if error.is_about_missing_pool() => Failure::Missing,
        // A permit comes back, in this term or in another's.
        _ if matches!(error, ArmError::NotPermitted { .. }) => Failure::Retriable { not_before: None },
        ErrorClass::Terminal => Failure::Terminal,
        ErrorClass::Stale | ErrorClass::Retriable => {
            let is_throttled = error.status().is_some_and(|status| status.as_u16() == 429);
            let wait = error.retry_after(now).filter(|wait| is_throttled && !wait.is_zero());
            Failure::Retriable {
                not_before: wait.and_then(|wait| now.checked_add(wait)),
            }
        }
    };
    UpdateOutcome::Failed {
        failure,
        error: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_azure::{ErrorBody, OperationFailure, TokenError};

    use super::*;
    use crate::pool::fixtures::refused;

    const NEXT_TICK: Failure = Failure::Retriable { not_before: None };

    fn body(code: &str, details: &[&str]) -> ErrorBody {
        ErrorBody {
            code: code.to_owned(),
            message: String::new(),
            details: details.iter().map(|code| body(code, &[])).collect(),
        }
    }

    fn failure(error: &ArmError, now: Instant) -> Failure {
        let UpdateOutcome::Failed { failure, error: text } = update_outcome(error, now) else {
            panic!("{error} is an attempt")
        };
        assert_eq!(text, error.to_string());
        failure
    }

    #[test]
    fn only_what_is_known_to_be_final_is_final() {
        let now = Instant::now();
        for (error, expected) in [
            (refused(412, "PreconditionFailed", None), NEXT_TICK),
            (refused(409, "AnotherOperationInProgress", None), NEXT_TICK),
            (refused(503, "ServiceUnavailable", None), NEXT_TICK),
            (refused(408, "", None), NEXT_TICK),
            // The permit went while the answer of the attempt before was waited for.
            (ArmError::NotPermitted { may_have_applied: true }, NEXT_TICK),
            (refused(500, "", None), NEXT_TICK),
            (refused(401, "ExpiredAuthenticationToken", None), NEXT_TICK),
            (refused(410, "", None), NEXT_TICK),
            (ArmError::Connection("reset".into()), NEXT_TICK),
            (ArmError::DeadlineExceeded, NEXT_TICK),
            (ArmError::InvalidResponse("html".into()), NEXT_TICK),
            (ArmError::TooLarge("html".into()), NEXT_TICK),
            (refused(403, "AuthorizationFailed", None), Failure::Terminal),
            (refused(400, "InvalidRequestFormat", None), Failure::Terminal),
            (refused(409, "ScopeLocked", None), Failure::Terminal),
        ] {
            assert_eq!(failure(&error, now), expected, "{error}");
        }
    }

    #[test]
    fn missing_pool_is_dropped_and_a_missing_group_is_reported() {
        let now = Instant::now();
        for (code, expected) in [
            ("NotFound", Failure::Missing),
            ("ResourceNotFound", Failure::Missing),
            ("ParentResourceNotFound", Failure::Missing),
            ("ResourceGroupNotFound", Failure::Terminal),
            ("SubscriptionNotFound", Failure::Terminal),
            // Perhaps a proxy's.
            ("", NEXT_TICK),
        ] {
            assert_eq!(failure(&refused(404, code, None), now), expected, "{code}");
        }
    }

    #[test]
    fn throttling_keeps_its_time_and_lasts_a_second_at_least() {
        let now = Instant::now();
        let parked = |seconds| Failure::Retriable {
            not_before: Some(now + Duration::from_secs(seconds)),
        };
        for (retry_after, seconds) in [(Some(90), 90), (Some(0), 1), (None, 1)] {
            assert_eq!(
                failure(&refused(429, "TooManyRequests", retry_after), now),
                parked(seconds)
            );
        }
        assert_eq!(failure(&refused(409, "Conflict", Some(90)), now), NEXT_TICK);
    }

    #[test]
    fn operations_are_final_by_a_known_code_only() {
        let now = Instant::now();
        for (status, error, expected) in [
            (OperationFailure::Canceled, body("", &[]), NEXT_TICK),
            (
                OperationFailure::Failed,
                body("Failed", &["CanceledAndSupersededDueToAnotherOperation"]),
                NEXT_TICK,
            ),
            (OperationFailure::Failed, body("Failed", &[]), NEXT_TICK),
            (OperationFailure::Failed, body("", &[]), NEXT_TICK),
            (OperationFailure::Failed, body("SomethingNew", &[]), NEXT_TICK),
            (
                OperationFailure::Failed,
                body("ConflictingConcurrentWriteNotAllowed", &[]),
                NEXT_TICK,
            ),
            (OperationFailure::Failed, body("ServiceUnavailable", &[]), NEXT_TICK),
            (OperationFailure::Failed, body("ServerTimeout", &[]), NEXT_TICK),
            (OperationFailure::Failed, body("OperationTimedOut", &[]), NEXT_TICK),
            (OperationFailure::Failed, body("GatewayTimeout", &[]), NEXT_TICK),
            (
                OperationFailure::Failed,
                body("ResourceNotFound", &[]),
                Failure::Missing,
            ),
            (
                OperationFailure::Failed,
                body("InvalidRequestFormat", &[]),
                Failure::Terminal,
            ),
        ] {
            let ended = ArmError::OperationFailed { status, error };
            assert_eq!(failure(&ended, now), expected, "{ended}");
        }
    }

    #[test]
    fn what_was_not_sent_is_no_attempt() {
        let now = Instant::now();
        let until = now + Duration::from_secs(90);
        for (error, not_before) in [
            (ArmError::Busy("lb".into()), None),
            (
                ArmError::NotPermitted {
                    may_have_applied: false,
                },
                None,
            ),
            (ArmError::RateLimited, None),
            (ArmError::Token(TokenError::Connection("IMDS".into())), None),
            (ArmError::Throttled { until }, Some(until)),
        ] {
            assert_eq!(update_outcome(&error, now), UpdateOutcome::NotAttempted { not_before });
        }
    }
}
