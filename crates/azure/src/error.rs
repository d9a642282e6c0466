//! Failures between headgate and ARM, and the [`ErrorClass`] that says what to do about each.
//!
//! The class follows from ARM's error code, or from the HTTP status if the code is unknown ([`classify`];
//! docs/dev/decisions.md 11). To add an error class for a code, add a row to [`CODES`]. The failed operation of an accepted
//! write has a code and no status. No error holds a secret.

use std::time::Duration;

use headgate_core::telemetry::words;
use hyper::StatusCode;
use serde_json::Value;
use tokio::time::Instant;

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The request was based on an outdated state: read again, then decide again.
    Stale,
    /// The same request may succeed later.
    Retriable,
    /// The request fails until an operator changes something.
    Terminal,
}

/// The `error` object of a response or operation of ARM's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorBody {
    /// Such as `PreconditionFailed`; empty if the body has none.
    pub code: String,
    /// ARM's text, or the beginning of a body that is not an error of ARM's.
    pub message: String,
    /// Errors that caused this one, [`MAX_DEPTH`] levels at most.
    pub details: Vec<ErrorBody>,
}

/// Levels of nested errors that are read.
const MAX_DEPTH: usize = 8;
/// Characters that are kept of a body that is not an error of ARM's.
const MAX_TEXT_CHARS: usize = 200;

impl ErrorBody {
    /// Reads a response body: `{"error": …}`, or the error object itself.
    pub fn parse(body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(value) if value.is_object() => Self::from_json(value.get("error").unwrap_or(&value)),
            _ => Self {
                message: String::from_utf8_lossy(body).chars().take(MAX_TEXT_CHARS).collect(),
                ..Self::default()
            },
        }
    }

    /// Reads the error object.
    pub(crate) fn from_json(error: &Value) -> Self {
        Self::from_json_to_depth(error, MAX_DEPTH)
    }

    fn from_json_to_depth(error: &Value, depth: usize) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let details = error.get("details").and_then(Value::as_array).filter(|_| depth > 0);
        Self {
            code: text("code"),
            message: text("message"),
            details: details
                .into_iter()
                .flatten()
                .map(|detail| Self::from_json_to_depth(detail, depth - 1))
                .collect(),
        }
    }

    /// This error and its details at every level, outermost first.
    fn flatten(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        Box::new(std::iter::once(self).chain(self.details.iter().flat_map(Self::flatten)))
    }

    /// Whether any level has this code, or a message with it: some errors quote another one in their text.
    fn mentions(&self, code: &str) -> bool {
        let code = code.to_ascii_lowercase();
        self.flatten()
            .any(|error| error.code.eq_ignore_ascii_case(&code) || error.message.to_ascii_lowercase().contains(&code))
    }
}

impl std::fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let code = if self.code.is_empty() { "no code" } else { &self.code };
        write!(f, "{code}")?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        for detail in &self.details {
            write!(f, " ({detail})")?;
        }
        Ok(())
    }
}

/// A newer write replaced this one.
const SUPERSEDED: &str = "CanceledAndSupersededDueToAnotherOperation";

