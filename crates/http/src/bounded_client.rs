//! A client for one GET with bounds: a time limit for connection, response and body together, and a size limit for
//! the body.
//!
//! It is for plain HTTP servers on the same machine or node network that answer from memory: kube-proxy, IMDS, the
//! `/statusz` of an agent. Connections are reused. There is no TLS, no redirect and no retry.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use crate::body::read_body;

/// Idle time before the first TCP keepalive probe, and time between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Unanswered TCP keepalive probes that end a connection.
const KEEPALIVE_RETRIES: u32 = 3;

/// Why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// The response was not complete within the time limit.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The connection failed, the response is not HTTP, or the body is too large.
    #[error("{0}")]
    Failed(String),
}

/// A client with a time limit for each request and a size limit for each body.
#[derive(Clone, Debug)]
pub struct BoundedClient {
    client: Client<HttpConnector, Empty<Bytes>>,
    timeout: Duration,
    max_body_bytes: usize,
}

impl BoundedClient {
    /// A client whose requests take `timeout` at most, connecting included.
    #[must_use]
    pub fn new(timeout: Duration, max_body_bytes: usize) -> Self {
        Self::with_connect_timeout(timeout, timeout, max_body_bytes)
    }

    /// A client with a shorter limit for connecting than for the whole request.
    #[must_use]
    pub fn with_connect_timeout(connect_timeout: Duration, timeout: Duration, max_body_bytes: usize) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(connect_timeout));
        // Keepalive finds a dead peer before a long timeout ends.
        connector.set_keepalive(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            timeout,
            max_body_bytes,
        }
    }

    /// Sends a GET with these headers; returns status and body.
    ///
    /// # Errors
    /// When there is no complete response within the limits.
    pub async fn get(&self, uri: Uri, headers: &[(&str, &str)]) -> Result<(StatusCode, Bytes), GetError> {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Empty::new())
            .map_err(|error| GetError::Failed(error.to_string()))?;
        let exchange = async {
            let response = self
                .client
                .request(request)
                .await
                .map_err(|error| headgate_telemetry::error_chain(&error))?;
            let status = response.status();
            let body = read_body(response.into_body(), self.max_body_bytes).await;
            Ok((status, body.map_err(|error| error.to_string())?))
        };
        match timeout(self.timeout, exchange).await {
            Ok(outcome) => outcome.map_err(GetError::Failed),
            Err(_) => Err(GetError::Timeout(self.timeout)),
        }
    }
}
