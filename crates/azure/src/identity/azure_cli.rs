//! The token of the account with which `az` is logged in, as Microsoft's clients get it (`AzureCLICredential` of azidentity): `az` has it
//! in its own cache or requests it.

use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use super::{IssuedToken, MAX_TOKEN_LIFETIME};
use crate::Secret;
use crate::error::TokenError;

/// For one run of `az`, which takes some seconds to start.
const AZ_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `az account get-access-token` for a resource, and in a tenant that is not the account's own.
pub(super) async fn token(resource: &str, tenant: Option<&str>, now: Timestamp) -> Result<IssuedToken, TokenError> {
    let failed = |why: String| TokenError::AzureCli(why);
    let mut command = Command::new("az");
    command.args([
        "account",
        "get-access-token",
        "--output",
        "json",
        "--resource",
        resource,
    ]);
    if let Some(tenant) = tenant {
        command.args(["--tenant", tenant]);
    }
    let ran = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(AZ_TIMEOUT, ran).await;
    let output = output.map_err(|_| failed(format!("no answer within {} s", AZ_TIMEOUT.as_secs())))?;
    let output = output.map_err(|error| failed(format!("it cannot be run: {error}")))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let first = errors.lines().find(|line| !line.trim().is_empty());
        return Err(failed(first.unwrap_or("no reason given").trim().to_owned()));
    }
    parse(&output.stdout, now)
}

/// Reads what `az` prints. `expires_on` is in seconds since 1970; `expiresOn` is a local time without its zone.
fn parse(text: &[u8], now: Timestamp) -> Result<IssuedToken, TokenError> {
    let document: Value = serde_json::from_slice(text).unwrap_or_default();
    let token = document["accessToken"].as_str().filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| TokenError::AzureCli("its answer has no accessToken".to_owned()))?;
    let until = document["expires_on"].as_i64();
    let until = until.ok_or_else(|| TokenError::AzureCli("its answer has no expires_on: update it".to_owned()))?;
    let seconds = u64::try_from(until.saturating_sub(now.as_second())).unwrap_or(0);
    Ok(IssuedToken {
        token: Secret::new(token),
        lifetime: Duration::from_secs(seconds).min(MAX_TOKEN_LIFETIME),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_az_is_a_token_with_a_lifetime() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let read = |text: &str| parse(text.as_bytes(), now);
        let answer = r#"{"accessToken": "abc", "expiresOn": "2027-01-15 09:00:00.000000", "expires_on": 1800003600, "tokenType": "Bearer"}"#;
        let issued = read(answer).unwrap();
        assert_eq!(issued.token.expose(), "abc");
        assert_eq!(issued.lifetime, Duration::from_hours(1));
        let past = read(&answer.replace("1800003600", "1")).unwrap();
        assert_eq!(past.lifetime, Duration::ZERO);
        for (text, why) in [
            ("", "no accessToken"),
            (r#"{"accessToken": ""}"#, "no accessToken"),
            (r#"{"accessToken": "secret", "expiresOn": "x"}"#, "no expires_on"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
