//! The response that a fault puts in place of the emulator's own: as given, or by the code of an error whose body is
//! known from Azure.
//!
//! Bodies by code follow what was published (throttling, a referenced resource that is not ready, a stale etag) and
//! name the resources of the request. lab/azure-emulator/README.md says how sure each one is.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::RequestSummary;
use super::given_response::GivenResponse;
use crate::error::ErrorResponse;
use crate::guids::guid_for_name;

/// A response to send instead of the emulator's own.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "GivenResponse")]
pub(crate) struct InjectedResponse {
    pub(crate) status: StatusCode,
    /// Headers; they replace those that belong to the body.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

/// The body of an injected response.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// A JSON document, already serialized; sent as `application/json`.
    Json(Bytes),
    /// Anything but JSON, such as a gateway's page; sent as `text/html`.
    Text(Bytes),
    Empty,
    /// A generic error in ARM's shape, derived from the status.
    ForStatus,
    /// A known error. The string is the resource that it names, for the codes that name one.
    ForCode(KnownError, Option<String>),
}

/// Errors of Azure whose bodies are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum KnownError {
    /// ARM's token bucket is empty.
    SubscriptionRequestsThrottled,
    /// A resource that the written one refers to is being updated.
    ReferencedResourceNotProvisioned,
    /// Another operation has locked the resource.
    RetryableErrorDueToAnotherOperation,
    /// The same, as other resource types report it.
    AnotherOperationInProgress,
    /// The same; the wording is a guess.
    ConflictingConcurrentWriteNotAllowed,
    /// The etag is stale.
    PreconditionFailed,
    /// The identity has no role with the right.
    AuthorizationFailed,
}

/// Seconds in ARM's throttling message where the rule has no `retryAfter`; as in the published one.
const THROTTLED_SECONDS: &str = "10";

impl KnownError {
    /// The status that Azure sends with it.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::SubscriptionRequestsThrottled
            | Self::ReferencedResourceNotProvisioned
            | Self::RetryableErrorDueToAnotherOperation => StatusCode::TOO_MANY_REQUESTS,
            Self::AnotherOperationInProgress | Self::ConflictingConcurrentWriteNotAllowed => StatusCode::CONFLICT,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::AuthorizationFailed => StatusCode::FORBIDDEN,
        }
    }

    /// Whether its message names another resource.
    pub(crate) fn names_resource(self) -> bool {
        self == Self::ReferencedResourceNotProvisioned
    }
}

impl InjectedResponse {
    /// The response to this request.
    pub(crate) fn response(&self, request: &RequestSummary<'_>) -> Response<Bytes> {
        let mut response = match &self.body {
            Body::Json(body) => with_content_type("application/json; charset=utf-8", body),
            Body::Text(body) => with_content_type("text/html", body),
            Body::Empty => Response::new(Bytes::new()),
            Body::ForStatus => error_for_status(self.status).response(),
            Body::ForCode(code, named_resource) => self
                .error_for_code(*code, named_resource.as_deref(), request)
                .response(),
        };
        *response.status_mut() = self.status;
        response.headers_mut().extend(self.headers.clone());
        response
    }