/// The class of each known code, for every status. A failed operation is [`ErrorClass::Terminal`] by one of these codes only.
const CODES: &[(&str, ErrorClass)] = &[
    ("PreconditionFailed", ErrorClass::Stale),
    ("PreconditionFailedEtagMismatch", ErrorClass::Stale),
    // The pool or load balancer was deleted.
    ("NotFound", ErrorClass::Stale),
    ("ResourceNotFound", ErrorClass::Stale),
    ("ParentResourceNotFound", ErrorClass::Stale),
    // Another operation holds the resource; with 409 or 429.
    ("RetryableError", ErrorClass::Retriable),
    ("ReferencedResourceNotProvisioned", ErrorClass::Retriable),
    ("RetryableErrorDueToAnotherOperation", ErrorClass::Retriable),
    ("AnotherOperationInProgress", ErrorClass::Retriable),
    ("ConflictingConcurrentWriteNotAllowed", ErrorClass::Retriable),
    ("Conflict", ErrorClass::Retriable),
    ("SubscriptionRequestsThrottled", ErrorClass::Retriable),
    ("TooManyRequests", ErrorClass::Retriable),
    ("InternalServerError", ErrorClass::Retriable),
    ("ServiceUnavailable", ErrorClass::Retriable),
    ("ServerTimeout", ErrorClass::Retriable),
    ("OperationTimedOut", ErrorClass::Retriable),
    ("GatewayTimeout", ErrorClass::Retriable),
    // A resource group lives as long as its cluster, so its name in the settings is wrong.
    ("ResourceGroupNotFound", ErrorClass::Terminal),
    ("SubscriptionNotFound", ErrorClass::Terminal),
    ("InvalidSubscriptionId", ErrorClass::Terminal),
    ("MissingSubscriptionRegistration", ErrorClass::Terminal),
    ("NoRegisteredProviderFound", ErrorClass::Terminal),
    ("InvalidResourceType", ErrorClass::Terminal),
    // The identity belongs to another tenant; any other 401 may pass.
    ("InvalidAuthenticationTokenTenant", ErrorClass::Terminal),
    ("AuthorizationFailed", ErrorClass::Terminal),
    ("LinkedAuthorizationFailed", ErrorClass::Terminal),
    ("DenyAssignmentAuthorizationFailed", ErrorClass::Terminal),
    ("RequestDisallowedByPolicy", ErrorClass::Terminal),
    // These come with 409, which is retriable otherwise.
    ("ScopeLocked", ErrorClass::Terminal),
    ("ReadOnlyDisabledSubscription", ErrorClass::Terminal),
    ("ModificationOfNICIpConfigBackendPoolNotSupported", ErrorClass::Terminal),
    ("InvalidRequestFormat", ErrorClass::Terminal),
    ("InvalidResourceName", ErrorClass::Terminal),
    ("InvalidResourceReference", ErrorClass::Terminal),
];

fn class_of_code(code: &str) -> Option<ErrorClass> {
    let known = CODES.iter().find(|(known, _)| known.eq_ignore_ascii_case(code));
    known.map(|(_, class)| *class)
}

/// The class of an error response, or of a failed operation if `status` is `None`.
pub(crate) fn classify(status: Option<StatusCode>, error: &ErrorBody) -> ErrorClass {
    if error.mentions(SUPERSEDED) {
        return ErrorClass::Stale;
    }
    // A rejected request stays rejected, whatever its details say.
    let rejected = status.is_some_and(|status| matches!(status.as_u16(), 400 | 401 | 403));
    let mut errors = error.flatten().take(if rejected { 1 } else { usize::MAX });
    if let Some(class) = errors.find_map(|error| class_of_code(&error.code)) {
        return class;
    }
    match status.map(|status| status.as_u16()) {
        Some(404 | 412) => ErrorClass::Stale,
        // 401: the token expired on its way, or the identity's keys were just rotated. 410: a node of ARM's is updated.
        Some(401 | 408 | 409 | 410 | 429 | 500..=599) => ErrorClass::Retriable,
        Some(300..=499) => ErrorClass::Terminal,
        // Another client canceled the operation, so the state that it left is unknown.
        _ if error.code.eq_ignore_ascii_case("Canceled") => ErrorClass::Stale,
        _ => ErrorClass::Retriable,
    }
}

/// The shortest wait after a 429 about the rate of requests, as it may come without `Retry-After`.
pub(crate) const MIN_THROTTLE_WAIT: Duration = Duration::from_secs(1);

/// Codes of a refusal because another operation holds the resource.
const RESOURCE_BUSY_CODES: &[&str] = &[
    "RetryableError",
    "ReferencedResourceNotProvisioned",
    "RetryableErrorDueToAnotherOperation",
    "AnotherOperationInProgress",
    "ConflictingConcurrentWriteNotAllowed",
];

/// Whether a 429 is about the rate of requests, and not about one resource that another operation holds.
pub(crate) fn is_rate_limited(error: &ErrorBody) -> bool {
    !error.flatten().any(|error| {
        RESOURCE_BUSY_CODES
            .iter()
            .any(|code| error.code.eq_ignore_ascii_case(code))
    })
}

words! {
    /// How an operation ended without success.
    pub enum OperationFailure {
        /// ARM could not complete the operation.
        Failed = "Failed",
        /// Another client or a newer write ended the operation.
        Canceled = "Canceled",
    }
}

