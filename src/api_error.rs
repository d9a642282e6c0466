//! What a request to the API server failed with, as a text for people.

use headgate_core::telemetry::error_chain;

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
