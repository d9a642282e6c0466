//! The token of one identity, cached and refreshed.
//!
//! A token is refreshed five minutes before its end, and once when ARM rejects it. One refresh runs at a time: meanwhile
//! other requests use the present token, or wait if there is none. After a refresh that failed or took more than
//! [`REFRESH_TIMEOUT`], the present token stays in use until its end. Lifetimes count on the monotonic clock, from the request.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use headgate_core::clock::Clock;
use tokio::time::{Instant, timeout};

use crate::Secret;
use crate::error::{ArmError, TokenError};
use crate::identity::{Identity, IssuedToken};
use crate::request_path::{retried, timed};
use crate::retry::RetryPolicy;
use crate::transport::Transport;

/// Time before a token's end at which it is refreshed; half its lifetime if that is shorter.
const REFRESH_BEFORE_END: Duration = Duration::from_mins(5);
/// Time from a failed refresh to the next one, while the present token is valid.
const REFRESH_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// For a refresh while the present token is valid: a request to ARM waits for it.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(2);
/// For one attempt of a token request.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// For a token request with all its retries.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(45);

#[derive(Clone, Debug)]
struct CachedToken {
    token: Secret,
    refresh_at: Instant,
    valid_until: Instant,
}

impl CachedToken {
    fn new(issued: IssuedToken, requested_at: Instant) -> Self {
        let before_end = REFRESH_BEFORE_END.min(issued.lifetime / 2);
        Self {
            token: issued.token,
            refresh_at: requested_at + issued.lifetime.saturating_sub(before_end),
            valid_until: requested_at + issued.lifetime,
        }
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.refresh_at
    }
}

/// The tokens of one identity.
pub struct TokenCache {
    identity: Identity,
    clock: Clock,
    transport: Transport,
    policy: RetryPolicy,
    cached: Mutex<Option<CachedToken>>,
    /// Held during a refresh.
    refreshing: tokio::sync::Mutex<()>,
}

impl fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCache")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl TokenCache {
    /// An empty cache. The first call of [`Self::token`] sends the first request.
    pub fn new(identity: Identity, transport: Transport, clock: Clock) -> Self {
        let policy = RetryPolicy {
            statuses: identity.retried_statuses(),
            max_requested_delay: Duration::MAX,
            clock: clock.clone(),
        };
        Self {
            identity,
            clock,
            transport,
            policy,
            cached: Mutex::default(),
            refreshing: tokio::sync::Mutex::default(),
        }
    }

    /// Returns a token that is valid now.
    ///
    /// # Errors
    /// When there is none, and the token endpoint gives none.
    pub async fn token(&self) -> Result<Secret, TokenError> {
        self.get(None).await
    }

    /// Returns another token than `rejected`, which ARM answered with 401.
    pub(crate) async fn refresh(&self, rejected: &Secret) -> Result<Secret, TokenError> {
        self.get(Some(rejected)).await
    }

    /// The cached token, if it is valid and not `rejected`.
    fn valid(&self, rejected: Option<&Secret>) -> Option<CachedToken> {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone();
        cached
            .filter(|cached| cached.valid_until > Instant::now())
            .filter(|cached| rejected.is_none_or(|rejected| cached.token != *rejected))
    }

    fn store(&self, token: CachedToken) {
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    async fn request(&self) -> Result<CachedToken, TokenError> {
        let requested_at = Instant::now();
        if let Some(issued) = self.identity.token_of_az(self.clock.now().wall).await {
            return issued.map(|issued| CachedToken::new(issued, requested_at));
        }
        let request = self.identity.token_request().await?;
        let deadline = requested_at + TOKEN_TIMEOUT;
        let attempt = || timed(ATTEMPT_TIMEOUT, deadline, self.transport.send(request.clone()));
        let response = retried(&self.policy, &request, false, deadline, attempt).await;
        let response = response.map_err(|error| match error {
            ArmError::InvalidResponse(why) => TokenError::InvalidResponse(why),
            ArmError::Connection(why) => TokenError::Connection(format!("{}: {why}", self.identity.host())),
            error => TokenError::Connection(format!("{}: {error}", self.identity.host())),
        })?;
        let issued = Identity::parse_response(&response, self.clock.now().wall)?;
        tracing::debug!(lifetime = ?issued.lifetime, "token for Azure received");
        Ok(CachedToken::new(issued, requested_at))
    }

    /// A valid token other than `rejected`: the cached one, or a new one if that is due or missing.
    async fn get(&self, rejected: Option<&Secret>) -> Result<Secret, TokenError> {
        let (_refreshing, cached) = match self.valid(rejected) {
            Some(cached) if !cached.is_due() => return Ok(cached.token),
            Some(cached) => match self.refreshing.try_lock() {
                Ok(refreshing) => (refreshing, self.valid(rejected)),
                // Another request refreshes it.
                Err(_) => return Ok(cached.token),
            },
            None => {
                let refreshing = self.refreshing.lock().await;
                (refreshing, self.valid(rejected))
            }
        };
        // Another request may have refreshed it before this one got the lock.
        if let Some(cached) = &cached
            && !cached.is_due()
        {
            return Ok(cached.token.clone());
        }
        let received = match &cached {
            Some(_) => timeout(REFRESH_TIMEOUT, self.request()).await.unwrap_or_else(|_| {
                let host = self.identity.host();
                Err(TokenError::Connection(format!("{host} within {REFRESH_TIMEOUT:?}")))
            }),
            None => self.request().await,
        };
        match (received, cached) {
            (Ok(received), _) => {
                let token = received.token.clone();
                self.store(received);
                Ok(token)
            }
            (Err(error), Some(cached)) => {
                tracing::info!(%error, retry_in = ?REFRESH_RETRY_INTERVAL, "token refresh failed; the present token stays in use");
                let token = cached.token.clone();
                self.store(CachedToken {
                    refresh_at: Instant::now() + REFRESH_RETRY_INTERVAL,
                    ..cached
                });
                Ok(token)
            }
            (Err(error), None) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