    fn error_for_code(
        &self,
        code: KnownError,
        named_resource: Option<&str>,
        request: &RequestSummary<'_>,
    ) -> ErrorResponse {
        let error = |code, message| ErrorResponse::new(self.status, code, message);
        let retryable = || error("RetryableError", "A retryable error occurred.".to_owned());
        let path = request.path;
        let subscription = segment_after(path, "subscriptions").unwrap_or("00000000-0000-0000-0000-000000000000");
        match code {
            KnownError::SubscriptionRequestsThrottled => {
                let kind = match request.method {
                    "GET" | "HEAD" => "read",
                    "DELETE" => "delete",
                    _ => "write",
                };
                let seconds = self.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
                let message = format!(
                    "Number of '{kind}' requests for subscription '{subscription}' actor '{}' exceeded. Please try again \
                     after '{}' seconds.",
                    request.principal.unwrap_or_default(),
                    seconds.unwrap_or(THROTTLED_SECONDS)
                );
                error("SubscriptionRequestsThrottled", message)
            }
            KnownError::ReferencedResourceNotProvisioned => {
                let named_resource = named_resource.map_or_else(|| example_interface(path), str::to_owned);
                let message = format!(
                    "Cannot proceed with operation because resource {named_resource} used by resource {path} is not in Succeeded \
                     state. Resource is in Updating state and the last operation that updated/is updating the resource is \
                     PutNicOperation."
                );
                retryable().detail("ReferencedResourceNotProvisioned", message)
            }
            KnownError::RetryableErrorDueToAnotherOperation => {
                let message = format!("The resource {path} is locked by another operation.");
                retryable().detail("RetryableErrorDueToAnotherOperation", message)
            }
            KnownError::AnotherOperationInProgress => {
                let operation = derived_guid(path, "operation");
                let message = format!(
                    "Another operation on this or dependent resource is in progress. To retrieve status of the operation \
                     use uri: https://management.azure.com/subscriptions/{subscription}/providers/Microsoft.Network/\
                     locations/eastus/operations/{operation}?api-version=2025-05-01."
                );
                error("AnotherOperationInProgress", message).without_details()
            }
            KnownError::ConflictingConcurrentWriteNotAllowed => {
                let message = format!("Another write of {path} is in progress. Please retry later.");
                error("ConflictingConcurrentWriteNotAllowed", message).without_details()
            }
            KnownError::PreconditionFailed => {
                let message = format!(
                    "Etag provided in if-match header {} does not match etag W/\"{}\" of resource {path} in NRP data store.",
                    as_weak_etag(request.if_match.unwrap_or_default()),
                    derived_guid(path, "etag")
                );
                error("PreconditionFailed", "Precondition failed.".to_owned())
                    .detail("PreconditionFailedEtagMismatch", message)
            }
            KnownError::AuthorizationFailed => {
                let message = format!(
                    "The client '{principal}' with object id '{principal}' does not have authorization to perform action '{}' over \
                     scope '{path}' or the scope is invalid. If access was recently granted, please refresh your credentials.",
                    action(request.method, path),
                    principal = request.principal.unwrap_or_default(),
                );
                error("AuthorizationFailed", message)
            }
        }
    }
}

/// A generic error for a rule with only a status; its message says that a fault made it.
fn error_for_status(status: StatusCode) -> ErrorResponse {
    let reason = status.canonical_reason().unwrap_or("Injected");
    let code: String = reason.chars().filter(char::is_ascii_alphanumeric).collect();
    ErrorResponse::new(status, &code, format!("{reason}: answered by an injected fault."))
}

fn with_content_type(kind: &'static str, body: &Bytes) -> Response<Bytes> {
    let mut response = Response::new(body.clone());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The etag as the network provider repeats it, in any spelling of the request.
fn as_weak_etag(etag: &str) -> String {
    let opaque = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
    format!("W/\"{opaque}\"")
}

fn segment_after<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let mut segments = path
        .split('/')
        .skip_while(|segment| !segment.eq_ignore_ascii_case(name));
    segments.nth(1).filter(|segment| !segment.is_empty())
}

/// The right that a request needs, such as `Microsoft.Network/loadBalancers/write`.
fn action(method: &str, path: &str) -> String {
    let verb = match method {
        "GET" | "HEAD" => "read",
        "DELETE" => "delete",
        _ => "write",
    };
    let mut segments = path.split('/').skip_while(|segment| *segment != "providers").skip(1);
    let provider = segments.next().unwrap_or("Microsoft.Resources");
    // Types and names alternate.
    let types = segments.step_by(2);
    let parts: Vec<_> = std::iter::once(provider).chain(types).chain([verb]).collect();
    parts.join("/")
}

