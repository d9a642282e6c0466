//! Eviction notices in Node events: the leader turns a genuine `PreemptScheduled` event into the draining taint.
//!
//! It is for clusters whose agents do not poll the metadata service (`evictionNotices`). Invariants: a notice taints a Node once,
//! because the Node's annotation records it by the same write; a notice that has ended taints none; only a Node that says that its VM is
//! a spot VM gets the taint, and at most five in a minute; only a process of the controllers writes, which `other_nodes` checks. What a
//! message means and what changes in a Node is left to `headgate_agent::spot`.

mod latest;
mod metrics;
mod objects;
mod taint_limit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use headgate_agent::spot::{TaintChange, edit_for_event, has_ended};
use headgate_core::changed;
use headgate_core::clock::Clock;
use headgate_core::node::DRAINING_TAINT;
use headgate_kubernetes::{
    Edited, EventKind, EventSink, FieldIntents, NodeEdit, NodeIntent, Shown, WatchReporter, node_reference,
    watch_events,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::admin_state::TargetStates;
use crate::other_nodes::OtherNodes;

pub use latest::{LatestMessage, LatestMessages, ObservedEvent};
pub use metrics::Metrics;
pub use metrics::Outcome;
use objects::NodeEventObject;
use taint_limit::{TaintLimit, is_spot};

/// The namespace of events about objects without one.
const NAMESPACE: &str = "default";
/// The reason of the events; the API server sends no others.
const REASON: &str = "PreemptScheduled";
const TAINT_ADDED: EventKind = EventKind::normal("SpotEvictionTaintAdded", "TaintNode");
const TAINT_REMOVED: EventKind = EventKind::normal("SpotEvictionTaintRemoved", "UntaintNode");
const PAGE_SIZE: u32 = 500;
/// Between reads of a Node with headgate's taint, which show a reboot or the end of the notice.
const RECHECK_INTERVAL: Duration = Duration::from_secs(15);

/// What the task needs.
#[derive(Clone)]
pub struct PreemptEvents {
    /// A client of the API server that does not retry by itself.
    pub client: Client,
    /// Records events on Nodes.
    pub events: EventSink,
    /// The metrics of this task.
    pub metrics: Metrics,
    /// Wall and monotonic time.
    pub clock: Clock,
    /// Checked at the start of each term.
    pub other_nodes: OtherNodes,
}

impl PreemptEvents {
    /// Watches the events and keeps published which Nodes to look at, or does nothing if this process may not write other Nodes; never
    /// ends by itself. `targets` has the Nodes, as the watch shows them that the admin states use.
    pub async fn run(self, intents: FieldIntents, mut targets: watch::Receiver<Option<Arc<TargetStates>>>) {
        if self.other_nodes.check("evictionNotices").is_err() {
            return std::future::pending().await;
        }
        let reporter = WatchReporter::new("events", self.metrics.watch_errors(), self.clock.clone());
        let selector = watcher::Config::default()
            .fields(&format!("reason={REASON},involvedObject.kind=Node"))
            .page_size(PAGE_SIZE);
        let api = |client| Api::namespaced(client, NAMESPACE);
        let mut stream = watch_events::<NodeEventObject>(&self.client, api, selector, reporter);
        let memory = Arc::<Mutex<Memory>>::default();
        let mut tainted = tainted_nodes(targets.borrow_and_update().as_deref());
        // Until then, a message that is missing proves nothing.
        let mut is_listed = false;
        loop {
            let rechecked = if is_listed { &tainted } else { &BTreeSet::new() };
            intents.publish(looks(&self, &memory, rechecked));
            // Most events only repeat what is known.
            let mut is_changed = false;
            while !is_changed {
                tokio::select! {
                    event = stream.next() => match event {
                        Some(Ok(Event::Apply(object) | Event::InitApply(object))) => {
                            let (observed, now) = (object.observed(), self.clock.now().wall);
                            let latest = &mut locked(&memory).latest;
                            is_changed = observed.is_some_and(|event| latest.apply(event, now, &self.metrics).is_some());
                            if is_changed {
                                observe_nodes(latest, targets.borrow().as_deref());
                            }
                        }
                        Some(Ok(Event::InitDone)) => is_changed = !std::mem::replace(&mut is_listed, true),
                        // An event that expires says nothing about the notice.
                        Some(_) => {}
                        None => return std::future::pending().await,
                    },
                    () = changed(&mut targets) => {
                        let targets = targets.borrow_and_update();
                        let before = std::mem::replace(&mut tainted, tainted_nodes(targets.as_deref()));
                        let is_any_new = observe_nodes(&mut locked(&memory).latest, targets.as_deref());
                        is_changed = is_any_new || tainted != before;
                    }
                }
            }
        }
    }
}

/// The names of the Nodes with the draining taint.
fn tainted_nodes(targets: Option<&TargetStates>) -> BTreeSet<String> {
    let nodes = targets.into_iter().flat_map(|targets| targets.nodes.iter());
    let tainted = nodes.filter(|node| node.taints.iter().any(|taint| taint.key == DRAINING_TAINT));
    tainted.map(|node| node.name.clone()).collect()
}

/// Returns whether a Node with a message was created again.
fn observe_nodes(latest: &mut LatestMessages, targets: Option<&TargetStates>) -> bool {
    let node = |name: &str| targets.and_then(|targets| targets.nodes.by_name(name));
    latest.observe_nodes(|name| node(name).map(|node| node.uid.as_str()))
}

/// What is known of all Nodes.
#[derive(Debug, Default)]
struct Memory {
    latest: LatestMessages,
    limit: TaintLimit,
}

fn locked(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A look at each Node with a message, and one from time to time at each with the taint.
fn looks(
    task: &PreemptEvents,
    memory: &Arc<Mutex<Memory>>,
    tainted: &BTreeSet<String>,
) -> BTreeMap<String, NodeIntent> {
    let mut known = locked(memory);
    let mut numbers: BTreeMap<&String, u64> = tainted.iter().map(|node| (node, 0)).collect();
    numbers.extend(known.latest.numbers(task.clock.now().wall));
    let look = |(name, number): (&String, u64)| {
        let intent = NodeIntent {
            uid: None,
            key: number.to_string(),
            shown: Shown::Unknown,
            renew_interval: tainted.contains(name).then_some(RECHECK_INTERVAL),
            edit: Arc::new(Look {
                name: name.clone(),
                number,
                task: task.clone(),
                memory: Arc::clone(memory),
            }),
        };
        (name.clone(), intent)
    };
    numbers.into_iter().map(look).collect()
}

/// What the latest message about a Node, or none, means for it.
struct Look {
    name: String,
    /// The number of the message that the look is for.
    number: u64,
    task: PreemptEvents,
    memory: Arc<Mutex<Memory>>,
}

impl NodeEdit for Look {
    fn edit(&self, node: &mut Node, now: Timestamp) -> Edited {
        let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let mut memory = locked(&self.memory);
        // A repetition may be about this one: then it is new.
        memory.latest.forget_earlier_node(&self.name, created);
        let message = memory.latest.get(&self.name);
        let message = message.and_then(|message| message.about(created, now));
        let mut edited = node.clone();
        if edit_for_event(&mut edited, message, now) == Some(TaintChange::Tainted) {
            if !is_spot(node) {
                self.task.metrics.count(Outcome::NotSpot);
                tracing::warn!(
                    node = self.name,
                    "eviction notice ignored: the Node has no label of a spot VM"
                );
                return Edited::Done;
            }
            // Both times are the detector's. A notice that it lost for a while only is a new one at its next repetition.
            let ended = |latest: &LatestMessage| has_ended(node, latest.last_seen());
            if memory.latest.get(&self.name).is_some_and(ended) {
                memory.latest.forget(&self.name);
                self.task.metrics.count(Outcome::Stale);
                return Edited::Done;
            }
            if let Err(until) = memory.limit.take(&self.name, Instant::now()) {
                self.task.metrics.count(Outcome::Delayed);
                tracing::warn!(
                    node = self.name,
                    "draining taint delayed: five Nodes got it in the last minute"
                );
                return Edited::NotBefore(until);
            }
        }
        *node = edited;
        Edited::Done
    }

    fn missing(&self) {
        locked(&self.memory).latest.forget_missing(&self.name, self.number);
    }

    fn written(&self, before: &Node, after: &Node) {
        let (kind, text) = match (is_draining(before), is_draining(after)) {
            (false, true) => (
                TAINT_ADDED,
                format!("Azure announced the eviction of this VM ({REASON}): taint {DRAINING_TAINT} added."),
            ),
            (true, false) => (
                TAINT_REMOVED,
                format!("The eviction that was announced is over: taint {DRAINING_TAINT} removed."),
            ),
            _ => return,
        };
        let about = node_reference(&self.name, after.metadata.uid.as_deref().unwrap_or_default());
        self.task.events.record(about, kind, text);
    }
}

fn is_draining(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == DRAINING_TAINT)
}
