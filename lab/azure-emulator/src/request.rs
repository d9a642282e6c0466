//! A request to ARM, and a JSON response.

use axum::http::header::{CONTENT_TYPE, ETAG, HeaderName, LOCATION};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;
use headgate_core::clock::Moment;
use serde_json::Value;

use super::error::ErrorResponse;
use super::etag::Etag;
use super::faults::action::{Effect, OperationEnd};
use super::field_order::ArmOrder;
use super::id::same_name;
use super::resource::Object;

/// The oldest API version of `Microsoft.Network` that is accepted: the first with `adminState`.
const OLDEST_NETWORK_VERSION: &str = "2021-08-01";

/// A request to ARM; authentication, throttling and faults come before it.
#[derive(Debug)]
pub(super) struct ArmRequest<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a [u8],
    /// The URL of the emulator that the client used, such as `http://127.0.0.1:1234`.
    pub(super) base: &'a str,
    pub(super) now: Moment,
    /// How the operation of a write ends, where a fault says so.
    pub(super) operation_end: Option<(OperationEnd, Effect)>,
}

/// A response with a JSON body or none.
#[derive(Debug)]
pub(super) struct JsonResponse {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Option<Value>,
}

impl JsonResponse {
    pub(super) fn new(status: StatusCode, body: Value) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Some(body),
        }
    }

    pub(super) fn empty(status: StatusCode) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: None,
        }
    }

    pub(super) fn header(mut self, name: HeaderName, value: &str) -> Self {
        // Only values that the emulator made, or that came in a header.
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }

    pub(super) fn etag(self, etag: Etag) -> Self {
        self.header(ETAG, &etag.to_string())
    }

    pub(super) fn location(self, url: &str) -> Self {
        self.header(LOCATION, url)
    }

    pub(super) fn response(self) -> Response<Bytes> {
        // Twice as fast as `Display`. Serializing a JSON value does not fail.
        let text = |body| Bytes::from(serde_json::to_vec(&ArmOrder(&body)).unwrap_or_default());
        let body = self.body.map(text);
        let mut response = Response::new(body.unwrap_or_default());
        *response.status_mut() = self.status;
        if !response.body().is_empty() {
            let json = HeaderValue::from_static("application/json; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, json);
        }
        response.headers_mut().extend(self.headers);
        response
    }
}

impl ArmRequest<'_> {
    /// The value of a query parameter; names ignore case.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        let found = pairs.find(|(key, _)| same_name(key, name))?;
        Some(found.1.into_owned())
    }

    /// The API version, which URLs in the answer repeat.
    ///
    /// # Errors
    /// 400 if it is missing, too old, or not a date.
    pub(super) fn version(&self, namespace: &str, kind: &str) -> Result<String, ErrorResponse> {
        let Some(version) = self.parameter("api-version").filter(|version| !version.is_empty()) else {
            return Err(ErrorResponse::missing_version());
        };
        let date = version.get(..10).unwrap_or_default();
        let is_date = date.parse::<jiff::civil::Date>().is_ok()
            && matches!(version.get(10..), Some("" | "-preview" | "-alpha" | "-beta"));
        if !is_date || same_name(namespace, "Microsoft.Network") && date < OLDEST_NETWORK_VERSION {
            let shown: String = version.chars().take(50).collect();
            return Err(ErrorResponse::bad_request(
                "NoRegisteredProviderFound",
                format!(
                    "No registered resource provider found for API version '{shown}' for type '{kind}'. The supported \
                     api-versions are '{OLDEST_NETWORK_VERSION} and later'."
                ),
            ));
        }
        Ok(version)
    }

    /// The body, which must be a JSON object.
    ///
    /// # Errors
    /// 400 `InvalidRequestContent`.
    pub(super) fn object(&self) -> Result<Object, ErrorResponse> {
        let refused = |what: String| {
            let message = format!("The request content was invalid and could not be deserialized: '{what}'.");
            ErrorResponse::invalid_content(message)
        };
        match serde_json::from_slice(self.body) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) => Err(refused("it is not an object".to_owned())),
            Err(error) => Err(refused(error.to_string())),
        }
    }
}
