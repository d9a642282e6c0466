//! Eviction notices in Node events: the leader turns a genuine `PreemptScheduled` event into the draining taint.
//!
//! It is for clusters whose agents do not poll the metadata service (`node.scheduledEvents`). Invariants: a notice taints a Node once,
//! because the Node's annotation records it by the same patch; each patch is planned from a fresh read of the Node and fails if the Node
//! has changed; only a Node that says that its VM is a spot VM gets the taint, and at most five in a minute; only a process of `components/controller` writes, which `other_nodes` checks; no Node waits for the requests of another
//! one. A failure here ends nothing else: it is counted, logged and retried. What a message means and what changes in a Node is left
//! to `headgate-spot`.

mod due_nodes;
mod latest;
mod metrics;
mod objects;
mod taint_limit;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use headgate_clock::Clock;
use headgate_kubernetes::{Decoded, EventKind, EventSink, WatchReporter, node_reference, watch_events};
use headgate_leader::Term;
use headgate_node::DRAINING_TAINT;
use headgate_spot::{TaintChange, TaintPatch, plan_for_event};
use headgate_telemetry::{Reconcile, ReconcileSpan, Reconciled};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use due_nodes::DueNodes;
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
/// For one read and one write of a Node.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// After a failed attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Between reads of a Node with headgate's taint, which show a reboot or the end of the notice.
const RECHECK_INTERVAL: Duration = Duration::from_secs(15);
/// At once after a conflict.
const MAX_CONFLICTS: u32 = 5;

/// What a look at a Node found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Looked {
    /// It is in its target state.
    Done,
    /// It does not exist.
    Gone,
    /// Its taint is due later, because others have got theirs in the last minute.
    Delayed(Instant),
    /// A request failed, and was counted.
    Failed,
}

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
}

