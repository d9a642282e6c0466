//! Parameters of a query or of a form, as the services beside Resource Manager read them, and what IMDS
//! wants of every request.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, Request};
use bytes::Bytes;

/// Names and values; of a name that comes twice, the first.
#[derive(Debug, Default)]
pub(super) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Those of `a=b&c=d`.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut pairs = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(text) {
            pairs.entry(name.into_owned()).or_insert_with(|| value.into_owned());
        }
        Self(pairs)
    }

    /// Those of a request's query.
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        Self::parse(request.uri().query().unwrap_or_default().as_bytes())
    }

    /// One that is there and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Whether a request is as IMDS wants it: with `Metadata: true`, and not handed on by a proxy.
pub(super) fn is_for_imds(headers: &HeaderMap) -> bool {
    let asks = headers
        .get("metadata")
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    asks && !headers.contains_key("x-forwarded-for")
}

/// The segments of a request's path.
pub(super) fn segments(request: &Request<Bytes>) -> Vec<&str> {
    request.uri().path().trim_matches('/').split('/').collect()
}
