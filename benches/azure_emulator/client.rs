//! A client of ARM and of other servers that benchmarks start.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use headgate_http::client::PlainClient;
use hyper::Request;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};

/// Time for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);
/// More than the largest load balancer or page of the journal.
const MAX_BODY_BYTES: usize = 1024 * 1024 * 1024;

/// A client of one server, over persistent connections.
pub(crate) struct Client {
    http: PlainClient,
    base: String,
    token: String,
}

impl Client {
    pub(crate) fn new(server: SocketAddr, token: &str) -> Self {
        Self {
            http: PlainClient::plain(RESPONSE_TIMEOUT, MAX_BODY_BYTES),
            base: format!("http://{server}"),
            token: token.to_owned(),
        }
    }

    /// Sends a request and reads the body of the response.
    ///
    /// # Errors
    /// There is no response in time, or its status is not one of the 200s.
    pub(crate) async fn send(&self, method: &str, path: &str, body: String) -> anyhow::Result<Bytes> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(CONTENT_TYPE, "application/json")
            .body(body.into())?;
        let response = self.http.exchange(request).await;
        let response = response.with_context(|| format!("{method} {path}"))?;
        let status = response.status();
        let body = response.into_body();
        if !status.is_success() {
            bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }
}