/// Why a call to ARM failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ArmError {
    /// ARM answered with an error status.
    #[error("ARM answered {}: {error}", .status.as_u16())]
    ErrorResponse {
        /// The HTTP status of the response.
        status: StatusCode,
        /// ARM's error from the body.
        error: ErrorBody,
        /// The wait that the headers request.
        retry_after: Option<Duration>,
        /// An earlier attempt of the same request had no usable response and may have had its effect.
        may_have_applied: bool,
    },
    /// ARM accepted a write, and its operation failed.
    #[error("the operation ended {}: {error}", .status.as_str())]
    OperationFailed {
        /// Whether the operation failed or was canceled.
        status: OperationFailure,
        /// ARM's error from the operation's status.
        error: ErrorBody,
    },
    /// The operation succeeded, but reads of the resource with this id do not show the change, or not for long.
    #[error(
        "ARM accepted the write and reported Succeeded, but did not apply it: reads of {0} do not show the change, or not for long"
    )]
    ReadBackMismatch(String),
    /// No complete response arrived. A write may have had its effect nevertheless.
    #[error("no answer from ARM: {0}")]
    Connection(String),
    /// Not sent, because the `Retry-After` of an earlier 429 lasts.
    #[error(
        "not sent: ARM throttles requests for another {} s",
        .until.saturating_duration_since(Instant::now()).as_secs_f64().ceil()
    )]
    Throttled {
        /// When ARM accepts requests again.
        until: Instant,
    },
    /// Not sent, because the client's own rate limit would have delayed it past the deadline.
    #[error("not sent: too many requests wait for the rate limit")]
    RateLimited,
    /// Not sent, because another operation was changing the resource with this id when it was read. The write would end
    /// that operation.
    #[error("not sent: ARM is busy with {0}")]
    Busy(String),
    /// The caller's deadline passed.
    #[error("not finished before the deadline")]
    DeadlineExceeded,
    /// Not sent, because the permit of the write is no longer valid.
    #[error("not sent: this instance may no longer write")]
    NotPermitted {
        /// An earlier attempt of the same request had no usable response and may have had its effect.
        may_have_applied: bool,
    },
    /// There is no token to send.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The response is malformed, or leads to another host.
    #[error("ARM's answer cannot be used: {0}")]
    InvalidResponse(String),
    /// The response is larger than what is read of one.
    #[error("ARM's answer cannot be used: {0}")]
    TooLarge(String),
}