/// An interface in the group of the resource, for an error that names one.
fn example_interface(path: &str) -> String {
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

/// A GUID for something that does not exist; the same for the same resource.
fn derived_guid(path: &str, what: &str) -> Uuid {
    guid_for_name(&json!([what, path]).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const POOL: &str =
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/p";

    fn request(method: &'static str) -> RequestSummary<'static> {
        RequestSummary {
            method,
            path: POOL,
            user_agent: "",
            if_match: Some("\"stale\""),
            principal: Some("actor"),
        }
    }

    fn send(code: KnownError, retry_after: Option<&'static str>, method: &'static str) -> Value {
        let mut headers = HeaderMap::new();
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(seconds));
        }
        let injected = InjectedResponse {
            status: code.status(),
            headers,
            body: Body::ForCode(code, None),
        };
        let response = injected.response(&request(method));
        assert_eq!(response.status(), code.status());
        let sent = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap());
        assert_eq!(sent, retry_after, "only if the rule has it");
        serde_json::from_slice(response.body()).unwrap()
    }

    #[test]
    fn injected_throttling_is_as_published() {
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
                send(KnownError::SubscriptionRequestsThrottled, retry_after, method),
                json!({"error": {"code": "SubscriptionRequestsThrottled", "message": message}})
            );
        }
    }

    #[test]
    fn injected_conflicts_are_as_published() {
        let nic = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkInterfaces/nic";
        assert_eq!(
            send(KnownError::ReferencedResourceNotProvisioned, None, "PUT"),
            json!({"error": {"code": "RetryableError", "message": "A retryable error occurred.", "details": [{
                "code": "ReferencedResourceNotProvisioned",
                "message": format!(
                    "Cannot proceed with operation because resource {nic} used by resource {POOL} is not in Succeeded state. \
                     Resource is in Updating state and the last operation that updated/is updating the resource is \
                     PutNicOperation."
                ),
            }]}})
        );
        let another = send(KnownError::RetryableErrorDueToAnotherOperation, None, "PUT");
        assert_eq!(another["error"]["code"], "RetryableError");
        assert_eq!(
            another["error"]["details"][0]["code"],
            "RetryableErrorDueToAnotherOperation"
        );
        let progress = send(KnownError::AnotherOperationInProgress, None, "PUT");
        assert_eq!(progress["error"]["code"], "AnotherOperationInProgress");
        let message = progress["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with(
                "Another operation on this or dependent resource is in progress. To retrieve status of the operation use uri: \
                 https://management.azure.com/subscriptions/s/providers/Microsoft.Network/locations/eastus/operations/"
            ),
            "{message}"
        );
        let concurrent = send(KnownError::ConflictingConcurrentWriteNotAllowed, None, "PUT");
        assert_eq!(concurrent["error"]["code"], "ConflictingConcurrentWriteNotAllowed");
        let stale = send(KnownError::PreconditionFailed, None, "PUT");
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
    fn a_missing_right_is_named_with_its_action() {
        for (method, verb) in [("GET", "read"), ("PUT", "write"), ("DELETE", "delete")] {
            let message = format!(
                "The client 'actor' with object id 'actor' does not have authorization to perform action \
                 'Microsoft.Network/loadBalancers/backendAddressPools/{verb}' over scope '{POOL}' or the scope is invalid. If \
                 access was recently granted, please refresh your credentials."
            );
            assert_eq!(
                send(KnownError::AuthorizationFailed, None, method),
                json!({"error": {"code": "AuthorizationFailed", "message": message}})
            );
        }
        let list = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers";
        assert_eq!(action("GET", list), "Microsoft.Network/loadBalancers/read");
    }

    #[test]
    fn given_bodies_are_sent_unchanged() {
        for (status, body, kind, want) in [
            (
                429,
                Body::ForStatus,
                Some("application/json; charset=utf-8"),
                "TooManyRequests",
            ),
            (
                503,
                Body::ForStatus,
                Some("application/json; charset=utf-8"),
                "ServiceUnavailable",
            ),
            (
                599,
                Body::ForStatus,
                Some("application/json; charset=utf-8"),
                "Injected",
            ),
            (502, Body::Text("<html>".into()), Some("text/html"), "<html>"),
            (
                200,
                Body::Json("[1]".into()),
                Some("application/json; charset=utf-8"),
                "[1]",
            ),
            (204, Body::Empty, None, ""),
        ] {
            let injected = InjectedResponse {
                status: StatusCode::from_u16(status).unwrap(),
                headers: HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("1"))]),
                body,
            };
            let response = injected.response(&request("GET"));
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
