//! One bounded GET: connecting, the answer and its body within one time limit, the body within a size.
//!
//! For servers next door that answer from memory (kube-proxy, an agent's `/statusz`). Connections are
//! kept between requests. No TLS, no redirects, no retries: those are other rooms' business.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use crate::body::read_body;

/// Idle time before the first keepalive probe, and between probes.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// No whole answer in time.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// No connection, no HTTP, or too large a body.
    #[error("{0}")]
    Failed(String),
}

/// Asks servers next door.
#[derive(Clone, Debug)]
pub struct Fetch {
    client: Client<HttpConnector, Empty<Bytes>>,
    timeout: Duration,
    most_bytes: usize,
}

impl Fetch {
    /// Requests that may take `timeout` each and bring `most_bytes` of body.
    #[must_use]
    pub fn new(timeout: Duration, most_bytes: usize) -> Self {
        Self::with_connect_timeout(timeout, timeout, most_bytes)
    }

    /// The same, where an answer may take long but a connection may not.
    #[must_use]
    pub fn with_connect_timeout(connect: Duration, timeout: Duration, most_bytes: usize) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(connect));
        // A peer that died without a word is noticed before a long timeout ends.
        connector.set_keepalive(Some(KEEPALIVE));
        connector.set_keepalive_interval(Some(KEEPALIVE));
        connector.set_keepalive_retries(Some(3));
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            timeout,
            most_bytes,
        }
    }

    /// The status and body at `uri`, asked with these headers.
    ///
    /// # Errors
    /// Where there is no whole answer within the bounds.
    pub async fn get(&self, uri: Uri, headers: &[(&str, &str)]) -> Result<(StatusCode, Bytes), FetchError> {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Empty::new())
            .map_err(|error| FetchError::Failed(error.to_string()))?;
        let exchange = async {
            let response = self
                .client
                .request(request)
                .await
                .map_err(|error| headgate_telemetry::chain(&error))?;
            let status = response.status();
            let body = read_body(response.into_body(), self.most_bytes).await;
            Ok((status, body.map_err(|error| error.to_string())?))
        };
        match timeout(self.timeout, exchange).await {
            Ok(outcome) => outcome.map_err(FetchError::Failed),
            Err(_) => Err(FetchError::Timeout(self.timeout)),
        }
    }
}
