//! The watch of all Nodes, from which follows what is desired.
//!
//! It runs for the term. While the API server cannot be reached or refuses, what was known goes on. Nothing is
//! published before every Node has been listed once; what is ready to be read at once is published at once, so that
//! a thousand taints are one change. What is published is changed in place unless somebody holds it: nobody may for long,
//! since then each change of a Node costs a copy of all of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _};
use headgate_clock::Clock;
use headgate_kubernetes::{WatchErrorCounter, WatchReporter, watch_events};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::desired::Desired;
use crate::pool::ClusterNodeObject;

/// Objects in one answer to a list: what is held in memory beside what is kept.
const PAGE: u32 = 500;
/// Events taken together at most, so that a flood does not keep what is known from being acted on.
const AT_ONCE: usize = 10_000;

/// How Nodes are read.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) taint_keys: Vec<String>,
    pub(super) exclude_control_plane: bool,
    /// Counts the errors of the watch.
    pub(super) watch_errors: WatchErrorCounter,
    pub(super) clock: Clock,
}

/// Watches Nodes and publishes what they wish; `None` until all are known. Never ends of itself.
pub(super) async fn run(client: Client, reading: Reading, desired: watch::Sender<Option<Arc<Desired>>>) {
    let config = watcher::Config::default().page_size(PAGE);
    let reporter = WatchReporter::new("nodes", reading.watch_errors.clone(), reading.clock.clone());
    let mut events = watch_events(&client, Api::<ClusterNodeObject>::all, config, reporter);
    let mut following = Following {
        known: Known {
            desired,
            listed: Desired::default(),
        },
        listed: None,
        reading,
    };
    // What time alone brings about is known up to here.
    let mut looked = Instant::now();
    loop {
        let next_change = following.known.next_change(looked);
        let mut event = tokio::select! {
            event = events.next() => event,
            () = sleep_until(next_change.unwrap_or_else(Instant::now)), if next_change.is_some() => {
                looked = Instant::now();
                following.known.change(|now| {
                    now.touch();
                    now.forget(looked);
                });
                following.known.publish();
                continue;
            }
        };
        let mut changed = false;
        for _ in 0..AT_ONCE {
            match event {
                None => return,
                Some(Ok(happened)) => changed |= following.heed(happened),
                // The watch has reported it, and continues.
                Some(Err(_)) => {}
            }
            match events.next().now_or_never() {
                Some(ready) => event = ready,
                None => break,
            }
        }
        if changed {
            following.known.publish();
        }
    }
}

/// What all Nodes wish, as far as is known.
struct Known {
    /// Once all were listed.
    desired: watch::Sender<Option<Arc<Desired>>>,
    /// Before that.
    listed: Desired,
}

impl Known {
    /// Changes it, without a word.
    fn change<T: Default>(&mut self, change: impl FnOnce(&mut Desired) -> T) -> T {
        let (listed, mut outcome) = (&mut self.listed, T::default());
        self.desired.send_if_modified(|desired| {
            outcome = change(desired.as_mut().map_or(listed, Arc::make_mut));
            false
        });
        outcome
    }

    /// All Nodes were listed; whether that was the first time.
    fn complete(&mut self) -> bool {
        let (listed, mut first) = (&mut self.listed, false);
        self.desired.send_if_modified(|desired| {
            first = desired.is_none();
            desired.get_or_insert_with(|| Arc::new(std::mem::take(listed)));
            false
        });
        first
    }

    /// Says that it has changed.
    fn publish(&self) {
        self.desired.send_if_modified(|desired| desired.is_some());
    }

    /// When, after this time, something comes about by time alone.
    fn next_change(&self, after: Instant) -> Option<Instant> {
        self.desired.borrow().as_ref()?.next_change(after)
    }
}

struct Following {
    known: Known,
    /// The names in the list under way.
    listed: Option<BTreeSet<String>>,
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
                let gone = self.known.change(|now| {
                    let known = now.cluster.nodes().map(|node| node.name.clone());
                    let gone: Vec<_> = known.filter(|name| !listed.contains(name)).collect();
                    for name in &gone {
                        now.remove(name);
                    }
                    !gone.is_empty()
                });
                self.known.complete() || gone
            }
            Event::Apply(object) => self.apply(object),
            Event::Delete(object) => object
                .metadata
                .name
                .is_some_and(|name| self.known.change(|now| now.remove(&name))),
        }
    }

    fn apply(&mut self, object: ClusterNodeObject) -> bool {
        let Some(node) = object.node(self.reading.exclude_control_plane) else {
            return false;
        };
        let reading = &self.reading;
        self.known
            .change(|now| now.apply(node, &reading.taint_keys, reading.clock.now()))
    }
}
