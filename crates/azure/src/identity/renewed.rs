//! One account's token, kept and renewed.
//!
//! Renewals are one at a time. While one is under way, everybody else goes on with the token there is, or
//! waits where there is none. Time is measured on the monotonic clock, from what the answer says about how
//! long the token is good.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use headgate_clock::Clock;
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::super::error::ArmError;
use super::super::retry::Retry;
use super::super::stack::{self, Call, Stack};
use super::super::transport::Transport;
use super::grant::{Granted, Identity};
use super::{TokenError, TokenSource};
use crate::Secret;

/// A token is renewed so long before its end, or halfway where it lives for less than twice that.
const EARLY: Duration = Duration::from_mins(5);
/// After a renewal that failed, while the old token lasts.
const PAUSE: Duration = Duration::from_secs(30);
/// Time for one answer, and for all tries together.
const ONE_TRY: Duration = Duration::from_secs(10);
const ALL_TRIES: Duration = Duration::from_secs(45);

/// A token that is kept.
#[derive(Clone, Debug)]
struct Held {
    token: Secret,
    renew_at: Instant,
    good_until: Instant,
}

impl Held {
    fn new(granted: Granted, asked: Instant) -> Self {
        let early = EARLY.min(granted.good_for / 2);
        Self {
            token: granted.token,
            renew_at: asked + granted.good_for.saturating_sub(early),
            good_until: asked + granted.good_for,
        }
    }
}

/// The tokens of one account.
pub struct TokenCache {
    account: Identity,
    clock: Clock,
    stack: Stack,
    held: Mutex<Option<Held>>,
    renewing: tokio::sync::Mutex<()>,
}

impl fmt::Debug for TokenCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCache")
            .field("account", &self.account)
            .finish_non_exhaustive()
    }
}

impl TokenCache {
    /// None yet.
    #[must_use]
    pub fn new(account: Identity, transport: Transport, clock: Clock) -> Self {
        let retry = Retry {
            statuses: account.retried(),
            clock: clock.clone(),
        };
        Self {
            account,
            clock,
            stack: stack::tokens(transport, retry, ONE_TRY),
            held: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
        }
    }

    fn held(&self) -> Option<Held> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone().filter(|held| held.good_until > Instant::now())
    }

    fn keep(&self, held: Option<Held>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = held;
    }

    /// Asks for one.
    async fn ask(&self) -> Result<Held, TokenError> {
        let asked = Instant::now();
        let wanted = self.account.wanted().await?;
        let call = Call {
            method: wanted.method,
            uri: wanted.uri,
            headers: wanted.headers,
            body: wanted.body,
            subscription: "".into(),
            deadline: asked + ALL_TRIES,
            permit: None,
            seen: Arc::default(),
        };
        let answer = self.stack.clone().oneshot(call).await.map_err(|error| match error {
            ArmError::InvalidResponse(why) => TokenError::Answer(why),
            ArmError::Connection(why) => TokenError::Connection(format!("{}: {why}", self.account.asked())),
            error => TokenError::Connection(format!("{}: {error}", self.account.asked())),
        })?;
        let granted = Identity::granted(&answer, self.clock.now().wall)?;
        tracing::debug!(good_for = ?granted.good_for, "a token for Azure");
        Ok(Held::new(granted, asked))
    }

    /// One that is good, and not this one.
    async fn good(&self, refused: Option<&Secret>) -> Result<Secret, TokenError> {
        let usable = |held: &Held| refused.is_none_or(|refused| held.token != *refused);
        let kept = self.held().filter(usable);
        let due = |held: &Held| Instant::now() >= held.renew_at;
        let (_renewing, kept) = match kept {
            Some(held) if !due(&held) => return Ok(held.token),
            // Somebody is at it, and this one is still good.
            Some(held) => match self.renewing.try_lock() {
                Ok(renewing) => (renewing, self.held().filter(usable)),
                Err(_) => return Ok(held.token),
            },
            None => {
                let renewing = self.renewing.lock().await;
                (renewing, self.held().filter(usable))
            }
        };
        // It may have been renewed while this one waited.
        if let Some(held) = &kept
            && !due(held)
        {
            return Ok(held.token.clone());
        }
        match (self.ask().await, kept) {
            (Ok(held), _) => {
                let token = held.token.clone();
                self.keep(Some(held));
                Ok(token)
            }
            (Err(error), Some(held)) => {
                tracing::warn!(%error, "the token for Azure is not renewed yet; the old one goes on");
                let token = held.token.clone();
                self.keep(Some(Held {
                    renew_at: Instant::now() + PAUSE,
                    ..held
                }));
                Ok(token)
            }
            (Err(error), None) => Err(error),
        }
    }
}

impl TokenSource for TokenCache {
    fn token(&self) -> BoxFuture<'_, Result<Secret, TokenError>> {
        self.good(None).boxed()
    }

    fn renewed<'a>(&'a self, refused: &'a Secret) -> BoxFuture<'a, Result<Secret, TokenError>> {
        self.good(Some(refused)).boxed()
    }
}

#[cfg(test)]
mod tests;
