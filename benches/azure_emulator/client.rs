//! A client of ARM and of other servers that benchmarks start.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use headgate_http::client::PlainClient;
use hyper::Request;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use serde_json::Value;
use tokio::time::sleep;

/// Time for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);
/// More than the largest load balancer or page of the journal.
const MAX_BODY_BYTES: usize = 1024 * 1024 * 1024;
/// Time between two polls of an operation.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A response with a status of the 200s.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) body: Bytes,
    /// The status URL of the operation that the request started.
    pub(crate) operation: Option<String>,
}

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

    /// Sends a request and reads the response.
    ///
    /// # Errors
    /// There is no response in time, or its status is not one of the 200s.
    pub(crate) async fn send(&self, method: &str, path: &str, body: String) -> anyhow::Result<Response> {
        let path = path.strip_prefix(&self.base).unwrap_or(path);
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(CONTENT_TYPE, "application/json")
            .body(body.into())?;
        let response = self.http.exchange(request).await;
        let response = response.with_context(|| format!("{method} {path}"))?;
        let (status, operation) = (response.status(), response.headers().get("azure-asyncoperation"));
        let operation = operation.map(|url| url.to_str().map(str::to_owned)).transpose()?;
        let body = response.into_body();
        if !status.is_success() {
            bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&body));
        }
        Ok(Response { body, operation })
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(
            &self.send("GET", path, String::new()).await?.body,
        )?)
    }

    /// Polls an operation until it ends.
    ///
    /// # Errors
    /// The operation failed, or was canceled without being superseded by a newer write.
    pub(crate) async fn wait_for_operation(&self, operation: &str) -> anyhow::Result<()> {
        loop {
            let status = self.get(operation).await?;
            let detail = status.pointer("/error/details/0/code").and_then(Value::as_str);
            match (status["status"].as_str(), detail) {
                (Some("InProgress"), _) => sleep(POLL_INTERVAL).await,
                (Some("Succeeded"), _) | (Some("Canceled"), Some("CanceledAndSupersededDueToAnotherOperation")) => {
                    return Ok(());
                }
                _ => bail!("an operation ended with {status}"),
            }
        }
    }
}
