//! Parameters of queries and forms as the token services and IMDS read them, and the header that IMDS requires.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, Request};
use bytes::Bytes;

/// Names and values; the first value of a repeated name.
#[derive(Debug, Default)]
pub(super) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Parses parameters of the form `a=b&c=d`.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut pairs = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(text) {
            pairs.entry(name.into_owned()).or_insert_with(|| value.into_owned());
        }
        Self(pairs)
    }

    /// Parses the query of a request.
    pub(super) fn from_query<T>(request: &Request<T>) -> Self {
        Self::parse(request.uri().query().unwrap_or_default().as_bytes())
    }

    /// The value of a parameter, `None` if it is missing or empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Whether a request has `Metadata: true` and did not pass a proxy, as IMDS requires.
pub(super) fn has_metadata_header(headers: &HeaderMap) -> bool {
    let has_header = headers
        .get("metadata")
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    has_header && !headers.contains_key("x-forwarded-for")
}

/// The segments of a request's path.
pub(super) fn path_segments(request: &Request<Bytes>) -> Vec<&str> {
    request.uri().path().trim_matches('/').split('/').collect()
}
