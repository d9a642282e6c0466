//! The class of every error body that was recorded from Azure or quoted in public reports.

use serde_json::{Value, json};

use ErrorClass::{Retriable, Stale, Terminal};

use super::*;

const NOT_PROVISIONED: &str = "ReferencedResourceNotProvisioned";

fn read(error: &Value) -> ErrorBody {
    ErrorBody::parse(error.to_string().as_bytes())
}

fn error(code: &str, message: &str) -> Value {
    json!({"error": {"code": code, "message": message}})
}

/// `inner` is empty for an error without a cause.
fn nested(code: &str, inner: &str) -> Value {
    json!({"code": code, "message": "…", "details": [{"code": inner, "message": "…"}]})
}

fn check(status: u16, body: &Value, class: ErrorClass) {
    let status = StatusCode::from_u16(status).unwrap();
    assert_eq!(classify(Some(status), &read(body)), class, "{status} {body}");
}

#[test]
fn conflicts_with_other_writers() {
    for (status, code, inner, class) in [
        (412, "PreconditionFailed", "PreconditionFailedEtagMismatch", Stale),
        (409, "Canceled", SUPERSEDED, Stale),
        (429, "RetryableError", NOT_PROVISIONED, Retriable),
        (429, "RetryableError", "RetryableErrorDueToAnotherOperation", Retriable),
        (409, "AnotherOperationInProgress", "", Retriable),
        (429, "AnotherOperationInProgress", "", Retriable),
        (429, "SubscriptionRequestsThrottled", "", Retriable),
    ] {
        check(status, &json!({"error": nested(code, inner)}), class);
    }
    // Some responses have the code in their text only, in any case.
    let text = "… canceledandsupersededduetoanotheroperation …";
    check(409, &error("Conflict", text), Stale);
}

#[test]
fn errors_that_an_operator_has_to_fix() {
    for (status, class, codes) in [
        // A missing pool or load balancer was deleted; a missing group is a mistake in the settings.
        (404, Stale, &["NotFound", "ResourceNotFound"][..]),
        (404, Terminal, &["ResourceGroupNotFound", "SubscriptionNotFound"]),
        (400, Terminal, &["NoRegisteredProviderFound", "InvalidResourceType"]),
        (400, Terminal, &["MissingApiVersionParameter", "InvalidResourceName"]),
        (400, Terminal, &["ModificationOfNICIpConfigBackendPoolNotSupported"]),
        (401, Retriable, &["InvalidAuthenticationToken"]),
        (401, Retriable, &["ExpiredAuthenticationToken"]),
        (401, Terminal, &["InvalidAuthenticationTokenTenant"]),
        (403, Terminal, &["AuthorizationFailed", "LinkedAuthorizationFailed"]),
        (403, Terminal, &["RequestDisallowedByPolicy"]),
        (409, Terminal, &["ScopeLocked"]),
        (409, Retriable, &["Conflict"]),
        (500, Retriable, &["InternalServerError"]),
        (503, Retriable, &["ServerTimeout"]),
    ] {
        for code in codes {
            check(status, &error(code, "…"), class);
        }
    }
    let duplicate = "DuplicateIpConfigurationReferenceOnBackendAddressPool";
    for (code, inner) in [
        ("InvalidRequestFormat", duplicate),
        ("InvalidRequest", "NotFound"),
        ("InvalidResourceReference", "NotFound"),
    ] {
        check(400, &json!({"error": nested(code, inner)}), Terminal);
    }
}

#[test]
fn classes_by_status_without_a_known_code() {
    for (class, statuses) in [
        (Terminal, &[302, 400, 403, 405, 413][..]),
        (Retriable, &[401, 408, 409, 410, 429, 500, 502, 504, 507]),
        (Stale, &[404, 412]),
    ] {
        for status in statuses.iter().map(|status| StatusCode::from_u16(*status).unwrap()) {
            for body in [
                "",
                "<html>Bad gateway</html>",
                "{}",
                "[]",
                r#"{"error": null}"#,
                r#"{"error": {"code": 7}}"#,
            ] {
                let error = ErrorBody::parse(body.as_bytes());
                assert_eq!(classify(Some(status), &error), class, "{status} {body}");
            }
        }
    }
}

