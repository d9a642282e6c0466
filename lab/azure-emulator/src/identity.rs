//! Identity: tokens for client secrets, workload identities and managed identities, and the authentication of requests.
//!
//! The key that signs tokens is made at the start, so no token outlives the emulator. Without a list of accounts every
//! tenant, client and secret is accepted. Secrets appear neither in responses nor in `Debug` output.

use std::time::Duration;

use axum::http::{HeaderValue, Request, Response};
use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;

pub(super) use self::account::{IdentitySettings, Principal};
use self::tokens::Signer;
use super::error::ErrorResponse;
use super::query::path_segments;

mod account;
mod discovery;
mod entra;
mod managed_identity;
mod tokens;
mod unauthorized;

/// How far in the future a token's `nbf` may be, for clocks that differ.
const CLOCK_SKEW: Duration = Duration::from_mins(5);
/// How long tokens are valid.
const TOKEN_LIFETIME_SECONDS: i64 = 3600;
/// Audiences that ARM accepts, without the trailing slash.
const AUDIENCES: [&str; 6] = [
    "https://management.core.windows.net",
    "https://management.azure.com",
    "https://management.core.usgovcloudapi.net",
    "https://management.usgovcloudapi.net",
    "https://management.core.chinacloudapi.cn",
    "https://management.chinacloudapi.cn",
];

/// Issues tokens and authenticates requests by them.
#[derive(Debug)]
pub(super) struct Identity {
    settings: IdentitySettings,
    signer: Signer,
}

impl Identity {
    /// `key` signs the tokens; it should be 32 random bytes.
    pub(super) fn new(settings: IdentitySettings, key: &[u8]) -> Self {
        Self {
            settings,
            signer: Signer::new(key),
        }
    }

    /// The caller, from the `Authorization` header of a request to `base`.
    ///
    /// # Errors
    ///
    /// A 401 that names the reason.
    pub(super) fn principal(
        &self,
        authorization: Option<&HeaderValue>,
        base: &str,
        now: Timestamp,
    ) -> Result<Principal, ErrorResponse> {
        let base = base.trim_end_matches('/');
        let authority = format!("{base}/{}", self.settings.tenant());
        let Some(authorization) = authorization else {
            return Err(unauthorized::missing(&authority));
        };
        let token = authorization.to_str().ok().and_then(|value| {
            let (scheme, token) = value.trim().split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        let token = token.ok_or_else(|| unauthorized::not_bearer(&authority))?;
        let claims = self
            .signer
            .read(token)
            .ok_or_else(|| unauthorized::invalid(&authority))?;
        let time = |seconds| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        if time(claims.nbf) > now + CLOCK_SKEW {
            return Err(unauthorized::invalid(&authority));
        }
        if time(claims.exp) <= now {
            return Err(unauthorized::expired(&authority, time(claims.exp), now));
        }
        let audience = claims.aud.trim_end_matches('/');
        if !AUDIENCES.contains(&audience) && audience != base {
            return Err(unauthorized::wrong_audience(&authority, &claims.aud));
        }
        Ok(Principal {
            tenant: claims.tid,
            client: claims.appid,
            object: claims.oid,
        })
    }

    /// Answers requests to the token services; `None` for all other paths. `base` is the emulator's own URL.
    pub(super) fn answer(&self, request: &Request<Bytes>, base: &str, now: Timestamp) -> Option<Response<Bytes>> {
        let base = base.trim_end_matches('/');
        Some(match path_segments(request)[..] {
            ["msi", "token"] => self.app_service(request, now),
            ["metadata", "endpoints"] => discovery::endpoints(request, base),
            ["metadata", "identity", "oauth2", "token"] => self.imds_token(request, now),
            [tenant, "oauth2", "v2.0", "token"] => self.token(tenant, request, now),
            [tenant, "v2.0", ".well-known", "openid-configuration"] => discovery::configuration(base, tenant),
            _ => return None,
        })
    }

    /// A token for the control API's `GET token`, and when it expires.
    pub(super) fn developer_token(&self, now: Timestamp) -> (String, Timestamp) {
        let issued = self.issue(&Principal::developer(), AUDIENCES[0], now);
        (
            issued.token,
            Timestamp::from_second(issued.until).unwrap_or(Timestamp::MAX),
        )
    }

    /// Signs a token for an account.
    fn issue(&self, account: &Principal, audience: &str, now: Timestamp) -> Issued {
        let (from, until) = (now.as_second(), now.as_second().saturating_add(TOKEN_LIFETIME_SECONDS));
        Issued {
            token: self.signer.sign(account, audience, from, until),
            from,
            until,
        }
    }
}

/// A signed token, valid from and until these Unix times in seconds.
struct Issued {
    token: String,
    from: i64,
    until: i64,
}

impl Issued {
    /// `expires_in` in seconds: one less than the lifetime, as Entra answers.
    fn expires_in(&self) -> i64 {
        (self.until - self.from - 1).max(0)
    }
}

/// A string that `Debug` does not show.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct Secret(String);

impl Secret {
    fn matches(&self, text: &str) -> bool {
        ring::digest::digest(&ring::digest::SHA256, self.0.as_bytes()).as_ref()
            == ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests;
