//! An answer in the place of the emulator's, read from the JSON that people give it as.

use axum::http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER, TRANSFER_ENCODING, UPGRADE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use bytes::Bytes;
use serde_json::Value;

use super::super::fields::Fields;
use super::super::injected::{Body, CODES, Code, Injected};

/// The longest wait that can be told, a day: Azure's own are seconds to minutes.
const MAX_RETRY_AFTER: u64 = 24 * 60 * 60;
/// More headers than any answer of Azure's has.
const MAX_HEADERS: usize = 50;
/// What the listener writes itself.
const FRAMING: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE];

/// Reads what stands under `answer`.
pub(super) fn read(fields: &mut Fields<'_>) -> Option<Injected> {
    let status = fields.number("status", 200..=599);
    let status = status.and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok());
    let code = fields.word("code", CODES);
    let blamed = fields.text("resource", super::path);
    let json = fields.value("body");
    let text = fields.text("text", |text| Ok(Bytes::copy_from_slice(text.as_bytes())));
    let mut headers = fields.parsed("headers", headers).unwrap_or_default();
    if let Some(seconds) = fields.number("retryAfter", 0..=MAX_RETRY_AFTER)
        && headers.insert(RETRY_AFTER, seconds.into()).is_some()
    {
        fields.mistake("has Retry-After twice: in retryAfter and in headers");
    }
    if blamed.is_some() && !code.is_some_and(Code::blames) {
        fields.mistake("has a resource, which only the code ReferencedResourceNotProvisioned uses");
    }
    if usize::from(code.is_some()) + usize::from(json.is_some()) + usize::from(text.is_some()) > 1 {
        fields.mistake("must have at most one of code, body, text");
    }
    if let Some(code) = code
        && status.is_some_and(|status| status.as_u16() < 400)
    {
        fields.mistake(format_args!("has the code of an error, {code:?}, and no status of one"));
    }
    let Some(status) = status.or(code.map(Code::status)) else {
        fields.mistake("must have a status or a code");
        return None;
    };
    let body = match (code, json, text) {
        (Some(code), ..) => Body::OfCode(code, blamed),
        (_, Some(json), _) => Body::Json(Bytes::from(json.to_string())),
        (.., Some(text)) => Body::Text(text),
        _ if status.is_client_error() || status.is_server_error() => Body::OfStatus,
        _ => Body::Empty,
    };
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) && !matches!(body, Body::Empty) {
        fields.mistake("has a status that comes without a body, and a body");
    }
    Some(Injected { status, headers, body })
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

    use super::super::super::faults::Asked;
    use super::super::super::fields;
    use super::*;

    #[test]
    fn answers() {
        let asked = Asked {
            method: "PUT",
            path: "/subscriptions/s/resourceGroups/g/x",
            ..Asked::default()
        };
        for (given, status, retry_after, says) in [
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
            let response = injected.response(&asked);
            assert_eq!(response.status(), status, "{given}");
            let told = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(told, retry_after, "{given}");
            let body = String::from_utf8_lossy(response.body());
            assert!(body.contains(says), "{given}: {body}");
        }
    }
}