#[test]
fn classes_of_failed_operations() {
    use OperationFailure::{Canceled, Failed};
    for (status, code, inner, class) in [
        (Canceled, "Canceled", SUPERSEDED, Stale),
        (Canceled, "Canceled", "", Stale),
        (Failed, "PreconditionFailed", "", Stale),
        (Failed, "InternalServerError", "", Retriable),
        (Failed, "RetryableError", NOT_PROVISIONED, Retriable),
        (Failed, "", "", Retriable),
        (Failed, "SomethingNew", "", Retriable),
        (Failed, "Failed", "", Retriable),
        (Failed, "ConflictingConcurrentWriteNotAllowed", "", Retriable),
        (Failed, "ServiceUnavailable", "", Retriable),
        (Failed, "ServerTimeout", "", Retriable),
        (Failed, "OperationTimedOut", "", Retriable),
        (Failed, "GatewayTimeout", "", Retriable),
        (Failed, "ModificationOfNICIpConfigBackendPoolNotSupported", "", Terminal),
        (Failed, "LinkedAuthorizationFailed", "", Terminal),
    ] {
        let error = ErrorBody::from_json(&nested(code, inner));
        let ended = ArmError::OperationFailed { status, error };
        assert_eq!(ended.class(), class, "{status:?} {code} {inner}");
    }
}

#[test]
fn error_texts_and_codes() {
    let cause = json!({"code": SUPERSEDED, "message": "By b."});
    let error = json!({"code": "Canceled", "message": "Operation was \"canceled\".", "details": [cause]});
    let (status, error) = (OperationFailure::Canceled, read(&json!({"error": error})));
    let failed = ArmError::OperationFailed { status, error };
    assert_eq!(
        failed.to_string(),
        "the operation ended Canceled: Canceled: Operation was \"canceled\". \
         (CanceledAndSupersededDueToAnotherOperation: By b.)"
    );
    assert_eq!(failed.code(), "Canceled");
    let rejected = ArmError::ErrorResponse {
        status: StatusCode::BAD_GATEWAY,
        error: ErrorBody::parse("é".repeat(1000).as_bytes()),
        retry_after: Some(Duration::from_secs(3)),
        may_have_applied: false,
    };
    let shown = format!("ARM answered 502: no code: {}", "é".repeat(200));
    assert_eq!(rejected.to_string(), shown);
    assert_eq!(rejected.code(), "Refused");
    assert_eq!(ErrorBody::parse(b"[]").message, "[]");
    assert_eq!(rejected.retry_after(Instant::now()), Some(Duration::from_secs(3)));
}

#[test]
fn nested_errors_are_read_to_a_limit() {
    let mut body = json!({"code": "x"});
    for _ in 0..50 {
        body = json!({"code": "x", "details": [body]});
    }
    assert_eq!(read(&body).flatten().count(), MAX_DEPTH + 1);
}

#[test]
fn rate_limits_and_busy_resources_differ() {
    for (code, inner, expected) in [
        ("SubscriptionRequestsThrottled", "", true),
        ("TooManyRequests", "", true),
        ("", "", true),
        ("RetryableError", NOT_PROVISIONED, false),
        ("AnotherOperationInProgress", "", false),
        ("ConflictingConcurrentWriteNotAllowed", "", false),
    ] {
        let error = ErrorBody::from_json(&nested(code, inner));
        assert_eq!(is_rate_limited(&error), expected, "{code} {inner}");
    }
}

fn response(status: u16, code: &str, retry_after: Option<u64>, may_have_applied: bool) -> ArmError {
    ArmError::ErrorResponse {
        status: StatusCode::from_u16(status).unwrap(),
        error: read(&error(code, "…")),
        retry_after: retry_after.map(Duration::from_secs),
        may_have_applied,
    }
}

