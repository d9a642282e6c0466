//! ARM's error responses: a status, and `{"error": {"code", "message", "details"?}}`.

use axum::http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde_json::{Value, json};

/// An error response of ARM or of the control API.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ErrorResponse {
    pub(super) status: StatusCode,
    /// ARM's error code; clients match on it.
    pub(super) code: String,
    pub(super) message: String,
    /// Causes. `Some` with no element is written as `"details": []`, `None` leaves the field out.
    pub(super) details: Option<Vec<Detail>>,
    /// Headers of the response, besides `Content-Type`.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

/// One cause of an error, an element of `error.details`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Detail {
    pub(super) code: String,
    pub(super) message: String,
}

impl ErrorResponse {
    /// An error without the field `details`.
    pub(super) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
            details: None,
            headers: Vec::new(),
        }
    }

    pub(super) fn bad_request(code: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(super) fn missing_version() -> Self {
        let message = "The api-version query parameter (?api-version=) is required for all requests.";
        Self::bad_request("MissingApiVersionParameter", message)
    }

    /// The error for content that cannot be used.
    pub(super) fn invalid_content(message: impl Into<String>) -> Self {
        Self::bad_request("InvalidRequestContent", message)
    }

    /// The answer to a document with a wrong type. Guess: Azure uses the code for requests that it cannot parse; the
    /// wording is the emulator's.
    pub(super) fn malformed(code: &str, id: &str, what: &str) -> Self {
        Self::bad_request("InvalidRequestFormat", "Cannot parse the request.").detail(code, format!("{id}: {what}."))
    }

    /// Writes `"details": []`, as the network provider does.
    pub(super) fn without_details(mut self) -> Self {
        self.details = Some(Vec::new());
        self
    }

    pub(super) fn detail(mut self, code: &str, message: impl Into<String>) -> Self {
        self.details.get_or_insert_default().push(Detail {
            code: code.to_owned(),
            message: message.into(),
        });
        self
    }

    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Adds `Retry-After`, in seconds.
    pub(super) fn retry_after(self, seconds: u64) -> Self {
        self.header(RETRY_AFTER, seconds.into())
    }

    /// Marks the error as ARM's own, sent before a resource provider handles the request.
    pub(super) fn by_gateway(self) -> Self {
        let name = HeaderName::from_static("x-ms-failure-cause");
        self.header(name, HeaderValue::from_static("gateway"))
    }

    /// The JSON object under `error`.
    pub(super) fn object(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(details) = &self.details {
            error["details"] = details
                .iter()
                .map(|detail| json!({"code": detail.code, "message": detail.message}))
                .collect();
        }
        error
    }

    /// Message and details in one line.
    pub(super) fn summary(&self) -> String {
        let details = self.details.iter().flatten();
        let messages = std::iter::once(self.message.as_str()).chain(details.map(|detail| detail.message.as_str()));
        messages.collect::<Vec<_>>().join(" ")
    }

    /// The error as an HTTP response.
    pub(super) fn response(&self) -> Response<Bytes> {
        let body = json!({"error": self.object()}).to_string();
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/json; charset=utf-8"),
        );
        headers.extend(self.headers.iter().cloned());
        response
    }
}
