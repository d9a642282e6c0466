//! The object under `answer` of a rule: the response that the request gets.

use std::collections::BTreeMap;

use axum::http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER, TRANSFER_ENCODING, UPGRADE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::action::checked_path;
use super::injected_response::{Body, InjectedResponse, KnownError};

/// The longest `Retry-After`, in seconds: a day. Azure's own are seconds to minutes.
const MAX_RETRY_AFTER_SECONDS: u64 = 24 * 60 * 60;
/// Headers of one response; no response of Azure has more.
const MAX_HEADERS: usize = 50;
/// Headers that the listener writes itself.
const FRAMING: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE];

/// The object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct GivenResponse {
    status: Option<u16>,
    code: Option<KnownError>,
    resource: Option<String>,
    body: Option<Value>,
    text: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    retry_after: Option<u64>,
}

impl TryFrom<GivenResponse> for InjectedResponse {
    type Error = String;

    fn try_from(given: GivenResponse) -> Result<Self, String> {
        let status = match (given.status, given.code) {
            (Some(status), _) => StatusCode::from_u16(status)
                .ok()
                .filter(|_| (200..=599).contains(&status)),
            (None, Some(code)) => Some(code.status()),
            (None, None) => None,
        };
        let status = status.ok_or("an answer must have a code, or a status from 200 to 599")?;
        let resource = given.resource.map(checked_path).transpose()?;
        if resource.is_some() && !given.code.is_some_and(KnownError::names_resource) {
            return Err("it has a resource, which only the code ReferencedResourceNotProvisioned uses".to_owned());
        }
        let is_error = status.is_client_error() || status.is_server_error();
        let body = match (given.code, given.body, given.text) {
            (Some(code), None, None) if is_error => Body::ForCode(code, resource),
            (Some(code), None, None) => {
                return Err(format!("it has the error code {code:?} and a status that is no error"));
            }
            (None, Some(json), None) => Body::Json(Bytes::from(json.to_string())),
            (None, None, Some(text)) => Body::Text(Bytes::from(text)),
            (None, None, None) if is_error => Body::ForStatus,
            (None, None, None) => Body::Empty,
            _ => return Err("an answer has at most one of code, body, text".to_owned()),
        };
        if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) && !matches!(body, Body::Empty) {
            return Err("it has a status that comes without a body, and a body".to_owned());
        }
        let headers = headers(&given.headers, given.retry_after)?;
        Ok(Self { status, headers, body })
    }
}

fn headers(given: &BTreeMap<String, String>, retry_after: Option<u64>) -> Result<HeaderMap, String> {
    if given.len() > MAX_HEADERS || retry_after.is_some_and(|seconds| seconds > MAX_RETRY_AFTER_SECONDS) {
        return Err(format!(
            "an answer has at most {MAX_HEADERS} headers, and a retryAfter of at most {MAX_RETRY_AFTER_SECONDS}"
        ));
    }
    let header = |(name, value): (&String, &String)| {
        let known = HeaderName::try_from(name).ok().filter(|name| !FRAMING.contains(name));
        let header = known.zip(HeaderValue::try_from(value).ok());
        header.ok_or_else(|| format!("{name:?} is not a header, or one that the listener writes itself"))
    };
    let mut headers = given.iter().map(header).collect::<Result<HeaderMap, _>>()?;
    if let Some(seconds) = retry_after
        && headers.insert(RETRY_AFTER, seconds.into()).is_some()
    {
        return Err("it has Retry-After twice: in retryAfter and in headers".to_owned());
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::RequestSummary;
    use super::*;

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
            let injected: InjectedResponse = serde_json::from_value(given.clone()).unwrap();
            let response = injected.response(&request);
            assert_eq!(response.status(), status, "{given}");
            let retry_after_sent = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(retry_after_sent, retry_after, "{given}");
            let body = String::from_utf8_lossy(response.body());
            assert!(body.contains(contains), "{given}: {body}");
        }
    }
}