fn ended(code: &str) -> ArmError {
    let (status, error) = (OperationFailure::Failed, read(&error(code, "…")));
    ArmError::OperationFailed { status, error }
}

#[test]
fn what_an_error_says_of_the_request_and_the_resource() {
    let until = Instant::now();
    let not_permitted = |may_have_applied| ArmError::NotPermitted { may_have_applied };
    let answered = [
        (404, "NotFound", "pool resource final"),
        (404, "resourcenotfound", "pool resource final"),
        (404, "ParentResourceNotFound", "pool final"),
        (404, "ResourceGroupNotFound", "resource final"),
        (404, "", "final"),
        (400, "NotFound", "final"),
        (412, "PreconditionFailed", "final"),
        (409, "Conflict", ""),
        (408, "", "accepted"),
        (503, "ServerTimeout", "accepted"),
        (429, "TooManyRequests", "throttled"),
        (503, "TooManyRequests", "accepted"),
        (429, "RetryableError", ""),
    ]
    .map(|(status, code, expected)| {
        let shown = if code.is_empty() { "Refused" } else { code };
        (response(status, code, None, false), shown, expected)
    });
    let others = [
        (response(409, "Conflict", None, true), "Conflict", "accepted"),
        (ended("NotFound"), "NotFound", "pool"),
        (ended("Conflict"), "Conflict", ""),
        (ended(""), "Failed", ""),
        (ArmError::ReadBackMismatch("p".to_owned()), "NotShown", ""),
        (ArmError::Connection("cut".to_owned()), "Connection", "accepted"),
        (ArmError::DeadlineExceeded, "Deadline", "accepted"),
        (ArmError::InvalidResponse("x".to_owned()), "Answer", "accepted"),
        (ArmError::TooLarge("x".to_owned()), "Answer", "accepted"),
        (ArmError::Throttled { until }, "Throttled", "unsent throttled"),
        (ArmError::RateLimited, "RateLimited", "unsent"),
        (ArmError::Busy("p".to_owned()), "Busy", "unsent"),
        (not_permitted(false), "NotPermitted", "unsent"),
        (not_permitted(true), "NotPermitted", "accepted"),
        (TokenError::AzureCli("x".to_owned()).into(), "Token", "unsent"),
    ];
    for (error, code, expected) in answered.into_iter().chain(others) {
        let found = [
            (error.is_not_sent(), "unsent"),
            (error.may_have_been_accepted(), "accepted"),
            (error.is_about_missing_pool(), "pool"),
            (error.is_about_missing_resource(), "resource"),
            (error.is_final_status(), "final"),
            (error.is_throttled(), "throttled"),
        ];
        let found: Vec<_> = found
            .iter()
            .filter(|(is_so, _)| *is_so)
            .map(|(_, word)| *word)
            .collect();
        assert_eq!((error.code(), found.join(" ").as_str()), (code, expected), "{error}");
    }
}

#[test]
fn a_throttled_request_waits_for_a_second_at_least_and_a_busy_resource_says_nothing() {
    let now = Instant::now();
    let until = now + Duration::from_secs(5);
    for (error, expected, is_busy) in [
        (response(429, "TooManyRequests", None, false), Some(1), false),
        (response(429, "TooManyRequests", Some(0), false), Some(1), false),
        (response(429, "TooManyRequests", Some(3), false), Some(3), false),
        (response(429, "RetryableError", None, false), None, true),
        (response(429, "RetryableError", Some(0), false), Some(0), false),
        (
            response(409, "ConflictingConcurrentWriteNotAllowed", None, false),
            None,
            true,
        ),
        (
            response(429, "ConflictingConcurrentWriteNotAllowed", None, false),
            None,
            true,
        ),
        (response(503, "", Some(2), false), Some(2), false),
        (ArmError::Throttled { until }, Some(5), false),
        (ArmError::RateLimited, None, false),
    ] {
        assert_eq!(error.retry_after(now), expected.map(Duration::from_secs), "{error}");
        assert_eq!(error.is_resource_busy(), is_busy, "{error}");
    }
}
