//! What a request to the API server failed with, as a text for people.

use std::time::Duration;

use headgate_core::telemetry::error_chain;
use tokio::time::timeout;

/// Why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The API server was silent for so long.
    #[error("no answer within {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// The API server refused it, or cannot be reached.
    #[error("{}", api_error_text(.0))]
    Failed(kube::Error),
}

impl RequestError {
    /// The status code; 0 without an answer.
    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::Failed(kube::Error::Api(status)) => status.code,
            Self::Failed(_) | Self::NoAnswer(_) => 0,
        }
    }
}

/// The result of a request within this time.
///
/// # Errors
/// As the variants say.
pub(crate) async fn within<T>(
    limit: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestError> {
    let answer = timeout(limit, request).await;
    answer
        .map_err(|_| RequestError::NoAnswer(limit))?
        .map_err(RequestError::Failed)
}

/// The API server's own message, or what kept it from answering. kube's text of a refusal has the whole answer a second time,
/// with the names of its fields.
pub(crate) fn api_error_text(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) if !status.reason.is_empty() => format!("{} ({})", status.reason, status.code),
        kube::Error::Api(status) => format!("status {}", status.code),
        // The text of the transport's error without kube's name for its kind.
        kube::Error::Service(error) => error_chain(&**error),
        other => error_chain(other),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_refusal_is_the_message_of_the_api_server_and_nothing_else() {
        let text = |status: Value| {
            let status: Status = serde_json::from_value(status).unwrap();
            api_error_text(&kube::Error::Api(Box::new(status)))
        };
        let message = "nodes is forbidden: User \"u\" cannot list resource \"nodes\"";
        assert_eq!(
            text(json!({"message": message, "reason": "Forbidden", "code": 403})),
            message
        );
        assert_eq!(text(json!({"reason": "Forbidden", "code": 403})), "Forbidden (403)");
        assert_eq!(text(json!({"code": 503})), "status 503");
        let other = kube::Error::LinesCodecMaxLineLengthExceeded;
        assert_eq!(api_error_text(&other), other.to_string());
    }
}
