//! Answers that a fault puts in the place of the emulator's own: as given, or by the code of an error whose body is
//! known from Azure.
//!
//! Bodies by code follow what was seen (throttling, a referenced resource that is not ready, a stale etag), with
//! the resources of the request they answer; docs/azure-emulator.md says how sure each is.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde_json::json;
use uuid::Uuid;

use super::error::ArmError;
use super::faults::Asked;

/// One answer.
#[derive(Clone, Debug)]
pub(super) struct Injected {
    pub(super) status: StatusCode,
    /// Over whatever headers the body brings.
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
}

/// What it says.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// JSON, as given.
    Json(Bytes),
    /// Anything else, as a gateway might say.
    Text(Bytes),
    /// Nothing.
    Empty,
    /// The error that belongs to the status.
    OfStatus,
    /// The error with this code; the resource is the one it blames, where it blames one.
    OfCode(Code, Option<String>),
}

/// Errors that are known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// ARM's token bucket is empty.
    SubscriptionRequestsThrottled,
    /// A resource that the written one refers to is being written.
    ReferencedResourceNotProvisioned,
    /// The resource itself is locked by another operation.
    RetryableErrorDueToAnotherOperation,
    /// The same, as some kinds of resources say it.
    AnotherOperationInProgress,
    /// The etag is stale.
    PreconditionFailed,
}

/// The codes as people write them.
pub(super) const CODES: &[(&str, Code)] = &[
    ("SubscriptionRequestsThrottled", Code::SubscriptionRequestsThrottled),
    (
        "ReferencedResourceNotProvisioned",
        Code::ReferencedResourceNotProvisioned,
    ),
    (
        "RetryableErrorDueToAnotherOperation",
        Code::RetryableErrorDueToAnotherOperation,
    ),
    ("AnotherOperationInProgress", Code::AnotherOperationInProgress),
    ("PreconditionFailed", Code::PreconditionFailed),
];

/// The wait that ARM's throttling message names where the fault names none, as in the one that was seen.
const THROTTLED_SECONDS: &str = "10";

impl Code {
    /// The status it usually comes with.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::SubscriptionRequestsThrottled
            | Self::ReferencedResourceNotProvisioned
            | Self::RetryableErrorDueToAnotherOperation => StatusCode::TOO_MANY_REQUESTS,
            Self::AnotherOperationInProgress => StatusCode::CONFLICT,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        }
    }

    /// Whether it blames another resource.
    pub(super) fn blames(self) -> bool {
        self == Self::ReferencedResourceNotProvisioned
    }
}

impl Injected {
    /// The answer to this request.
    pub(super) fn response(&self, asked: &Asked<'_>) -> Response<Bytes> {
        let mut response = match &self.body {
            Body::Json(body) => with_type("application/json; charset=utf-8", body),
            Body::Text(body) => with_type("text/html", body),
            Body::Empty => Response::new(Bytes::new()),
            Body::OfStatus => of_status(self.status).response(),
            Body::OfCode(code, blamed) => self.of_code(*code, blamed.as_deref(), asked).response(),
        };
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.headers.clone());
        response
    }

    fn of_code(&self, code: Code, blamed: Option<&str>, asked: &Asked<'_>) -> ArmError {
        let error = |code, message| ArmError::new(self.status, code, message);
        let retryable = || error("RetryableError", "A retryable error occurred.".to_owned());
        let path = asked.path;
        let subscription = segment_after(path, "subscriptions").unwrap_or("00000000-0000-0000-0000-000000000000");
        match code {
            Code::SubscriptionRequestsThrottled => {
                let kind = match asked.method {
                    "GET" | "HEAD" => "read",
                    "DELETE" => "delete",
                    _ => "write",
                };
                let seconds = self.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
                let message = format!(
                    "Number of '{kind}' requests for subscription '{subscription}' actor '{}' exceeded. Please try again \
                     after '{}' seconds.",
                    asked.principal.unwrap_or_default(),
                    seconds.unwrap_or(THROTTLED_SECONDS)
                );
                error("SubscriptionRequestsThrottled", message)
            }
            Code::ReferencedResourceNotProvisioned => {
                let blamed = blamed.map_or_else(|| some_interface(path), str::to_owned);
                let message = format!(
                    "Cannot proceed with operation because resource {blamed} used by resource {path} is not in Succeeded \
                     state. Resource is in Updating state and the last operation that updated/is updating the resource is \
                     PutNicOperation."
                );
                retryable().detail("ReferencedResourceNotProvisioned", message)
            }
            Code::RetryableErrorDueToAnotherOperation => {
                let message = format!("The resource {path} is locked by another operation.");
                retryable().detail("RetryableErrorDueToAnotherOperation", message)
            }
            Code::AnotherOperationInProgress => {
                let operation = some_guid(path, "operation");
                let message = format!(
                    "Another operation on this or dependent resource is in progress. To retrieve status of the operation \
                     use uri: https://management.azure.com/subscriptions/{subscription}/providers/Microsoft.Network/\
                     locations/eastus/operations/{operation}?api-version=2025-05-01."
                );
                error("AnotherOperationInProgress", message).without_details()
            }
            Code::PreconditionFailed => {
                let message = format!(
                    "Etag provided in if-match header {} does not match etag W/\"{}\" of resource {path} in NRP data store.",
                    weak(asked.if_match.unwrap_or_default()),
                    some_guid(path, "etag")
                );
                error("PreconditionFailed", "Precondition failed.".to_owned())
                    .detail("PreconditionFailedEtagMismatch", message)
            }
        }
    }
}

