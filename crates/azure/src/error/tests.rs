//! The class of every error body that was recorded from Azure or quoted in public reports.

use serde_json::{Value, json};

use ErrorClass::{Retriable, Stale, Terminal};

use super::*;

fn read(error: &Value) -> ErrorBody {
    ErrorBody::parse(error.to_string().as_bytes())
}

fn error(code: &str, message: &str) -> Value {
    json!({"error": {"code": code, "message": message}})
}

fn nested(code: &str, inner: &str) -> Value {
    json!({"error": {"code": code, "message": "…", "details": [{"code": inner, "message": "…"}]}})
}

fn check(status: u16, body: &Value, class: ErrorClass) {
    let status = StatusCode::from_u16(status).unwrap();
    assert_eq!(classify(Some(status), &read(body)), class, "{status} {body}");
}

#[test]
fn conflicts_with_other_writers() {
    for (status, body, class) in [
        (
            412,
            nested("PreconditionFailed", "PreconditionFailedEtagMismatch"),
            Stale,
        ),
        (409, nested("Canceled", SUPERSEDED), Stale),
        // Some responses have the code in their text only, in any case.
        (
            409,
            error("Conflict", "… canceledandsupersededduetoanotheroperation …"),
            Stale,
        ),
        (
            429,
            nested("RetryableError", "ReferencedResourceNotProvisioned"),
            Retriable,
        ),
        (
            429,
            nested("RetryableError", "RetryableErrorDueToAnotherOperation"),
            Retriable,
        ),
        (409, error("AnotherOperationInProgress", "…"), Retriable),
        (429, error("AnotherOperationInProgress", "…"), Retriable),
        (
            429,
            error(
                "SubscriptionRequestsThrottled",
                "… for subscription 's' actor 'a' exceeded. …",
            ),
            Retriable,
        ),
    ] {
        check(status, &body, class);
    }
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
        (
            401,
            Retriable,
            &["InvalidAuthenticationToken", "ExpiredAuthenticationToken"],
        ),
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
    for (code, inner) in [
        (
            "InvalidRequestFormat",
            "DuplicateIpConfigurationReferenceOnBackendAddressPool",
        ),
        ("InvalidRequest", "NotFound"),
        ("InvalidResourceReference", "NotFound"),
    ] {
        check(400, &nested(code, inner), Terminal);
    }
}

#[test]
fn classes_by_status_without_a_known_code() {
    for (status, class) in [
        (302, Terminal),
        (400, Terminal),
        (401, Retriable),
        (403, Terminal),
        (404, Stale),
        (405, Terminal),
        (408, Retriable),
        (409, Retriable),
        (410, Retriable),
        (412, Stale),
        (413, Terminal),
        (429, Retriable),
        (500, Retriable),
        (502, Retriable),
        (504, Retriable),
        (507, Retriable),
    ] {
        for body in [
            "",
            "<html>Bad gateway</html>",
            "{}",
            "[]",
            r#"{"error": null}"#,
            r#"{"error": {"code": 7}}"#,
        ] {
            let error = ErrorBody::parse(body.as_bytes());
            assert_eq!(
                classify(Some(StatusCode::from_u16(status).unwrap()), &error),
                class,
                "{status} {body}"
            );
        }
    }
}

