//! The 401s of Resource Manager, as its clients quote them.

use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use jiff::Timestamp;

use super::super::error::ArmError;

/// A 401; clients read the tenant from the end of the challenge's authority.
fn refusal(authority: &str, code: &str, message: impl Into<String>, description: &str) -> ArmError {
    // A guess: the descriptions; only that of a missing header was seen.
    let challenge = format!(
        "Bearer authorization_uri=\"{authority}\", error=\"invalid_token\", error_description=\"{description}\""
    );
    let error = ArmError::new(StatusCode::UNAUTHORIZED, code, message);
    match HeaderValue::from_str(&challenge) {
        Ok(challenge) => error.header(WWW_AUTHENTICATE, challenge),
        Err(_) => error,
    }
}

/// There is no header.
pub(super) fn missing(authority: &str) -> ArmError {
    refusal(
        authority,
        "AuthenticationFailed",
        "Authentication failed. The 'Authorization' header is missing.",
        "The authentication failed because of missing 'Authorization' header.",
    )
}

/// It is there, and is not for us.
pub(super) fn not_bearer(authority: &str) -> ArmError {
    // A guess: the words, of which only the code was seen.
    refusal(
        authority,
        "AuthenticationFailedInvalidHeader",
        "Authentication failed. The 'Authorization' header is provided in an invalid format.",
        "The authentication failed because the 'Authorization' header has an invalid format.",
    )
}

/// The token cannot be read, or is not ours.
pub(super) fn invalid(authority: &str) -> ArmError {
    refusal(
        authority,
        "InvalidAuthenticationToken",
        "The access token is invalid.",
        "The access token is invalid.",
    )
}

/// The token was good.
pub(super) fn expired(authority: &str, expiry: Timestamp, now: Timestamp) -> ArmError {
    let time = |at: Timestamp| at.strftime("%-m/%-d/%Y %-I:%M:%S %p").to_string();
    refusal(
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

/// The token is for somebody else.
pub(super) fn audience(authority: &str, audience: &str) -> ArmError {
    refusal(
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
