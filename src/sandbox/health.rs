//! Asking an agent's `/healthz`, as a load balancer would, again and again.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Uri;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::board::Said;

/// From one answer to the next question.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than any body of an agent's.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// A client for any number of agents.
pub(super) type Asker = Client<HttpConnector, Empty<Bytes>>;

/// The fields of the body that are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    signals: Vec<String>,
    source: Option<String>,
}

pub(super) fn asker() -> Asker {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Asks one agent until nobody wants to hear any more, and tells what it said under `number`.
pub(super) async fn follow(asker: &Asker, number: usize, address: SocketAddr, heard: mpsc::Sender<(usize, Said)>) {
    loop {
        let said = timeout(PATIENCE, ask(asker, address))
            .await
            .ok()
            .flatten()
            .unwrap_or_default();
        if heard.send((number, said)).await.is_err() {
            return;
        }
        sleep(INTERVAL).await;
    }
}

async fn ask(asker: &Asker, address: SocketAddr) -> Option<Said> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(address.to_string())
        .path_and_query("/healthz")
        .build()
        .ok()?;
    let answer = asker.get(uri).await.ok()?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_BODY_BYTES)
        .collect()
        .await
        .ok()?
        .to_bytes();
    // The status alone is an answer too.
    let Body { signals, source } = serde_json::from_slice(&body).unwrap_or_default();
    Some(Said {
        healthz: Some(status),
        signals,
        source,
    })
}
