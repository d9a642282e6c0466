//! The callers of the emulated ARM, counted from the emulator's journal.
//!
//! All agents have the same credentials, so each one has the name of its node in its user agent.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use headgate_http::client::PlainClient;
use jiff::{Timestamp, Unit};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::azure::read_control;

/// Time between two reads of the journal.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of one read.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Size of a page of the journal: 4 MiB and one more entry.
const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;
/// Callers that are counted.
const MAX_CALLERS: usize = 100;

/// The user agent of a node's agent.
pub(super) fn user_agent(node: &str) -> String {
    format!("headgate/{} ({node})", headgate_core::telemetry::VERSION)
}

/// The requests of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CallerRow {
    /// When the last request arrived.
    #[serde(rename = "time")]
    pub(super) last: Timestamp,
    /// The node in the user agent or, without one, the whole user agent.
    pub(super) caller: String,
    /// Requests that change nothing (GET, HEAD, OPTIONS).
    pub(super) reads: u64,
    /// Requests with all other methods.
    pub(super) writes: u64,
}

/// The rows of all callers, by their names.
#[derive(Debug, Default)]
pub(super) struct CallerRows(BTreeMap<String, CallerRow>);

impl CallerRows {
    /// Adds a page of the journal; returns the rows that have changed.
    pub(super) fn update(&mut self, page: &Value) -> Vec<CallerRow> {
        let mut changed = BTreeMap::new();
        for entry in page["entries"].as_array().into_iter().flatten() {
            let Some(ArmCall {
                caller,
                is_write,
                arrived,
            }) = ArmCall::parse(entry)
            else {
                continue;
            };
            if self.0.len() >= MAX_CALLERS && !self.0.contains_key(&caller) {
                continue;
            }
            let row = self.0.entry(caller.clone()).or_insert_with(|| CallerRow {
                last: arrived,
                caller: caller.clone(),
                reads: 0,
                writes: 0,
            });
            row.last = arrived;
            *(if is_write { &mut row.writes } else { &mut row.reads }) += 1;
            changed.insert(caller, row.clone());
        }
        changed.into_values().collect()
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &CallerRow> {
        self.0.values()
    }
}

/// A request to ARM's network provider.
struct ArmCall {
    caller: String,
    is_write: bool,
    arrived: Timestamp,
}

impl ArmCall {
    /// Parses an entry of the journal; `None` for any other entry.
    fn parse(entry: &Value) -> Option<Self> {
        let text = |name: &str| entry[name].as_str();
        if text("kind") != Some("request")
            || !text("path")?
                .to_ascii_lowercase()
                .contains("/providers/microsoft.network/")
        {
            return None;
        }
        let user_agent = text("userAgent").unwrap_or("unknown");
        let node = user_agent.split_once(" (").and_then(|(_, rest)| rest.strip_suffix(')'));
        let arrived: Timestamp = text("arrived")?.parse().ok()?;
        Some(Self {
            caller: node.unwrap_or(user_agent).to_owned(),
            is_write: !matches!(text("method")?, "GET" | "HEAD" | "OPTIONS"),
            arrived: arrived.round(Unit::Millisecond).unwrap_or(arrived),
        })
    }
}

/// Polls the journal until the receiver is dropped.
pub(super) async fn follow(control: SocketAddr, pages: mpsc::Sender<Value>) {
    let client = PlainClient::plain(REQUEST_TIMEOUT, MAX_BODY_BYTES);
    let mut after = 0;
    loop {
        // Without an answer, the next read begins at the same entry.
        let path = format!("journal?after={after}&limit=1000");
        if let Some(page) = read_control(&client, control, &path).await {
            let next = page["next"].as_u64().unwrap_or(after);
            // After a reset of the emulator the numbers begin again.
            let more = next > after;
            after = next;
            if more && pages.send(page).await.is_err() {
                return;
            }
            if more {
                continue;
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_are_counted_by_caller() {
        let path = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers";
        let request = |method: &str, path: &str, agent: &str, second: u8| json!({"kind": "request", "method": method, "path": path, "userAgent": agent, "arrived": format!("1970-01-01T00:00:0{second}Z")});
        let one = user_agent("node-1");
        let mut callers = CallerRows::default();
        let changed = callers.update(&json!({"next": 5, "entries": [
            request("GET", path, &one, 1), request("PUT", path, &one, 2), request("GET", path, "curl/8", 3),
            request("POST", "/tenant/oauth2/v2.0/token", &one, 4), {"kind": "operation", "path": path}]}));
        let shown: Vec<_> = changed
            .iter()
            .map(|row| (row.caller.as_str(), row.reads, row.writes))
            .collect();
        assert_eq!(shown, [("curl/8", 1, 0), ("node-1", 1, 1)]);
        let changed = callers.update(&json!({"entries": [request("GET", path, &one, 5)]}));
        let line = serde_json::to_string(&changed).unwrap();
        assert_eq!(
            line,
            r#"[{"time":"1970-01-01T00:00:05Z","caller":"node-1","reads":2,"writes":1}]"#
        );
        assert!(callers.update(&json!({})).is_empty());
        assert_eq!(callers.rows().count(), 2);
    }
}
