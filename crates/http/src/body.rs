//! One bounded read of an HTTP body: complete and within a size limit, or an error.
//!
//! Callers bound the time. A peer can therefore make a caller hold `max_bytes` at most.

use std::error::Error;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body;

/// Why a body was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body is larger than this many bytes.
    #[error("a body of more than {0} bytes")]
    TooLarge(usize),
    /// The connection failed before the end of the body.
    #[error("{0}")]
    Incomplete(String),
}

/// Reads a whole body of up to `max_bytes`.
///
/// # Errors
/// When the body is larger, or its end does not arrive.
pub async fn read_body<B>(body: B, max_bytes: usize) -> Result<Bytes, BodyError>
where
    B: Body,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    match Limited::new(body, max_bytes).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(max_bytes)),
        Err(error) => Err(BodyError::Incomplete(headgate_core::telemetry::error_chain(
            error.as_ref(),
        ))),
    }
}
