//! Who headgate is to Azure: a bearer token with each request, and where tokens come from.
//!
//! A token is used for as long as it is good, renewed five minutes before its end, and at once, one time, when ARM
//! refuses it. A renewal that fails leaves the one there is in use while it lasts. No token and no secret
//! is ever in a log, an error, or what `Debug` writes.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderValue};
use tokio::time::timeout_at;
use tower::ServiceExt as _;

use super::error::{ArmError, ErrorClass};
use super::stack::{Around, Below, Call};
use super::transport::Answer;
use crate::Secret;

mod grant;
mod renewed;

pub use grant::{IMDS_ENDPOINT, Identity, IdentityError};
pub use renewed::TokenCache;

/// Why there is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Whoever gives tokens gave none.
    #[error("no token: {error} ({status}): {description}")]
    Refused {
        /// HTTP's.
        status: u16,
        /// Such as `invalid_client`.
        error: String,
        /// The first line of what it says about it.
        description: String,
    },
    /// Nobody answered.
    #[error("no token: no answer from {0}")]
    Connection(String),
    /// The file with the service account's token cannot be read.
    #[error("no token: cannot read {file}: {why}")]
    File {
        /// `AZURE_FEDERATED_TOKEN_FILE`.
        file: String,
        /// Why.
        why: String,
    },
    /// The answer is none.
    #[error("no token: the answer cannot be used: {0}")]
    Answer(String),
}

impl TokenError {
    /// What to do about it.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            // IMDS answers 404 and 410 while it is being updated.
            Self::Connection(_)
            | Self::File { .. }
            | Self::Refused {
                status: 404 | 408 | 410 | 429 | 500..=599,
                ..
            } => ErrorClass::Retriable,
            Self::Refused { .. } | Self::Answer(_) => ErrorClass::Terminal,
        }
    }
}

/// Where tokens come from.
pub trait TokenSource: Send + Sync + fmt::Debug {
    /// One that is good now.
    fn token(&self) -> BoxFuture<'_, Result<Secret, TokenError>>;

    /// Another one than this, which was refused.
    fn renewed<'a>(&'a self, refused: &'a Secret) -> BoxFuture<'a, Result<Secret, TokenError>>;
}

/// Puts a token to each request.
#[derive(Clone, Debug)]
pub(super) struct Bearer(pub(super) Arc<dyn TokenSource>);

impl Bearer {
    /// Sends the request with this token.
    async fn send<S: Below>(mut call: Call, token: &Secret, below: S) -> Result<BufferedResponse, ArmError> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
            .map_err(|_| TokenError::Answer("the token does not fit into a header".to_owned()))?;
        value.set_sensitive(true);
        call.headers.insert(AUTHORIZATION, value);
        below.oneshot(call).await
    }
}

impl Around for Bearer {
    async fn around<S: Below>(self, call: Call, below: S) -> Result<BufferedResponse, ArmError> {
        let in_time = |found| timeout_at(call.deadline, found);
        let token = in_time(self.0.token())
            .await
            .map_err(|_| ArmError::DeadlineExceeded)??;
        let answer = Self::send(call.clone(), &token, below.clone()).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        match in_time(self.0.renewed(&token)).await {
            Ok(Ok(renewed)) if renewed != token => Self::send(call, &renewed, below).await,
            // The refusal says more.
            Ok(Ok(_)) | Err(_) => Ok(answer),
            Ok(Err(error)) => {
                tracing::warn!(%error, "ARM refused a token, and there is no other");
                Ok(answer)
            }
        }
    }
}
