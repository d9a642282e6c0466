//! Errors as ARM spells them: a status, and `{"error": {"code", "message", "details"?}}`.

use axum::http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER};
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use serde_json::{Value, json};

/// One refusal.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ArmError {
    /// The HTTP status.
    pub(super) status: StatusCode,
    /// ARM's code, which clients match on.
    pub(super) code: String,
    /// For people.
    pub(super) message: String,
    /// Causes; an empty list is shown as such, none is left out.
    pub(super) details: Option<Vec<Detail>>,
    /// What else is said, in headers.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

/// One cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Detail {
    /// Its code.
    pub(super) code: String,
    /// For people.
    pub(super) message: String,
}

impl ArmError {
    /// An error without details.
    pub(super) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.to_owned(),
            message: message.into(),
            details: None,
            headers: Vec::new(),
        }
    }

    /// With an empty list of details, as the network provider writes it.
    pub(super) fn without_details(mut self) -> Self {
        self.details = Some(Vec::new());
        self
    }

    /// With one more detail.
    pub(super) fn detail(mut self, code: &str, message: impl Into<String>) -> Self {
        self.details.get_or_insert_default().push(Detail {
            code: code.to_owned(),
            message: message.into(),
        });
        self
    }

    /// With a header.
    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// With this many seconds to wait.
    pub(super) fn retry_after(self, seconds: u64) -> Self {
        self.header(RETRY_AFTER, seconds.into())
    }

    /// As the gateway answers before a resource provider is asked.
    pub(super) fn by_gateway(self) -> Self {
        let name = HeaderName::from_static("x-ms-failure-cause");
        self.header(name, HeaderValue::from_static("gateway"))
    }

    /// The `error` object.
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

    /// The same in a line, for people.
    pub(super) fn told(&self) -> String {
        let details = self.details.iter().flatten();
        let messages = std::iter::once(self.message.as_str()).chain(details.map(|detail| detail.message.as_str()));
        messages.collect::<Vec<_>>().join(" ")
    }

    /// The answer.
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
