//! What went wrong between headgate and ARM, and what it means for whoever asked.
//!
//! A failure is of one class (DESIGN decision 11): *stale*, what was known is no longer so, read afresh; *retriable*,
//! the same again later; *terminal*, somebody has to change something first. The class follows from ARM's code,
//! and from the HTTP status where the code says nothing. Failures of a write that was accepted have
//! a code and no status. Nothing here holds a secret.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::Value;
use tokio::time::Instant;

use super::identity::TokenError;

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// What was known is no longer so: read afresh, then decide again.
    Stale,
    /// The same may do later.
    Retriable,
    /// It will fail until somebody changes something.
    Terminal,
}

/// An error as ARM words it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorBody {
    /// Such as `PreconditionFailed`; empty where there is none.
    pub code: String,
    /// For people.
    pub message: String,
    /// What it is made of.
    pub details: Vec<ErrorBody>,
}

/// Errors in errors deeper than this are nobody's.
const MOST_DEPTH: usize = 8;
/// Of a body that is not an error of ARM's, so much is shown.
const SHOWN: usize = 200;

impl ErrorBody {
    /// Of an answer's body, `{"error": …}`; of anything else its beginning, as the message.
    #[must_use]
    pub fn parse(body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(value) if value.is_object() => Self::of(value.get("error").unwrap_or(&value), MOST_DEPTH),
            _ => Self {
                message: String::from_utf8_lossy(body).chars().take(SHOWN).collect(),
                ..Self::default()
            },
        }
    }

    /// Of the error itself.
    #[must_use]
    pub(super) fn of_error(error: &Value) -> Self {
        Self::of(error, MOST_DEPTH)
    }

    fn of(error: &Value, depth: usize) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let details = error.get("details").and_then(Value::as_array).filter(|_| depth > 0);
        Self {
            code: text("code"),
            message: text("message"),
            details: details
                .into_iter()
                .flatten()
                .map(|detail| Self::of(detail, depth - 1))
                .collect(),
        }
    }

    /// This error and all within it, outermost first.
    fn each(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        Box::new(std::iter::once(self).chain(self.details.iter().flat_map(Self::each)))
    }

    /// Whether this code stands anywhere: as a code, or in a message (some errors carry another's text).
    fn mentions(&self, code: &str) -> bool {
        let code = code.to_ascii_lowercase();
        self.each()
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

/// A newer write has taken the place of this one.
const SUPERSEDED: &str = "CanceledAndSupersededDueToAnotherOperation";

/// What codes mean, whatever the status.
const CODES: &[(&str, ErrorClass)] = &[
    ("PreconditionFailed", ErrorClass::Stale),
    ("PreconditionFailedEtagMismatch", ErrorClass::Stale),
    // A pool or a load balancer that is gone: so are the plans for it.
    ("NotFound", ErrorClass::Stale),
    ("ResourceNotFound", ErrorClass::Stale),
    // Another operation is in the way, with 409 or 429.
    ("RetryableError", ErrorClass::Retriable),
    ("ReferencedResourceNotProvisioned", ErrorClass::Retriable),
    ("RetryableErrorDueToAnotherOperation", ErrorClass::Retriable),
    ("AnotherOperationInProgress", ErrorClass::Retriable),
    ("SubscriptionRequestsThrottled", ErrorClass::Retriable),
    ("TooManyRequests", ErrorClass::Retriable),
    ("InternalServerError", ErrorClass::Retriable),
    ("ServiceUnavailable", ErrorClass::Retriable),
    ("ServerTimeout", ErrorClass::Retriable),
    ("OperationTimedOut", ErrorClass::Retriable),
    ("GatewayTimeout", ErrorClass::Retriable),
    // Nobody deletes a group under a running cluster: its name in the settings is wrong.
    ("ResourceGroupNotFound", ErrorClass::Terminal),
    ("SubscriptionNotFound", ErrorClass::Terminal),
    ("InvalidSubscriptionId", ErrorClass::Terminal),
    ("MissingSubscriptionRegistration", ErrorClass::Terminal),
    ("NoRegisteredProviderFound", ErrorClass::Terminal),
    ("InvalidResourceType", ErrorClass::Terminal),
    ("AuthorizationFailed", ErrorClass::Terminal),
    ("LinkedAuthorizationFailed", ErrorClass::Terminal),
    ("RequestDisallowedByPolicy", ErrorClass::Terminal),
    // These come with 409, which is not for ever otherwise.
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

/// What ARM's answer means; without a status, what the end of an accepted operation means.
#[must_use]
pub fn classify(status: Option<StatusCode>, error: &ErrorBody) -> ErrorClass {
    if error.mentions(SUPERSEDED) {
        return ErrorClass::Stale;
    }
    // What a bad request consists of does not make it a good one.
    let bad = status.is_some_and(|status| matches!(status.as_u16(), 400 | 401 | 403));
    let mut codes = error.each().take(if bad { 1 } else { usize::MAX });
    if let Some(class) = codes.find_map(|error| class_of_code(&error.code)) {
        return class;
    }
    match status.map(|status| status.as_u16()) {
        Some(404 | 412) => ErrorClass::Stale,
        Some(408 | 409 | 429 | 500..=599) => ErrorClass::Retriable,
        Some(300..=499) => ErrorClass::Terminal,
        // The write was well enough formed to be accepted; somebody else's cancellation leaves nobody knows what.
        _ if error.code.eq_ignore_ascii_case("Canceled") => ErrorClass::Stale,
        _ => ErrorClass::Retriable,
    }
}

/// Whether a 429 is about the rate of requests, and not about one resource that another operation holds.
#[must_use]
pub fn is_rate_limited(error: &ErrorBody) -> bool {
    !error.each().any(|error| {
        [
            "RetryableError",
            "ReferencedResourceNotProvisioned",
            "RetryableErrorDueToAnotherOperation",
            "AnotherOperationInProgress",
        ]
        .iter()
        .any(|code| error.code.eq_ignore_ascii_case(code))
    })
}

/// Why ARM did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ArmError {
    /// It answered with an error.
    #[error("ARM answered {}: {error}", .status.as_u16())]
    Refused {
        /// HTTP's.
        status: StatusCode,
        /// ARM's.
        error: ErrorBody,
        /// When to come again.
        retry_after: Option<Duration>,
        /// An earlier try of the same request may have been carried out, its answer lost.
        may_have_applied: bool,
    },
    /// It accepted a write, whose operation then failed.
    #[error("the operation ended {status}: {error}")]
    Operation {
        /// `Failed` or `Canceled`.
        status: String,
        /// Why.
        error: ErrorBody,
    },
    /// The operation succeeded, and a read does not show what was written.
    #[error("the operation succeeded, and {0} does not show it")]
    NotShown(String),
    /// There was no whole answer; a write may have been carried out nevertheless.
    #[error("no answer from ARM: {0}")]
    Connection(String),
    /// Not asked: ARM said when to come again, and it is not time yet.
    #[error("ARM is_rate_limited; it is asked again in {} s", .until.saturating_duration_since(Instant::now()).as_secs_f64().ceil())]
    Throttled {
        /// Not before.
        until: Instant,
    },
    /// Not sent: the pool was read while another operation changed it, which this write would have ended.
    #[error("not sent: ARM is busy with {0}")]
    Busy(String),
    /// The caller's time is over.
    #[error("not finished within the time there was")]
    Deadline,
    /// Not sent: whoever asked may no longer write.
    #[error("not sent: writing is no longer this instance's business")]
    NotPermitted,
    /// Nobody to ask as.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The answer makes no sense, or asks for what is never done.
    #[error("ARM's answer cannot be used: {0}")]
    Answer(String),
}

impl ArmError {
    /// What to do about it.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Refused { status, error, .. } => classify(Some(*status), error),
            Self::Operation { error, .. } => classify(None, error),
            Self::NotShown(_) => ErrorClass::Stale,
            // What makes no sense may be a proxy's word.
            Self::Connection(_) | Self::Throttled { .. } | Self::Busy(_) | Self::Deadline | Self::Answer(_) => {
                ErrorClass::Retriable
            }
            Self::NotPermitted => ErrorClass::Terminal,
            Self::Token(error) => error.class(),
        }
    }

    /// HTTP's status, where there was one.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The outermost code: ARM's, or a word of ours for what ARM did not say; for metrics and events.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { error, .. } | Self::Operation { error, .. } if !error.code.is_empty() => &error.code,
            Self::Refused { .. } => "Refused",
            Self::Operation { status, .. } => status,
            Self::NotShown(_) => "NotShown",
            Self::Connection(_) => "Connection",
            Self::Throttled { .. } => "Throttled",
            Self::Busy(_) => "Busy",
            Self::Deadline => "Deadline",
            Self::NotPermitted => "NotPermitted",
            Self::Token(_) => "Token",
            Self::Answer(_) => "Answer",
        }
    }

    /// Whether ARM was asked too often: it said so itself, or had said so before.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        match self {
            Self::Refused { status, error, .. } => *status == StatusCode::TOO_MANY_REQUESTS && is_rate_limited(error),
            Self::Throttled { .. } => true,
            _ => false,
        }
    }

    /// How long to leave ARM alone from `now` on, where it said so.
    #[must_use]
    pub fn retry_after(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Throttled { until } => Some(until.saturating_duration_since(now)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
