//! Signals one after the other, and the time from each PATCH until the leader has read the Node's entries as `Down`: that of its event.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::azure_emulator::node_name;
use crate::documents::SIGNAL;
use crate::measuring::figures::{float, percentile, rounded};
use crate::measuring::output::say;

/// The leader's event about a Node of which it has read every entry as `Down`.
const DOWN: &str = "LoadBalancerAdminStateDown";
/// Between two looks at whether signals are still to come.
const LOOK: Duration = Duration::from_millis(100);
/// From so many signals on, seen or not, a 99th percentile is stated.
const LEAST_FOR_P99: usize = 300;

/// Times from signals to `Down`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Latencies {
    pub(crate) signals: usize,
    /// Signals whose Nodes were seen `Down`.
    pub(crate) downs: usize,
    /// Of those that were seen.
    pub(crate) mean_seconds: f64,
    /// Of all signals: one that was not seen took longer than all others.
    pub(crate) p50_seconds: Option<f64>,
    /// The same, of 300 signals or more.
    pub(crate) p99_seconds: Option<f64>,
    /// Of those that were seen.
    pub(crate) max_seconds: f64,
    /// The seconds since the beginning of the run, and how long each took.
    pub(crate) times: Vec<(f64, f64)>,
}

/// How many signals were sent, those without a time, by Node, and the times of the others.
#[derive(Default)]
pub(crate) struct Signals {
    sent: Cell<usize>,
    open: RefCell<HashMap<String, Sent>>,
    times: RefCell<Vec<(Instant, Duration)>>,
}

/// When a signal was sent, by both clocks: events have wall time.
struct Sent {
    at: Instant,
    wall: Timestamp,
}

impl Signals {
    /// Gives a Node a signal.
    pub(crate) async fn send(&self, client: &Client, node: usize) -> anyhow::Result<()> {
        let sent = Sent {
            at: Instant::now(),
            wall: Timestamp::now(),
        };
        self.sent.set(self.sent.get() + 1);
        self.open.borrow_mut().insert(node_name(node), sent);
        Ok(set(client, node, true).await?)
    }

    /// Notes each `Down` until `done` and no signal is open, or `patience` has passed after that.
    pub(crate) async fn follow(
        &self,
        client: &Client,
        patience: Duration,
        done: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let events = Api::<Event>::namespaced(client.clone(), "default");
        let config = watcher::Config::default().fields(&format!("reason={DOWN}"));
        let mut events = watcher(events, config).default_backoff().applied_objects().boxed();
        let mut done_since = None;
        loop {
            if done() {
                let since = done_since.get_or_insert_with(Instant::now);
                if self.open.borrow().is_empty() || since.elapsed() > patience {
                    return Ok(());
                }
            }
            tokio::select! {
                event = events.next() => match event.context("the watch of events has ended")? {
                    Ok(event) => self.note(&event),
                    // It goes on after a pause.
                    Err(error) => say(&format!("watching events: {error}")),
                },
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Notes a `Down`. An event that repeats one counts it up, with the time of the last one.
    fn note(&self, event: &Event) {
        let at = event.series.as_ref().map(|series| series.last_observed_time.0);
        let at = at.or_else(|| event.event_time.as_ref().map(|time| time.0));
        let node = event.regarding.as_ref().and_then(|node| node.name.as_ref());
        let (Some(at), Some(node)) = (at, node) else { return };
        let mut open = self.open.borrow_mut();
        // One of an earlier signal is among those that are there already.
        if open.get(node).is_some_and(|sent| sent.wall <= at)
            && let Some(sent) = open.remove(node)
        {
            let took = at.duration_since(sent.wall).unsigned_abs();
            self.times.borrow_mut().push((sent.at, took));
        }
    }

    /// The times so far, in a run that began then.
    pub(crate) fn latencies(&self, begun: Instant) -> Latencies {
        let times = self.times.borrow();
        let mut took: Vec<Duration> = times.iter().map(|(_, took)| *took).collect();
        let seconds = |time: Duration| rounded(time.as_secs_f64());
        let (sum, longest): (Duration, _) = (took.iter().sum(), took.iter().max());
        let (longest, downs) = (longest.copied().unwrap_or_default(), took.len());
        // One that was not seen took longer than all others.
        let signals = self.sent.get();
        took.resize(signals, Duration::MAX);
        let shared = |per_mille| {
            Some(percentile(&took, per_mille))
                .filter(|time| *time < Duration::MAX)
                .map(seconds)
        };
        Latencies {
            signals,
            downs,
            mean_seconds: rounded(sum.as_secs_f64() / float(downs.max(1) as u64)),
            p50_seconds: shared(500),
            p99_seconds: shared(990).filter(|_| signals >= LEAST_FOR_P99),
            max_seconds: seconds(longest),
            times: times
                .iter()
                .map(|(sent, took)| (rounded((*sent - begun).as_secs_f64()), rounded(took.as_secs_f64())))
                .collect(),
        }
    }
}

/// Adds the signal to a Node, or removes it.
pub(crate) async fn set(client: &Client, node: usize, on: bool) -> kube::Result<()> {
    let taints = on.then(|| json!([{"key": SIGNAL, "effect": "NoExecute"}]));
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    let nodes = Api::<Node>::all(client.clone());
    nodes
        .patch(&node_name(node), &PatchParams::default(), &patch)
        .await
        .map(drop)
}
