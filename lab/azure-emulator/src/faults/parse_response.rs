//! Parses the object under `answer` of a rule: the response that the request gets.

use axum::http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER, TRANSFER_ENCODING, UPGRADE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use bytes::Bytes;
use serde_json::Value;

use super::action::parse_path;
use super::injected_response::{Body, InjectedResponse, KNOWN_ERRORS, KnownError};
use crate::fields::Fields;

/// The longest `Retry-After`, in seconds: a day. Azure's own are seconds to minutes.
const MAX_RETRY_AFTER_SECONDS: u64 = 24 * 60 * 60;
/// Headers of one response; no response of Azure has more.
const MAX_HEADERS: usize = 50;
/// Headers that the listener writes itself.
const FRAMING: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE];

/// Parses the object; `None` if it has a mistake.
pub(super) fn read(fields: &mut Fields<'_>) -> Option<InjectedResponse> {
    let status = fields.number("status", 200..=599);
    let status = status.and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok());
    let code = fields.word("code", KNOWN_ERRORS);
    let named_resource = fields.text("resource", parse_path);
    let json = fields.value("body");
    let text = fields.text("text", |text| Ok(Bytes::copy_from_slice(text.as_bytes())));
    let mut headers = fields.parsed("headers", headers).unwrap_or_default();
    if let Some(seconds) = fields.number("retryAfter", 0..=MAX_RETRY_AFTER_SECONDS)
        && headers.insert(RETRY_AFTER, seconds.into()).is_some()
    {
        fields.mistake("has Retry-After twice: in retryAfter and in headers");
    }
    if named_resource.is_some() && !code.is_some_and(KnownError::names_resource) {
        fields.mistake("has a resource, which only the code ReferencedResourceNotProvisioned uses");
    }
    if usize::from(code.is_some()) + usize::from(json.is_some()) + usize::from(text.is_some()) > 1 {
        fields.mistake("must have at most one of code, body, text");
    }
    if let Some(code) = code
        && status.is_some_and(|status| status.as_u16() < 400)
    {
        fields.mistake(format_args!(
            "has the error code {code:?} and a status that is no error"
        ));
    }
    let Some(status) = status.or(code.map(KnownError::status)) else {
        fields.mistake("must have a status or a code");
        return None;
    };
    let body = match (code, json, text) {
        (Some(code), ..) => Body::ForCode(code, named_resource),
        (_, Some(json), _) => Body::Json(Bytes::from(json.to_string())),
        (.., Some(text)) => Body::Text(text),
        _ if status.is_client_error() || status.is_server_error() => Body::ForStatus,
        _ => Body::Empty,
    };
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) && !matches!(body, Body::Empty) {
        fields.mistake("has a status that comes without a body, and a body");
    }
    Some(InjectedResponse { status, headers, body })
}

fn headers(value: Value) -> Result<HeaderMap, String> {
    let Value::Object(given) = value else {
        return Err("an object of names and texts".to_owned());
    };
    if given.len() > MAX_HEADERS {
        return Err(format!("an object of at most {MAX_HEADERS} headers"));
    }
    let header = |(name, value): (&String, &Value)| {
        let name = HeaderName::try_from(name).ok().filter(|name| !FRAMING.contains(name))?;
        Some((name, HeaderValue::try_from(value.as_str()?).ok()?))
    };
    given.iter().map(header).collect::<Option<_>>().ok_or_else(|| {
        "an object of header names and their texts, without those that the listener writes itself (connection, \
         content-length, transfer-encoding, upgrade)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::RequestSummary;
    use super::*;
    use crate::fields;

    #[test]
    fn responses_are_parsed() {
        let request = RequestSummary {
            method: "PUT",
            path: "/subscriptions/s/resourceGroups/g/x",
            ..RequestSummary::default()
        };
        for (given, status, retry_after, contains) in [
            (json!({"status": 429}), 429, None, r#""code":"TooManyRequests""#),
            (
                json!({"status": 429, "retryAfter": 2}),
                429,
                Some("2"),
                "TooManyRequests",
            ),
            (
                json!({"status": 429, "headers": {"Retry-After": "Sat, 21 Nov 2026 08:00:00 GMT"}, "body": {"a": [1]}}),
                429,
                Some("Sat, 21 Nov 2026 08:00:00 GMT"),
                r#"{"a":[1]}"#,
            ),
            (json!({"status": 502, "text": "<html>"}), 502, None, "<html>"),
            (json!({"status": 200, "text": ""}), 200, None, ""),
            (
                json!({"code": "AnotherOperationInProgress"}),
                409,
                None,
                "AnotherOperationInProgress",
            ),
            (
                json!({"code": "AnotherOperationInProgress", "status": 429}),
                429,
                None,
                "AnotherOperationInProgress",
            ),
            (
                json!({"code": "ReferencedResourceNotProvisioned", "resource": "/nic"}),
                429,
                None,
                "because resource /nic used by resource /subscriptions/s/resourceGroups/g/x is not",
            ),
            (
                json!({"code": "SubscriptionRequestsThrottled", "retryAfter": 3}),
                429,
                Some("3"),
                "after '3' seconds",
            ),
            (
                json!({"code": "PreconditionFailed"}),
                412,
                None,
                "PreconditionFailedEtagMismatch",
            ),
        ] {
            let Ok(injected) = fields::read(given.clone(), "answer", read) else {
                panic!("{given}")
            };
            let response = injected.response(&request);
            assert_eq!(response.status(), status, "{given}");
            let retry_after_sent = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(retry_after_sent, retry_after, "{given}");
            let body = String::from_utf8_lossy(response.body());
            assert!(body.contains(contains), "{given}: {body}");
        }
    }
}
