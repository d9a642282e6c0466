//! Asking an agent's `/healthz`, as a load balancer would, again and again.

use std::net::SocketAddr;
use std::time::Duration;

use headgate_http::fetch::Fetch;
use hyper::Uri;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::board::Said;

/// From one answer to the next question.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than any body of an agent's.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// The fields of the body that are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    signals: Vec<String>,
    source: Option<String>,
}

/// What asks any number of agents.
pub(super) fn asker() -> Fetch {
    Fetch::new(PATIENCE, MAX_BODY_BYTES)
}

/// Asks one agent until nobody wants to hear any more, and tells what it said under `number`.
pub(super) async fn follow(asker: &Fetch, number: usize, address: SocketAddr, heard: mpsc::Sender<(usize, Said)>) {
    loop {
        let said = ask(asker, address).await.unwrap_or_default();
        if heard.send((number, said)).await.is_err() {
            return;
        }
        sleep(INTERVAL).await;
    }
}

async fn ask(asker: &Fetch, address: SocketAddr) -> Option<Said> {
    let uri: Uri = format!("http://{address}/healthz").parse().ok()?;
    let (status, body) = asker.get(uri, &[]).await.ok()?;
    // The status alone is an answer too.
    let Body { signals, source } = serde_json::from_slice(&body).unwrap_or_default();
    Some(Said {
        healthz: Some(status.as_u16()),
        signals,
        source,
    })
}
