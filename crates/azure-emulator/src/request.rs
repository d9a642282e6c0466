//! One request to ARM as the rooms below see it, and what they answer.

use axum::http::header::{CONTENT_TYPE, ETAG, HeaderName, LOCATION};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;
use headgate_clock::Moment;
use serde_json::Value;

use super::error::ArmError;
use super::etag::Etag;
use super::fault::{Effect, End};
use super::id::is;
use super::record::Object;

/// The oldest API version of `Microsoft.Network` that is taken: the first with `adminState`.
const OLDEST_NETWORK_VERSION: &str = "2021-08-01";

/// A request.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a [u8],
    /// How the caller reached us, `http://127.0.0.1:1234`.
    pub(super) base: &'a str,
    pub(super) now: Moment,
    /// How the operation of a write ends, where that was asked for.
    pub(super) ends: Option<(End, Effect)>,
}

/// An answer that is no refusal.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Option<Value>,
}

impl Answer {
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
        // What is put here is ours, or was a header before.
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
        // Twice as fast as its Display; a JSON value always has a text.
        // Twice as fast as its Display; a JSON value always has a text.
        let text = |body| Bytes::from(serde_json::to_vec(&body).unwrap_or_default());
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

impl Call<'_> {
    /// The value of a query parameter.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        let found = pairs.find(|(key, _)| is(key, name))?;
        Some(found.1.into_owned())
    }

    /// The API version, which is echoed in URLs.
    ///
    /// # Errors
    /// 400 without one, or with one that is too old or no date.
    pub(super) fn version(&self, namespace: &str, kind: &str) -> Result<String, ArmError> {
        let Some(version) = self.parameter("api-version").filter(|version| !version.is_empty()) else {
            return Err(ArmError::new(
                StatusCode::BAD_REQUEST,
                "MissingApiVersionParameter",
                "The api-version query parameter (?api-version=) is required for all requests.",
            ));
        };
        let date = version.get(..10).unwrap_or_default();
        let is_date = date.parse::<jiff::civil::Date>().is_ok()
            && matches!(version.get(10..), Some("" | "-preview" | "-alpha" | "-beta"));
        if !is_date || is(namespace, "Microsoft.Network") && date < OLDEST_NETWORK_VERSION {
            let shown: String = version.chars().take(50).collect();
            return Err(ArmError::new(
                StatusCode::BAD_REQUEST,
                "NoRegisteredProviderFound",
                format!(
                    "No registered resource provider found for API version '{shown}' for type '{kind}'. The supported \
                     api-versions are '{OLDEST_NETWORK_VERSION} and later'."
                ),
            ));
        }
        Ok(version)
    }

    /// The body, which has to be a JSON object.
    ///
    /// # Errors
    /// 400.
    pub(super) fn object(&self) -> Result<Object, ArmError> {
        let refused = |what: String| {
            let message = format!("The request content was invalid and could not be deserialized: '{what}'.");
            ArmError::new(StatusCode::BAD_REQUEST, "InvalidRequestContent", message)
        };
        match serde_json::from_slice(self.body) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(_) => Err(refused("it is not an object".to_owned())),
            Err(error) => Err(refused(error.to_string())),
        }
    }
}
