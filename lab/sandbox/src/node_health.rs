//! The health answers of all nodes: polls each agent's `/healthz`, and keeps the last answer with the time since when
//! it is the same.

use std::net::SocketAddr;
use std::time::Duration;

use headgate_http::client::PlainClient;
use hyper::Uri;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Time between two polls of an agent.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Size of a body of `/healthz`.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// An answer of `/healthz`. The default stands for no answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct HealthAnswer {
    /// The HTTP status of the answer.
    pub(super) healthz: Option<u16>,
    /// The signals of the node.
    pub(super) signals: Vec<String>,
    /// The source of the Node's state: `watch`, `remembered` or `none`.
    pub(super) source: Option<String>,
}

/// A node and its last answer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeRow {
    /// Since when the answer is the same.
    #[serde(rename = "time")]
    pub(super) since: Timestamp,
    pub(super) node: String,
    #[serde(flatten)]
    pub(super) answer: HealthAnswer,
}

/// The rows of the nodes that have been polled, in the order of their numbers.
#[derive(Debug)]
pub(super) struct NodeRows {
    names: Vec<String>,
    rows: Vec<Option<NodeRow>>,
}

impl NodeRows {
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Self {
        let names: Vec<String> = names.into_iter().collect();
        Self {
            rows: names.iter().map(|_| None).collect(),
            names,
        }
    }

    /// Updates a node's row; returns it if the answer has changed.
    pub(super) fn update(&mut self, number: usize, answer: HealthAnswer, now: Timestamp) -> Option<&NodeRow> {
        let node = self.names.get(number)?.clone();
        let row = self.rows.get_mut(number)?;
        if row.as_ref().is_some_and(|row| row.answer == answer) {
            return None;
        }
        Some(row.insert(NodeRow {
            since: now,
            node,
            answer,
        }))
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &NodeRow> {
        self.rows.iter().flatten()
    }
}

/// The fields of the body that are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    signals: Vec<String>,
    source: Option<String>,
}

/// A client for any number of agents.
pub(super) fn client() -> PlainClient {
    PlainClient::plain(REQUEST_TIMEOUT, MAX_BODY_BYTES)
}

/// Polls an agent until the receiver is dropped; `number` is the node's.
pub(super) async fn follow(
    client: &PlainClient,
    number: usize,
    address: SocketAddr,
    answers: mpsc::Sender<(usize, HealthAnswer)>,
) {
    loop {
        let answer = request(client, address).await.unwrap_or_default();
        if answers.send((number, answer)).await.is_err() {
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn request(client: &PlainClient, address: SocketAddr) -> Option<HealthAnswer> {
    let uri: Uri = format!("http://{address}/healthz").parse().ok()?;
    let (status, body) = client.get(uri, &[]).await.ok()?;
    // A body of another form still has a status.
    let Body { signals, source } = serde_json::from_slice(&body).unwrap_or_default();
    Some(HealthAnswer {
        healthz: Some(status.as_u16()),
        signals,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(healthz: u16, signals: &[&str]) -> HealthAnswer {
        let signals = signals.iter().map(ToString::to_string).collect();
        HealthAnswer {
            healthz: Some(healthz),
            signals,
            source: Some("watch".to_owned()),
        }
    }

    #[test]
    fn only_changes_return_a_row() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut nodes = NodeRows::new(["node-1".to_owned(), "node-2".to_owned()]);
        assert!(nodes.update(1, answer(200, &[]), at(1)).is_some());
        assert!(nodes.update(1, answer(200, &[]), at(2)).is_none());
        let line = serde_json::to_string(nodes.update(1, answer(503, &["drain"]), at(3)).unwrap()).unwrap();
        assert_eq!(
            line,
            r#"{"time":"1970-01-01T00:00:03Z","node":"node-2","healthz":503,"signals":["drain"],"source":"watch"}"#
        );
        let line = serde_json::to_string(nodes.update(0, HealthAnswer::default(), at(4)).unwrap()).unwrap();
        assert_eq!(
            line,
            r#"{"time":"1970-01-01T00:00:04Z","node":"node-1","healthz":null,"signals":[],"source":null}"#
        );
        let since: Vec<_> = nodes.rows().map(|row| row.since).collect();
        assert_eq!(since, [at(4), at(3)]);
    }
}
