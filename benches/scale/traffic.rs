//! What the API server sent and answered, from its metrics, and what processes received from it, from the kernel's counters of TCP.

use std::collections::{BTreeMap, HashMap};
use std::process::Command;

use anyhow::{Context as _, ensure};
use hyper::Request;
use kube::Client;

/// Counters of kube-apiserver, which begin anew when it is restarted.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiTotals {
    /// By verb and resource.
    requests: BTreeMap<(String, String), f64>,
    /// Bodies of lists.
    list_bytes: f64,
    /// Events of all watches.
    watch_bytes: f64,
}

impl ApiTotals {
    pub(crate) async fn read(client: &Client) -> anyhow::Result<Self> {
        let request = Request::get("/metrics").body(Vec::new())?;
        let text = client.request_text(request).await.context("the API server's metrics")?;
        let mut totals = Self::default();
        for line in text.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Some((name, labels)) = series.split_once('{') else {
                continue;
            };
            let value: f64 = value.parse().unwrap_or_default();
            let label = |name: &str| label(labels, name).unwrap_or_default();
            match name {
                "apiserver_request_total" => {
                    let (resource, subresource) = (label("resource"), label("subresource"));
                    let resource = if subresource.is_empty() {
                        resource.to_owned()
                    } else {
                        format!("{resource}/{subresource}")
                    };
                    *totals.requests.entry((label("verb").to_owned(), resource)).or_default() += value;
                }
                "apiserver_response_sizes_sum" if label("verb") == "LIST" => totals.list_bytes += value,
                "apiserver_watch_events_sizes_sum" => totals.watch_bytes += value,
                _ => {}
            }
        }
        Ok(totals)
    }

    /// The counts since `before`: all of them if the server was restarted in between.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let since = |now: f64, before: f64| if now < before { now } else { now - before };
        let requests = self.requests.iter().map(|(key, now)| {
            let before = before.requests.get(key).copied().unwrap_or_default();
            (key.clone(), since(*now, before))
        });
        Self {
            requests: requests.filter(|(_, count)| *count > 0.0).collect(),
            list_bytes: since(self.list_bytes, before.list_bytes),
            watch_bytes: since(self.watch_bytes, before.watch_bytes),
        }
    }

    pub(crate) fn requests(&self) -> impl Iterator<Item = (&str, &str, f64)> {
        let requests = self.requests.iter();
        requests.map(|((verb, resource), count)| (verb.as_str(), resource.as_str(), *count))
    }

    pub(crate) fn list_bytes(&self) -> f64 {
        self.list_bytes
    }

    pub(crate) fn watch_bytes(&self) -> f64 {
        self.watch_bytes
    }
}

/// The value of a label.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = labels;
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, next) = after.split_once('"')?;
        if key.trim_start_matches(',') == name {
            return Some(value);
        }
        rest = next;
    }
    None
}

/// Bytes that each open connection to a port has received, by its process and own address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Received(HashMap<(u32, String), u64>);

impl Received {
    /// Of all processes of this user.
    pub(crate) fn read(port: u16) -> anyhow::Result<Self> {
        let mut command = Command::new("ss");
        command.args([
            "--tcp",
            "--numeric",
            "--processes",
            "--info",
            "--no-header",
            "--oneline",
        ]);
        command.args(["state", "established", "dst", &format!("127.0.0.1:{port}")]);
        let output = command.output().context("ss of iproute2 cannot be run")?;
        ensure!(
            output.status.success(),
            "ss: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Self(text.lines().filter_map(connection).collect()))
    }

    /// What a process received since `before`. What connections that are closed now had received is lost.
    pub(crate) fn since(&self, before: &Self, process: u32) -> u64 {
        let own = self.0.iter().filter(|((id, _), _)| *id == process);
        own.map(|(key, now)| now.saturating_sub(before.0.get(key).copied().unwrap_or_default()))
            .sum()
    }
}

/// The process, own address and count of one line.
fn connection(line: &str) -> Option<((u32, String), u64)> {
    let number = |after: &str| -> Option<u64> {
        let (_, rest) = line.split_once(after)?;
        let end = rest.find(|character: char| !character.is_ascii_digit());
        rest[..end.unwrap_or(rest.len())].parse().ok()
    };
    // Without the state, which the filter has fixed: two queues, then the own address.
    let address = line.split_whitespace().nth(2)?.to_owned();
    let process = u32::try_from(number("pid=")?).ok()?;
    Some(((process, address), number("bytes_received:").unwrap_or_default()))
}
