//! The headers that every answer of ARM has, as recorded.

use axum::http::header::{
    CACHE_CONTROL, EXPIRES, HeaderName, PRAGMA, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use headgate_core::clock::Moment;

use super::State;

impl State {
    /// Adds the headers that the response does not have yet.
    pub(super) fn add_headers(&mut self, request: &Parts, headers: &mut HeaderMap, now: Moment) {
        let id = self.guids.next().to_string();
        let sent = |name: &str| request.headers.get(name).cloned();
        let correlation = sent("x-ms-correlation-request-id").unwrap_or_else(|| value(&id));
        let routing = format!("EASTUS:{}:{id}", now.wall.strftime("%Y%m%dT%H%M%SZ"));
        for (name, value) in [
            (HeaderName::from_static("x-ms-request-id"), value(&id)),
            (HeaderName::from_static("x-ms-correlation-request-id"), correlation),
            (HeaderName::from_static("x-ms-routing-request-id"), value(&routing)),
            (HeaderName::from_static("x-ms-arm-service-request-id"), value(&id)),
            (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (PRAGMA, HeaderValue::from_static("no-cache")),
            (EXPIRES, HeaderValue::from_static("-1")),
            (
                STRICT_TRANSPORT_SECURITY,
                HeaderValue::from_static("max-age=31536000; includeSubDomains"),
            ),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (
                HeaderName::from_static("x-cache"),
                HeaderValue::from_static("CONFIG_NOCACHE"),
            ),
        ] {
            headers.entry(name).or_insert(value);
        }
        let is_requested =
            sent("x-ms-return-client-request-id").is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
        if let (true, Some(id)) = (is_requested, sent("x-ms-client-request-id")) {
            headers.insert("x-ms-client-request-id", id);
        }
    }
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
