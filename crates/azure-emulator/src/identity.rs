//! Who calls: tokens for client secrets, workload accounts and managed accounts, and what becomes of
//! a request whose token is missing, old, or somebody else's.
//!
//! Tokens are signed with a key that was made at the start, so none is valid for longer than the emulator
//! lives. No account need be listed: then every tenant, client and secret is good. A secret is never
//! shown: not in answers, nor in what `Debug` writes.

use std::time::Duration;

use axum::http::{HeaderValue, Request, Response};
use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;

use self::account::Account;
pub(super) use self::account::{IdentitySettings, Principal};
use self::tokens::Signer;
use super::error::ArmError;
use super::query::segments;

mod account;
mod cloud;
mod discovery;
mod entra;
mod managed;
mod refusal;
mod tokens;

/// A clock that is this much ahead of ours is forgiven.
const LEEWAY: Duration = Duration::from_mins(5);
/// Audiences that Resource Manager takes, without the slash that may follow.
const AUDIENCES: [&str; 6] = [
    "https://management.core.windows.net",
    "https://management.azure.com",
    "https://management.core.usgovcloudapi.net",
    "https://management.usgovcloudapi.net",
    "https://management.core.chinacloudapi.cn",
    "https://management.chinacloudapi.cn",
];

/// Hands out tokens and reads them.
#[derive(Debug)]
pub(super) struct Identity {
    settings: IdentitySettings,
    signer: Signer,
}

impl Identity {
    /// With a key to sign with, which should be of 32 random bytes.
    pub(super) fn new(settings: IdentitySettings, key: &[u8]) -> Self {
        Self {
            settings,
            signer: Signer::new(key),
        }
    }

    /// Who sent this header to the emulator at `base`.
    ///
    /// # Errors
    ///
    /// A 401 that says why that is not known.
    pub(super) fn principal(
        &self,
        authorization: Option<&HeaderValue>,
        base: &str,
        now: Timestamp,
    ) -> Result<Principal, ArmError> {
        let base = base.trim_end_matches('/');
        let authority = format!("{base}/{}", self.settings.tenant());
        let Some(authorization) = authorization else {
            return Err(refusal::missing(&authority));
        };
        let token = authorization.to_str().ok().and_then(|value| {
            let (scheme, token) = value.trim().split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        let token = token.ok_or_else(|| refusal::not_bearer(&authority))?;
        if self.settings.is_developer(token) {
            return Ok(Principal::developer());
        }
        let claims = self.signer.read(token).ok_or_else(|| refusal::invalid(&authority))?;
        let at = |seconds| Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
        if at(claims.nbf) > now + LEEWAY {
            return Err(refusal::invalid(&authority));
        }
        if at(claims.exp) <= now {
            return Err(refusal::expired(&authority, at(claims.exp), now));
        }
        let audience = claims.aud.trim_end_matches('/');
        if !AUDIENCES.contains(&audience) && audience != base {
            return Err(refusal::audience(&authority, &claims.aud));
        }
        Ok(Principal {
            tenant: claims.tid,
            client: claims.appid,
            object: claims.oid,
        })
    }

    /// What is answered at `base` on the paths of the token services; none for all other paths.
    pub(super) fn answer(&self, request: &Request<Bytes>, base: &str, now: Timestamp) -> Option<Response<Bytes>> {
        let base = base.trim_end_matches('/');
        Some(match segments(request)[..] {
            ["msi", "token"] => self.app_service(request, now),
            ["metadata", "endpoints"] => cloud::endpoints(request, base),
            ["metadata", "identity", "oauth2", "token"] => self.imds_token(request, now),
            [tenant, "oauth2", "token"] => self.token(tenant, entra::Version::One, request, now),
            [tenant, "oauth2", "v2.0", "token"] => self.token(tenant, entra::Version::Two, request, now),
            ["common", "discovery", "instance"] => discovery::instance(request, base),
            [tenant, "v2.0", ".well-known", "openid-configuration"] => {
                discovery::configuration(base, tenant, entra::Version::Two)
            }
            [tenant, ".well-known", "openid-configuration"] => {
                discovery::configuration(base, tenant, entra::Version::One)
            }
            [_, "discovery", "v2.0", "keys"] | [_, "discovery", "keys"] => discovery::keys(),
            _ => return None,
        })
    }

    /// A token for people who call by hand, and when it ends.
    pub(super) fn handed_out(&self, now: Timestamp) -> (String, Timestamp) {
        let Principal { tenant, client, object } = Principal::developer();
        let issued = self.issue(&Account { tenant, client, object }, AUDIENCES[0], now);
        (
            issued.token,
            Timestamp::from_second(issued.until).unwrap_or(Timestamp::MAX),
        )
    }

    /// A token for an account.
    fn issue(&self, account: &Account, audience: &str, now: Timestamp) -> Issued {
        let lifetime = i64::try_from(self.settings.token_lifetime.as_secs()).unwrap_or(i64::MAX);
        let (from, until) = (now.as_second(), now.as_second().saturating_add(lifetime));
        Issued {
            token: self.signer.sign(account, audience, from, until),
            from,
            until,
        }
    }
}

/// A token and its time, in seconds.
struct Issued {
    token: String,
    from: i64,
    until: i64,
}

impl Issued {
    /// What is told: a second less, as is always seen.
    fn expires_in(&self) -> i64 {
        (self.until - self.from - 1).max(0)
    }
}

/// A text that is not to be seen.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(super) struct Secret(String);

impl Secret {
    /// Around a text.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    fn is(&self, text: &str) -> bool {
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