impl ArmError {
    /// What to do about this failure.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::ErrorResponse { status, error, .. } => classify(Some(*status), error),
            Self::OperationFailed { error, .. } => classify(None, error),
            // A malformed response may come from a proxy in between.
            Self::Connection(_)
            | Self::Throttled { .. }
            | Self::RateLimited
            | Self::Busy(_)
            | Self::DeadlineExceeded
            | Self::InvalidResponse(_)
            | Self::TooLarge(_) => ErrorClass::Retriable,
            // ARM accepts the write and ignores it; the same write will be ignored again.
            Self::ReadBackMismatch(_) | Self::NotPermitted { .. } => ErrorClass::Terminal,
            Self::Token(error) => error.class(),
        }
    }

    /// The HTTP status of an error response.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::ErrorResponse { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// ARM's outermost code, or a code of headgate's for a failure without one. Metrics and events show it.
    pub fn code(&self) -> &str {
        match self {
            Self::ErrorResponse { error, .. } | Self::OperationFailed { error, .. } if !error.code.is_empty() => {
                &error.code
            }
            Self::ErrorResponse { .. } => "Refused",
            Self::OperationFailed { status, .. } => status.as_str(),
            Self::ReadBackMismatch(_) => "NotShown",
            Self::Connection(_) => "Connection",
            Self::Throttled { .. } => "Throttled",
            Self::RateLimited => "RateLimited",
            Self::Busy(_) => "Busy",
            Self::DeadlineExceeded => "Deadline",
            Self::NotPermitted { .. } => "NotPermitted",
            Self::Token(_) => "Token",
            Self::InvalidResponse(_) | Self::TooLarge(_) => "Answer",
        }
    }

    /// Whether the request was not sent.
    pub fn is_not_sent(&self) -> bool {
        matches!(
            self,
            Self::Throttled { .. }
                | Self::RateLimited
                | Self::Busy(_)
                | Self::NotPermitted {
                    may_have_applied: false
                }
                | Self::Token(_)
        )
    }

    /// Whether a write may have been accepted although this error is all that is known of it. The state of the resource says then
    /// whether an operation runs.
    pub fn may_have_been_accepted(&self) -> bool {
        match self {
            Self::ErrorResponse {
                status,
                may_have_applied,
                ..
            } => *may_have_applied || status.is_server_error() || *status == StatusCode::REQUEST_TIMEOUT,
            Self::NotPermitted { may_have_applied } => *may_have_applied,
            Self::Connection(_) | Self::DeadlineExceeded | Self::InvalidResponse(_) | Self::TooLarge(_) => true,
            _ => false,
        }
    }

    /// Whether the pool or load balancer that was written is gone. A missing resource group or subscription is a mistake in the
    /// settings, and any other 404 may be a proxy's.
    pub fn is_about_missing_pool(&self) -> bool {
        let codes = ["NotFound", "ResourceNotFound", "ParentResourceNotFound"];
        let is_known = |error: &ErrorBody| codes.iter().any(|code| error.code.eq_ignore_ascii_case(code));
        match self {
            Self::ErrorResponse { status, error, .. } => *status == StatusCode::NOT_FOUND && is_known(error),
            Self::OperationFailed { error, .. } => is_known(error),
            _ => false,
        }
    }

    /// Whether the status says that another request for the same URL is answered alike.
    pub(crate) fn is_final_status(&self) -> bool {
        self.status()
            .is_some_and(|status| status.is_client_error() && !matches!(status.as_u16(), 408 | 409 | 429))
    }

    /// Whether ARM says that the resource of the request, or the resource group, does not exist. A 404 with another code, such as a
    /// proxy's, proves nothing.
    pub fn is_about_missing_resource(&self) -> bool {
        let codes = ["ResourceNotFound", "NotFound", "ResourceGroupNotFound"];
        self.status() == Some(StatusCode::NOT_FOUND) && codes.iter().any(|code| self.code().eq_ignore_ascii_case(code))
    }

    /// Whether the request exceeded ARM's rate limit, or was not sent because an earlier one did.
    pub fn is_throttled(&self) -> bool {
        match self {
            Self::ErrorResponse { status, error, .. } => {
                *status == StatusCode::TOO_MANY_REQUESTS && is_rate_limited(error)
            }
            Self::Throttled { .. } => true,
            _ => false,
        }
    }

    /// Whether another operation holds the resource, and ARM does not say for how long.
    pub fn is_resource_busy(&self) -> bool {
        matches!(self, Self::ErrorResponse { error, retry_after: None, .. } if !is_rate_limited(error))
    }

    /// The wait from `now` that ARM requested; [`MIN_THROTTLE_WAIT`] at least if it throttles requests.
    pub fn retry_after(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::ErrorResponse { retry_after, .. } if self.is_throttled() => {
                Some(retry_after.unwrap_or_default().max(MIN_THROTTLE_WAIT))
            }
            Self::ErrorResponse { retry_after, .. } => *retry_after,
            Self::Throttled { until } => Some(until.saturating_duration_since(now)),
            _ => None,
        }
    }
}

/// Why there is no token for ARM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token endpoint answered with an error.
    #[error("no token: {error} ({status}): {description}")]
    ErrorResponse {
        /// The HTTP status of the response.
        status: u16,
        /// The OAuth error code, such as `invalid_client`.
        error: String,
        /// The first line of the endpoint's description.
        description: String,
    },
    /// The token endpoint did not answer.
    #[error("no token: no answer from {0}")]
    Connection(String),
    /// The file with the service account's token cannot be used.
    #[error("no token: cannot read {file}: {why}")]
    File {
        /// The path from `AZURE_FEDERATED_TOKEN_FILE` or `aadFederatedTokenFile`.
        file: String,
        /// The reason, to complete the error's sentence.
        why: String,
    },
    /// The response is malformed.
    #[error("no token: the answer cannot be used: {0}")]
    InvalidResponse(String),
    /// `az` gave none.
    #[error("no token: az account get-access-token: {0}")]
    AzureCli(String),
}

impl TokenError {
    /// What to do about this failure.
    pub fn class(&self) -> ErrorClass {
        match self {
            // IMDS answers 404 and 410 during its updates.
            Self::Connection(_)
            | Self::File { .. }
            | Self::ErrorResponse {
                status: 404 | 408 | 410 | 429 | 500..=599,
                ..
            } => ErrorClass::Retriable,
            Self::ErrorResponse { .. } | Self::InvalidResponse(_) | Self::AzureCli(_) => ErrorClass::Terminal,
        }
    }
}

#[cfg(test)]
mod tests;