impl PreemptEvents {
    /// Watches the events and keeps the taints until the task is aborted.
    /// `tainted` has the names of the Nodes with the draining taint. Each write needs a permit of the term; without one
    /// (in tests) nothing limits writes to the leader.
    pub async fn run(self, term: Option<Term>, mut tainted: watch::Receiver<BTreeSet<String>>) {
        let reporter = WatchReporter::new("events", self.metrics.watch_errors(), self.clock.clone());
        let selector = watcher::Config::default()
            .fields(&format!("reason={REASON},involvedObject.kind=Node"))
            .page_size(PAGE_SIZE);
        let api = |client| Api::namespaced(client, NAMESPACE);
        let mut stream = watch_events::<NodeEventObject>(&self.client, api, selector, reporter);
        let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&());
        let nodes = Api::<Decoded<DynamicObject>>::all_with(self.client.clone(), &resource);
        let mut latest = LatestMessages::default();
        let mut due = DueNodes::default();
        let limit = Mutex::<TaintLimit>::default();
        let mut looks = FuturesUnordered::new();
        loop {
            for name in due.start(Instant::now()) {
                looks.push(self.look(term.as_ref(), &nodes, latest.get(&name).cloned(), name, &limit));
            }
            let next = due.next_at();
            tokio::select! {
                event = stream.next() => match event {
                    Some(Ok(Event::Apply(object) | Event::InitApply(object))) => {
                        let observed = object.observed();
                        if let Some(name) = observed.and_then(|event| latest.apply(event, self.clock.now().wall, &self.metrics)) {
                            due.insert(name, Instant::now());
                        }
                    }
                    // An event that expires says nothing about the notice.
                    Some(_) => {}
                    None => return,
                },
                changed = tainted.changed() => {
                    if changed.is_err() {
                        // The watch of the Nodes ends with the term, and so does this task.
                        return std::future::pending().await;
                    }
                    for name in tainted.borrow_and_update().iter() {
                        due.insert_new(name, Instant::now() + RECHECK_INTERVAL);
                    }
                }
                Some((name, looked)) = looks.next() => {
                    let again = match looked {
                        Looked::Failed => Some(RETRY_INTERVAL),
                        Looked::Delayed(until) => Some(until.saturating_duration_since(Instant::now())),
                        Looked::Done if tainted.borrow().contains(&name) => Some(RECHECK_INTERVAL),
                        Looked::Done | Looked::Gone => None,
                    };
                    let is_due = due.finish(name.clone(), again.map(|again| Instant::now() + again));
                    // An event since then is about another Node of this name.
                    if looked == Looked::Gone && !is_due {
                        latest.forget(&name);
                    }
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    async fn look(
        &self,
        term: Option<&Term>,
        nodes: &Api<Decoded<DynamicObject>>,
        message: Option<LatestMessage>,
        name: String,
        limit: &Mutex<TaintLimit>,
    ) -> (String, Looked) {
        let span = ReconcileSpan::start(Reconciled::DrainingTaint, || Reconcile {
            term: term.map(Term::number),
            node: Some(&name),
            ..Reconcile::default()
        });
        let attempt = || self.attempt(term, nodes, &name, message.as_ref(), limit);
        let looked = span.run(self.reconcile(&name, attempt, &span)).await;
        (name, looked)
    }

    /// Brings one Node to its target state.
    async fn reconcile<A: Future<Output = Result<Looked, Outcome>>>(
        &self,
        name: &str,
        attempt: impl Fn() -> A,
        span: &ReconcileSpan,
    ) -> Looked {
        for _ in 0..MAX_CONFLICTS {
            let attempt = timeout(ATTEMPT_TIMEOUT, attempt());
            let outcome = attempt.await.unwrap_or(Err(Outcome::Timeout));
            match outcome {
                Ok(looked) => return looked,
                Err(Outcome::Conflict) => self.metrics.count(Outcome::Conflict),
                Err(outcome) => {
                    self.metrics.count(outcome);
                    span.fail(outcome.as_str(), &"draining taint not written");
                    tracing::warn!(node = name, outcome = outcome.as_str(), retry_in = ?RETRY_INTERVAL, "draining taint not written");
                    return Looked::Failed;
                }
            }
        }
        Looked::Failed
    }

    async fn attempt(
        &self,
        term: Option<&Term>,
        nodes: &Api<Decoded<DynamicObject>>,
        name: &str,
        message: Option<&LatestMessage>,
        limit: &Mutex<TaintLimit>,
    ) -> Result<Looked, Outcome> {
        let node = nodes.get_opt(name).await;
        let node = node.and_then(|node| node.map(Decoded::into_object).transpose());
        let Some(node) = node.map_err(|error| Outcome::of(&error))? else {
            return Ok(Looked::Gone);
        };
        let now = self.clock.now().wall;
        let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let message = message.and_then(|message| message.about(created, now));
        let Some(TaintPatch { change, operations }) = plan_for_event(&node, message, now) else {
            return Ok(Looked::Done);
        };
        if change == TaintChange::Tainted {
            if !is_spot(&node) {
                self.metrics.count(Outcome::NotSpot);
                tracing::warn!(
                    node = name,
                    "eviction notice ignored: the Node has no label of a spot VM"
                );
                return Ok(Looked::Done);
            }
            let place = limit
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(Instant::now());
            if let Err(until) = place {
                self.metrics.count(Outcome::Delayed);
                tracing::warn!(
                    node = name,
                    "draining taint delayed: five Nodes got it in the last minute"
                );
                return Ok(Looked::Delayed(until));
            }
        }
        let patch = serde_json::from_value(operations).map_err(|_| Outcome::Error)?;
        let patch = Patch::<()>::Json(patch);
        if let Some(term) = term {
            drop(term.permit().map_err(|_| Outcome::NotPermitted)?);
        }
        let patched = nodes.patch(name, &PatchParams::default(), &patch).await;
        patched.map_err(|error| Outcome::of(&error))?;
        self.metrics.count(change.into());
        tracing::info!(
            node = name,
            outcome = Outcome::from(change).as_str(),
            "draining taint and recorded notice written"
        );
        self.report(&node, change);
        Ok(Looked::Done)
    }

    fn report(&self, node: &DynamicObject, change: TaintChange) {
        let (name, uid) = (node.metadata.name.as_deref(), node.metadata.uid.as_deref());
        let about = node_reference(name.unwrap_or_default(), uid.unwrap_or_default());
        match change {
            TaintChange::Tainted => {
                let text = format!("Azure announced the eviction of this VM ({REASON}): taint {DRAINING_TAINT} added.");
                self.events.record(about, TAINT_ADDED, text);
            }
            TaintChange::Untainted => {
                let text = format!("The eviction that was announced is over: taint {DRAINING_TAINT} removed.");
                self.events.record(about, TAINT_REMOVED, text);
            }
            TaintChange::Recorded => {}
        }
    }
}