#[test]
fn classes_of_failed_operations() {
    use OperationFailure::{Canceled, Failed};
    let coded = |code: &str| json!({"code": code});
    let nested = |code: &str, inner: &str| json!({"code": code, "details": [{"code": inner}]});
    for (status, error, class) in [
        (Canceled, nested("Canceled", SUPERSEDED), Stale),
        (
            Canceled,
            json!({"code": "Canceled", "message": "Operation was canceled.", "details": []}),
            Stale,
        ),
        (Failed, coded("PreconditionFailed"), Stale),
        (Failed, coded("InternalServerError"), Retriable),
        (
            Failed,
            nested("RetryableError", "ReferencedResourceNotProvisioned"),
            Retriable,
        ),
        (Failed, json!({}), Retriable),
        (Failed, coded("SomethingNew"), Retriable),
        (Failed, coded("Failed"), Retriable),
        (Failed, coded("ConflictingConcurrentWriteNotAllowed"), Retriable),
        (Failed, coded("ServiceUnavailable"), Retriable),
        (Failed, coded("ServerTimeout"), Retriable),
        (Failed, coded("OperationTimedOut"), Retriable),
        (Failed, coded("GatewayTimeout"), Retriable),
        (
            Failed,
            coded("ModificationOfNICIpConfigBackendPoolNotSupported"),
            Terminal,
        ),
        (Failed, coded("LinkedAuthorizationFailed"), Terminal),
    ] {
        let ended = ArmError::OperationFailed {
            status,
            error: ErrorBody::from_json(&error),
        };
        assert_eq!(ended.class(), class, "{error}");
    }
}

#[test]
fn error_texts_and_codes() {
    let error = read(
        &json!({"error": {"code": "Canceled", "message": "Operation was \"canceled\".",
        "details": [{"code": SUPERSEDED, "message": "By b."}]}}),
    );
    let failed = ArmError::OperationFailed {
        status: OperationFailure::Canceled,
        error,
    };
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
    assert_eq!(
        rejected.to_string(),
        format!("ARM answered 502: no code: {}", "é".repeat(200))
    );
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
    for (body, expected) in [
        (json!({"error": {"code": "SubscriptionRequestsThrottled"}}), true),
        (json!({"error": {"code": "TooManyRequests"}}), true),
        (json!({}), true),
        (
            json!({"error": {"code": "RetryableError", "details": [{"code": "ReferencedResourceNotProvisioned"}]}}),
            false,
        ),
        (json!({"error": {"code": "AnotherOperationInProgress"}}), false),
    ] {
        assert_eq!(is_rate_limited(&read(&body)), expected, "{body}");
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
    ArmError::OperationFailed {
        status: OperationFailure::Failed,
        error: read(&error(code, "…")),
    }
}

#[test]
fn what_an_error_says_of_the_request_and_the_resource() {
    let answered = |status, code| response(status, code, None, false);
    let until = Instant::now();
    for (error, code, expected) in [
        (answered(404, "NotFound"), "NotFound", "pool resource final"),
        (
            answered(404, "resourcenotfound"),
            "resourcenotfound",
            "pool resource final",
        ),
        (
            answered(404, "ParentResourceNotFound"),
            "ParentResourceNotFound",
            "pool final",
        ),
        (
            answered(404, "ResourceGroupNotFound"),
            "ResourceGroupNotFound",
            "resource final",
        ),
        (answered(404, ""), "Refused", "final"),
        (answered(400, "NotFound"), "NotFound", "final"),
        (answered(412, "PreconditionFailed"), "PreconditionFailed", "final"),
        (answered(409, "Conflict"), "Conflict", ""),
        (response(409, "Conflict", None, true), "Conflict", "accepted"),
        (answered(408, ""), "Refused", "accepted"),
        (answered(503, "ServerTimeout"), "ServerTimeout", "accepted"),
        (answered(429, "TooManyRequests"), "TooManyRequests", "throttled"),
        (answered(503, "TooManyRequests"), "TooManyRequests", "accepted"),
        (answered(429, "RetryableError"), "RetryableError", ""),
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
        (
            ArmError::NotPermitted {
                may_have_applied: false,
            },
            "NotPermitted",
            "unsent",
        ),
        (
            ArmError::NotPermitted { may_have_applied: true },
            "NotPermitted",
            "accepted",
        ),
        (TokenError::AzureCli("x".to_owned()).into(), "Token", "unsent"),
    ] {
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
        (response(503, "", Some(2), false), Some(2), false),
        (ArmError::Throttled { until }, Some(5), false),
        (ArmError::RateLimited, None, false),
    ] {
        assert_eq!(error.retry_after(now), expected.map(Duration::from_secs), "{error}");
        assert_eq!(error.is_resource_busy(), is_busy, "{error}");
    }
}
