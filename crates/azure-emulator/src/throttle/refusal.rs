//! The answers to those who ask too much.

use axum::http::StatusCode;

use super::super::error::ArmError;
use super::Kind;
use super::bucket::Scope;

/// The 429.
pub(super) fn refusal(scope: Scope, subscription: &str, principal: &str, kind: Kind, wait: u64) -> ArmError {
    let (status, word) = (StatusCode::TOO_MANY_REQUESTS, kind.word());
    let error = match scope {
        Scope::Principal => ArmError::new(
            status,
            "SubscriptionRequestsThrottled",
            format!(
                "Number of '{word}' requests for subscription '{subscription}' actor '{principal}' exceeded. Please try \
                 again after '{wait}' seconds."
            ),
        )
        .by_gateway(),
        // A guess: the words; only a principal's own bucket was recorded empty.
        Scope::Global => ArmError::new(
            status,
            "SubscriptionRequestsThrottled",
            format!(
                "Number of '{word}' requests for subscription '{subscription}' exceeded. Please try again after '{wait}' \
                 seconds."
            ),
        )
        .by_gateway(),
        // A guess: the whole body; no throttled answer of the network provider is recorded.
        Scope::Network => ArmError::new(
            status,
            "TooManyRequests",
            format!(
                "Number of '{word}' requests to 'Microsoft.Network' for subscription '{subscription}' actor \
                 '{principal}' exceeded. Please try again after '{wait}' seconds."
            ),
        )
        .without_details(),
    };
    error.retry_after(wait)
}
