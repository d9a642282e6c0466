//! Signals one after the other, and the time from each PATCH until the leader has read the Node's entries as `Down`.
//!
//! The leader counts such Nodes in a metric without their names, so the next count is taken for that of the first signal that has none. A single
//! time may be another signal's, and where a signal is never counted, the times of all later ones are too long: they are exact together where
//! every signal is counted, and otherwise upper bounds.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::azure_emulator::node_name;
use crate::documents::SIGNAL;
use crate::fleet::Fleet;
use crate::measuring::figures::{float, percentile, rounded};

/// Between two reads of the metrics while a signal is open, which costs the leader an answer each: a small part of the times, which are
/// seconds.
const LOOK: Duration = Duration::from_millis(100);
/// From so many times a 99th percentile is stated.
const LEAST_FOR_P99: usize = 300;

/// Times from signals to `Down`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Latencies {
    pub(crate) signals: usize,
    /// Signals whose Nodes were seen `Down`.
    pub(crate) downs: usize,
    pub(crate) mean_seconds: f64,
    pub(crate) p50_seconds: f64,
    /// Of 300 signals or more.
    pub(crate) p99_seconds: Option<f64>,
    pub(crate) max_seconds: f64,
    /// The seconds since the beginning of the run, and how long each took.
    pub(crate) times: Vec<(f64, f64)>,
}

impl Latencies {
    /// A time in words: an upper bound where a signal was not seen.
    pub(crate) fn words(&self, seconds: f64) -> String {
        let bound = if self.downs == self.signals { "" } else { "at most " };
        format!("{bound}{seconds:.2} s")
    }
}

/// The signals without a time, and the times of the others.
#[derive(Default)]
pub(crate) struct Signals {
    open: RefCell<VecDeque<Instant>>,
    times: RefCell<Vec<(Instant, Duration)>>,
}

impl Signals {
    /// Gives a Node a signal.
    pub(crate) async fn send(&self, client: &Client, node: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        set(client, node, true).await?;
        self.open.borrow_mut().push_back(begun);
        Ok(())
    }

    /// Notes each `Down` until `done` and no signal is open, or `patience` has passed after that.
    pub(crate) async fn follow(
        &self,
        fleet: &Fleet,
        before: usize,
        patience: Duration,
        done: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let mut seen = before;
        let mut done_since = None;
        loop {
            if done() {
                let since = done_since.get_or_insert_with(Instant::now);
                if self.open.borrow().is_empty() || since.elapsed() > patience {
                    return Ok(());
                }
            }
            if !self.open.borrow().is_empty() {
                let downs = fleet.downs().await?;
                while seen < downs {
                    seen += 1;
                    let sent = self.open.borrow_mut().pop_front();
                    if let Some(sent) = sent {
                        self.times.borrow_mut().push((sent, sent.elapsed()));
                    }
                }
            }
            sleep(LOOK).await;
        }
    }

    /// The times so far, in a run that began then.
    pub(crate) fn latencies(&self, begun: Instant) -> Latencies {
        let times = self.times.borrow();
        let took: Vec<Duration> = times.iter().map(|(_, took)| *took).collect();
        let seconds = |per_mille| rounded(percentile(&took, per_mille).as_secs_f64());
        let signals = took.len() + self.open.borrow().len();
        let mut with_unseen = took.clone();
        with_unseen.resize(signals, Duration::MAX);
        let p99 = Some(percentile(&with_unseen, 990)).filter(|took| signals >= LEAST_FOR_P99 && *took < Duration::MAX);
        let sum: f64 = took.iter().map(Duration::as_secs_f64).sum();
        Latencies {
            signals,
            downs: took.len(),
            mean_seconds: rounded(sum / float(took.len().max(1) as u64)),
            p50_seconds: seconds(500),
            p99_seconds: p99.map(|p99| rounded(p99.as_secs_f64())),
            max_seconds: seconds(1000),
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
