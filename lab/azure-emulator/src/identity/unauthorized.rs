//! ARM's 401 responses, with the bodies that their clients quote.

use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use jiff::Timestamp;

use super::super::error::ErrorResponse;

/// A 401. Clients read the tenant from the end of the authority in the challenge.
fn unauthorized(authority: &str, code: &str, message: impl Into<String>, description: &str) -> ErrorResponse {
    // Guess: the descriptions, except that of a missing header.
    let challenge = format!(
        "Bearer authorization_uri=\"{authority}\", error=\"invalid_token\", error_description=\"{description}\""
    );
    let error = ErrorResponse::new(StatusCode::UNAUTHORIZED, code, message);
    match HeaderValue::from_str(&challenge) {
        Ok(challenge) => error.header(WWW_AUTHENTICATE, challenge),
        Err(_) => error,
    }
}

/// The request has no `Authorization` header.
pub(super) fn missing(authority: &str) -> ErrorResponse {
    unauthorized(
        authority,
        "AuthenticationFailed",
        "Authentication failed. The 'Authorization' header is missing.",
        "The authentication failed because of missing 'Authorization' header.",
    )
}

/// The header is not of the form `Bearer TOKEN`.
pub(super) fn not_bearer(authority: &str) -> ErrorResponse {
    // Guess: the wording; only the code was published.
    unauthorized(
        authority,
        "AuthenticationFailedInvalidHeader",
        "Authentication failed. The 'Authorization' header is provided in an invalid format.",
        "The authentication failed because the 'Authorization' header has an invalid format.",
    )
}

/// The token cannot be parsed, or another key signed it.
pub(super) fn invalid(authority: &str) -> ErrorResponse {
    unauthorized(
        authority,
        "InvalidAuthenticationToken",
        "The access token is invalid.",
        "The access token is invalid.",
    )
}

/// The token is no longer valid.
pub(super) fn expired(authority: &str, expiry: Timestamp, now: Timestamp) -> ErrorResponse {
    let time = |at: Timestamp| at.strftime("%-m/%-d/%Y %-I:%M:%S %p").to_string();
    unauthorized(
        authority,
        "ExpiredAuthenticationToken",
        format!(
            "The access token expiry UTC time '{}' is earlier than current UTC time '{}'.",
            time(expiry),
            time(now)
        ),
        "The access token has expired.",
    )
}

/// The token is for another audience.
pub(super) fn wrong_audience(authority: &str, audience: &str) -> ErrorResponse {
    unauthorized(
        authority,
        "InvalidAuthenticationTokenAudience",
        format!(
            "The access token has been obtained for wrong audience or resource '{audience}'. It should exactly match \
             with one of the allowed audiences 'https://management.core.windows.net/',\
             'https://management.core.windows.net','https://management.azure.com/','https://management.azure.com'."
        ),
        "The access token has been obtained for wrong audience or resource.",
    )
}