/// An error of ours where only a status was given: its name for a code, and the admission that it is made up.
fn of_status(status: StatusCode) -> ArmError {
    let reason = status.canonical_reason().unwrap_or("Injected");
    let code: String = reason.chars().filter(char::is_ascii_alphanumeric).collect();
    ArmError::new(status, &code, format!("{reason}: answered by an injected fault."))
}

fn with_type(kind: &'static str, body: &Bytes) -> Response<Bytes> {
    let mut response = Response::new(body.clone());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The etag as the network provider repeats it, whatever it was given as.
fn weak(etag: &str) -> String {
    let opaque = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    format!("W/\"{opaque}\"")
}

fn segment_after<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let mut segments = path
        .split('/')
        .skip_while(|segment| !segment.eq_ignore_ascii_case(name));
    segments.nth(1).filter(|segment| !segment.is_empty())
}

/// An interface beside the resource, for an error that must blame one.
fn some_interface(path: &str) -> String {
    match (
        segment_after(path, "subscriptions"),
        segment_after(path, "resourceGroups"),
    ) {
        (Some(subscription), Some(group)) => format!(
            "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Network/networkInterfaces/nic"
        ),
        _ => path.to_owned(),
    }
}

/// A GUID for what does not exist, the same for the same resource.
fn some_guid(path: &str, what: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, json!([what, path]).to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const POOL: &str =
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/p";

    fn asked(method: &'static str) -> Asked<'static> {
        Asked {
            method,
            path: POOL,
            user_agent: "",
            if_match: Some("\"stale\""),
            principal: Some("actor"),
        }
    }

    fn of_code(code: Code, retry_after: Option<&'static str>, method: &'static str) -> Value {
        let mut headers = HeaderMap::new();
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(seconds));
        }
        let injected = Injected {
            status: code.status(),
            headers,
            body: Body::OfCode(code, None),
        };
        let response = injected.response(&asked(method));
        assert_eq!(response.status(), code.status());
        let told = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap());
        assert_eq!(told, retry_after, "only if it was asked for");
        serde_json::from_slice(response.body()).unwrap()
    }

    #[test]
    fn throttling_as_it_was_seen() {
        for (method, retry_after, kind, seconds) in [
            ("GET", Some("7"), "read", "7"),
            ("PUT", None, "write", "10"),
            ("DELETE", None, "delete", "10"),
        ] {
            let message = format!(
                "Number of '{kind}' requests for subscription 's' actor 'actor' exceeded. Please try again after '{seconds}' \
                 seconds."
            );
            assert_eq!(
                of_code(Code::SubscriptionRequestsThrottled, retry_after, method),
                json!({"error": {"code": "SubscriptionRequestsThrottled", "message": message}})
            );
        }
    }

    #[test]
    fn conflicts_as_they_were_seen() {
        let nic = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkInterfaces/nic";
        assert_eq!(
            of_code(Code::ReferencedResourceNotProvisioned, None, "PUT"),
            json!({"error": {"code": "RetryableError", "message": "A retryable error occurred.", "details": [{
                "code": "ReferencedResourceNotProvisioned",
                "message": format!(
                    "Cannot proceed with operation because resource {nic} used by resource {POOL} is not in Succeeded state. \
                     Resource is in Updating state and the last operation that updated/is updating the resource is \
                     PutNicOperation."
                ),
            }]}})
        );
        let another = of_code(Code::RetryableErrorDueToAnotherOperation, None, "PUT");
        assert_eq!(another["error"]["code"], "RetryableError");
        assert_eq!(
            another["error"]["details"][0]["code"],
            "RetryableErrorDueToAnotherOperation"
        );
        let progress = of_code(Code::AnotherOperationInProgress, None, "PUT");
        assert_eq!(progress["error"]["code"], "AnotherOperationInProgress");
        let message = progress["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with(
                "Another operation on this or dependent resource is in progress. To retrieve status of the operation use uri: \
                 https://management.azure.com/subscriptions/s/providers/Microsoft.Network/locations/eastus/operations/"
            ),
            "{message}"
        );
        let stale = of_code(Code::PreconditionFailed, None, "PUT");
        assert_eq!(stale["error"]["message"], "Precondition failed.");
        let detail = &stale["error"]["details"][0];
        assert_eq!(detail["code"], "PreconditionFailedEtagMismatch");
        let message = detail["message"].as_str().unwrap();
        assert!(
            message.starts_with("Etag provided in if-match header W/\"stale\" does not match etag W/\""),
            "{message}"
        );
        assert!(
            message.ends_with(&format!("\" of resource {POOL} in NRP data store.")),
            "{message}"
        );
    }

    #[test]
    fn bodies_as_given() {
        for (status, body, kind, want) in [
            (
                429,
                Body::OfStatus,
                Some("application/json; charset=utf-8"),
                "TooManyRequests",
            ),
            (
                503,
                Body::OfStatus,
                Some("application/json; charset=utf-8"),
                "ServiceUnavailable",
            ),
            (599, Body::OfStatus, Some("application/json; charset=utf-8"), "Injected"),
            (502, Body::Text("<html>".into()), Some("text/html"), "<html>"),
            (
                200,
                Body::Json("[1]".into()),
                Some("application/json; charset=utf-8"),
                "[1]",
            ),
            (204, Body::Empty, None, ""),
        ] {
            let injected = Injected {
                status: StatusCode::from_u16(status).unwrap(),
                headers: HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("1"))]),
                body,
            };
            let response = injected.response(&asked("GET"));
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()[RETRY_AFTER], "1");
            let sent = response
                .headers()
                .get(CONTENT_TYPE)
                .map(|value| value.to_str().unwrap());
            assert_eq!(sent, kind);
            let body = String::from_utf8_lossy(response.body());
            assert!(body.contains(want) && body.is_empty() == want.is_empty(), "{body}");
        }
    }
}
