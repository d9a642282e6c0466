//! The watch of all Nodes, from which follows what is desired.
//!
//! It runs for the term. While the API server cannot be reached or refuses, what was known goes on. Nothing is
//! published before every Node has been listed once; what is ready to be read at once is published at once, so that
//! a thousand taints are one change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::desired::Desired;
use crate::clock::Clock;
use crate::node::{EXPIRED, Pauses, watch_error_reason};
use crate::pool::ClusterNodeObject;
use crate::telemetry;

/// Objects in one answer to a list: what is held in memory beside what is kept.
const PAGE: u32 = 500;
/// What is told about the end of an episode is told by then.
const REMEMBERED: Duration = Duration::from_mins(10);
/// Events taken together at most, so that a flood does not keep what is known from being acted on.
const AT_ONCE: usize = 10_000;

/// How Nodes are read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) taint_keys: Vec<String>,
    pub(super) exclude_control_plane: bool,
    pub(super) clock: Clock,
}

/// Watches Nodes and publishes what they wish; `None` until all are known. Never ends of itself.
pub(super) async fn run(client: Client, reading: Reading, desired: watch::Sender<Option<Arc<Desired>>>) {
    let config = watcher::Config::default().page_size(PAGE);
    let mut events = watcher(Api::<ClusterNodeObject>::all(client), config).boxed();
    let mut following = Following {
        now: Desired::default(),
        listed: None,
        synced: false,
        reading,
    };
    let mut pauses = Pauses::default();
    loop {
        let next_change = following.now.next_change(Instant::now());
        let mut event = tokio::select! {
            event = events.next() => event,
            () = sleep_until(next_change.unwrap_or_else(Instant::now)), if next_change.is_some() => {
                following.now.touch();
                following.now.forget(REMEMBERED, Instant::now());
                following.publish(&desired);
                continue;
            }
        };
        let mut changed = false;
        for _ in 0..AT_ONCE {
            match event {
                None => return,
                Some(Ok(happened)) => {
                    if !matches!(happened, Event::Init) {
                        pauses.answered();
                    }
                    changed |= following.heed(happened);
                }
                Some(Err(error)) => {
                    if changed {
                        following.publish(&desired);
                        changed = false;
                    }
                    let reason = watch_error_reason(&error);
                    if reason != EXPIRED {
                        let error = telemetry::chain(&error);
                        tracing::warn!(reason, error, "Nodes cannot be watched; what is known of them goes on");
                    }
                    sleep(pauses.after(reason)).await;
                }
            }
            match events.next().now_or_never() {
                Some(ready) => event = ready,
                None => break,
            }
        }
        if changed {
            following.publish(&desired);
        }
    }
}

struct Following {
    now: Desired,
    /// The names in the list under way.
    listed: Option<BTreeSet<String>>,
    /// Whether all Nodes were listed once.
    synced: bool,
    reading: Reading,
}

impl Following {
    /// Takes in an event; whether it is news.
    fn heed(&mut self, event: Event<ClusterNodeObject>) -> bool {
        match event {
            Event::Init => {
                self.listed = Some(BTreeSet::new());
                false
            }
            Event::InitApply(object) => {
                if let (Some(listed), Some(name)) = (&mut self.listed, &object.metadata.name) {
                    listed.insert(name.clone());
                }
                self.apply(object)
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                let known = self.now.cluster.nodes().map(|node| node.name.clone());
                let gone: Vec<_> = known.filter(|name| !listed.contains(name)).collect();
                for name in &gone {
                    self.now.remove(name);
                }
                let first = !self.synced;
                self.synced = true;
                first || !gone.is_empty()
            }
            Event::Apply(object) => self.apply(object),
            Event::Delete(object) => object.metadata.name.is_some_and(|name| self.now.remove(&name)),
        }
    }

    fn apply(&mut self, object: ClusterNodeObject) -> bool {
        let now = self.reading.clock.now();
        object
            .node(self.reading.exclude_control_plane)
            .is_some_and(|node| self.now.apply(node, &self.reading.taint_keys, now))
    }

    fn publish(&self, desired: &watch::Sender<Option<Arc<Desired>>>) {
        if self.synced {
            desired.send_replace(Some(Arc::new(self.now.clone())));
        }
    }
}
