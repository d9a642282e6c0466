//! What is asked of the emulated Azure, and by whom, as its journal says.
//!
//! Each agent gives its node's name as a part of its user agent, since all are one principal.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use headgate_http::fetch::Fetch;
use hyper::Uri;
use jiff::{Timestamp, Unit};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// From one look to the next.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// A page of the journal is 4 MiB, and a last entry.
const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;
/// Callers that are told apart.
const MOST: usize = 100;

/// Who an agent says it is.
pub(super) fn user_agent(node: &str) -> String {
    format!("headgate/{} ({node})", headgate_telemetry::VERSION)
}

/// One caller's calls so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Row {
    /// When the last one arrived.
    #[serde(rename = "time")]
    pub(super) last: Timestamp,
    /// The node in the user agent, else the user agent.
    pub(super) caller: String,
    /// Requests that change nothing.
    pub(super) reads: u64,
    /// The others.
    pub(super) writes: u64,
}

/// All callers.
#[derive(Debug, Default)]
pub(super) struct Calls(BTreeMap<String, Row>);

impl Calls {
    /// Takes in a page of the journal; the rows that are new.
    pub(super) fn see(&mut self, page: &Value) -> Vec<Row> {
        let mut news = BTreeMap::new();
        for entry in page["entries"].as_array().into_iter().flatten() {
            let Some((caller, is_write, at)) = call(entry) else {
                continue;
            };
            if self.0.len() >= MOST && !self.0.contains_key(&caller) {
                continue;
            }
            let row = self.0.entry(caller.clone()).or_insert_with(|| Row {
                last: at,
                caller: caller.clone(),
                reads: 0,
                writes: 0,
            });
            row.last = at;
            *(if is_write { &mut row.writes } else { &mut row.reads }) += 1;
            news.insert(caller, row.clone());
        }
        news.into_values().collect()
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.0.values()
    }
}

/// Who asked ARM's network provider, whether to change something, and when.
fn call(entry: &Value) -> Option<(String, bool, Timestamp)> {
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
    let is_write = !matches!(text("method")?, "GET" | "HEAD" | "OPTIONS");
    let arrived: Timestamp = text("arrived")?.parse().ok()?;
    let arrived = arrived.round(Unit::Millisecond).unwrap_or(arrived);
    Some((node.unwrap_or(user_agent).to_owned(), is_write, arrived))
}

/// Reads the journal on and on, until nobody wants to see any more.
pub(super) async fn follow(control: SocketAddr, seen: mpsc::Sender<Value>) {
    let fetch = Fetch::new(PATIENCE, MAX_BODY_BYTES);
    let mut after = 0;
    loop {
        // What was seen stays where there is no answer.
        if let Some(page) = look(&fetch, control, after).await {
            let next = page["next"].as_u64().unwrap_or(after);
            // A reset of the emulator begins it anew.
            let more = next > after;
            after = next;
            if more && seen.send(page).await.is_err() {
                return;
            }
            if more {
                continue;
            }
        }
        sleep(INTERVAL).await;
    }
}

async fn look(fetch: &Fetch, control: SocketAddr, after: u64) -> Option<Value> {
    let uri: Uri = format!("http://{control}/emulator/v1/journal?after={after}&limit=1000")
        .parse()
        .ok()?;
    let (_, body) = fetch.get(uri, &[]).await.ok()?;
    serde_json::from_slice(&body).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_counted_by_caller() {
        let path = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers";
        let request = |method: &str, path: &str, agent: &str, second: u8| json!({"kind": "request", "method": method, "path": path, "userAgent": agent, "arrived": format!("1970-01-01T00:00:0{second}Z")});
        let one = user_agent("node-1");
        let mut calls = Calls::default();
        let news = calls.see(&json!({"next": 5, "entries": [
            request("GET", path, &one, 1), request("PUT", path, &one, 2), request("GET", path, "curl/8", 3),
            request("POST", "/tenant/oauth2/v2.0/token", &one, 4), {"kind": "operation", "path": path}]}));
        let shown: Vec<_> = news
            .iter()
            .map(|row| (row.caller.as_str(), row.reads, row.writes))
            .collect();
        assert_eq!(shown, [("curl/8", 1, 0), ("node-1", 1, 1)]);
        let news = calls.see(&json!({"entries": [request("GET", path, &one, 5)]}));
        let line = serde_json::to_string(&news).unwrap();
        assert_eq!(
            line,
            r#"[{"time":"1970-01-01T00:00:05Z","caller":"node-1","reads":2,"writes":1}]"#
        );
        assert!(calls.see(&json!({})).is_empty());
        assert_eq!(calls.rows().count(), 2);
    }
}
