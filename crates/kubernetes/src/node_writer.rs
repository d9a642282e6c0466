//! The one writer of Nodes of a process: features publish what fields should be, one task writes what is missing.
//!
//! Invariants: each write is made from a read of its Node and fails if the Node is another one or has changed since; `may_send` is asked
//! right before each request that writes. All fields of a Node that are due are written together, and each for itself where that
//! fails. Nodes do not wait for each other: an attempt that fails is repeated with backoff, one that hangs takes no place from another.
//! A kind of failure is logged once for each field, until nothing of that field fails any more. `schedule` says when a field is due,
//! `operations` what a patch contains; what a field should be is left to the features.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::FutureExt as _;
use futures::stream::FuturesUnordered;
use headgate_core::clock::{Clock, pause_after};
use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled, warn_if};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};

use crate::Decoded;
use crate::leader::Term;

mod intent;
mod marker;
mod operations;
mod outcome;
mod schedule;

pub use intent::{Edited, FieldIntents, NodeEdit, NodeField, NodeIntent, NodeIntents, Shown};
pub use marker::{MarkerState, condition_intent, expire_marker};
use operations::{operations, status_operations};
pub use outcome::NodeWriteMetrics;
use outcome::{Failure, Outcome};
use schedule::{Attempt, Ended, Schedule};

/// For one request. An API server that works answers in milliseconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Reads and writes of a Node in a row that another writer has changed in between.
const MAX_CONFLICTS: u32 = 5;

/// The pause before a look at all fields that only ended attempts lead to, as a multiple of the time that the last look took: with
/// thousands of Nodes that is milliseconds, and attempts end as often.
const SCHEDULE_PAUSE: u32 = 4;

/// Says why nothing may be sent now.
pub(crate) type MaySend = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Writes what is missing on Nodes.
#[derive(Clone)]
pub struct NodeWriter {
    client: Client,
    metrics: NodeWriteMetrics,
    clock: Clock,
    /// The number of the term that the writes belong to, for spans.
    term: Option<i32>,
    /// Asked right before each write is sent.
    may_send: MaySend,
}

impl NodeWriter {
    /// A writer that may always send. `client` is one that does not retry by itself; `metrics` counts the writes.
    pub fn new(client: Client, metrics: NodeWriteMetrics, clock: Clock) -> Self {
        Self {
            client,
            metrics,
            clock,
            term: None,
            may_send: Arc::new(|| Ok(())),
        }
    }

    /// The same for the work of a term: each write is sent with a permit of it only.
    #[must_use]
    pub(crate) fn in_term(self, term: &Term) -> Self {
        Self {
            term: Some(term.number()),
            may_send: term.may_send(),
            ..self
        }
    }

    /// Writes until it is dropped; never ends by itself.
    pub async fn run(self, intents: NodeIntents) {
        let mut published = intents.0.subscribe();
        let mut schedule = Schedule::default();
        let mut logged = BTreeSet::new();
        let mut attempts = FuturesUnordered::new();
        loop {
            let wanted = published.borrow_and_update().clone();
            let began = Instant::now();
            let (due, next_at) = schedule.start_due(&wanted, began);
            let pause_until = Instant::now() + pause_after(began.elapsed(), SCHEDULE_PAUSE);
            attempts.extend(due.into_iter().map(|attempt| self.attempt(attempt)));
            let mut has_ended = false;
            while !has_ended || Instant::now() < pause_until {
                tokio::select! {
                    // This task holds a sender.
                    _ = published.changed() => break,
                    Some(ended) = attempts.next() => {
                        self.finish(&mut schedule, &mut logged, ended);
                        while let Some(Some(ended)) = attempts.next().now_or_never() {
                            self.finish(&mut schedule, &mut logged, ended);
                        }
                        has_ended = true;
                    }
                    () = sleep_until(pause_until), if has_ended => {}
                    () = sleep_until(next_at.unwrap_or_else(Instant::now)), if next_at.is_some() => break,
                }
            }
        }
    }

    /// Writes one value now, for a command. A Node that does not exist has it.
    ///
    /// # Errors
    /// It was not written, and why.
    pub async fn write_now(&self, node: &str, field: NodeField, intent: NodeIntent) -> Result<(), String> {
        let outcomes = self.write(node, &[(field, intent)]).await;
        let failures = outcomes.map(|outcomes| outcomes.into_iter().find_map(Result::err));
        match failures.unwrap_or_else(Some) {
            Some(failure) if failure.outcome != Outcome::Gone => Err(failure.to_string()),
            _ => Ok(()),
        }
    }

    /// Writes the fields of one Node: together, or each for itself if one of them may be why that fails.
    async fn attempt(&self, attempt: Attempt) -> (Attempt, Vec<FieldOutcome>) {
        let Attempt { node, intents } = &attempt;
        let span = ReconcileSpan::start(Reconciled::Node, || Reconcile {
            term: self.term,
            node: Some(node),
            ..Reconcile::default()
        });
        let write = async {
            match self.write(node, intents).await {
                Err(failure) if failure.may_be_of_one_field() && intents.len() > 1 => {
                    let mut outcomes = Vec::new();
                    for intent in intents.chunks(1) {
                        outcomes.extend(
                            self.write(node, intent)
                                .await
                                .unwrap_or_else(|failure| vec![Err(failure)]),
                        );
                    }
                    outcomes
                }
                outcomes => outcomes.unwrap_or_else(|failure| vec![Err(failure); intents.len()]),
            }
        };
        let outcomes = span.run(write).await;
        for ((field, intent), outcome) in intents.iter().zip(&outcomes) {
            if let Err(failure) = outcome {
                span.fail(failure.outcome.as_str(), failure);
                self.metrics.count(*field, failure.outcome);
                if failure.outcome == Outcome::Gone {
                    intent.edit.missing();
                }
                if failure.may_be_of_one_field() {
                    intent.edit.failed(&failure.error);
                }
            }
        }
        (attempt, outcomes)
    }

    /// Reads a Node and writes what is missing, again if another writer was faster.
    async fn write(&self, name: &str, intents: &[(NodeField, NodeIntent)]) -> Result<Vec<FieldOutcome>, Failure> {
        let nodes = Api::<Decoded<Node>>::all(self.client.clone());
        let mut conflicts = 0;
        loop {
            let before = read(&nodes, name).await?;
            let mut after = before.clone();
            let (mut outcomes, mut changed) = (Vec::new(), Vec::new());
            for (field, intent) in intents {
                let unchanged = after.clone();
                outcomes.push(edit(intent, &mut after, self.clock.now().wall));
                if outcomes.last() == Some(&Ok(Edited::Done)) {
                    let is_main = operations(&unchanged, &after).is_some();
                    let is_status = status_operations(&unchanged, &after).is_some();
                    changed.extend((is_main || is_status).then_some((*field, intent, is_status)));
                } else {
                    after = unchanged;
                }
            }
            let mut sent = self.send(&nodes, (&before, &after), &changed).await;
            if let Err(failure) = &sent
                && failure.may_be_outdated
                && read(&nodes, name).await?.metadata.resource_version != before.metadata.resource_version
            {
                sent = sent.map_err(Failure::outdated);
            }
            match sent {
                Err(failure) if failure.outcome == Outcome::Conflict && conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                    let fields = changed.iter().map(|(field, ..)| *field);
                    fields.for_each(|field| self.metrics.count(field, Outcome::Conflict));
                }
                sent => return sent.map(|()| outcomes),
            }
        }
    }

    /// Sends what differs, the conditions as a request of their own, and reports what is written.
    async fn send(
        &self,
        nodes: &Api<Decoded<Node>>,
        (before, after): (&Node, &Node),
        changed: &[(NodeField, &NodeIntent, bool)],
    ) -> Result<(), Failure> {
        let name = before.metadata.name.as_deref().unwrap_or_default();
        let mut read = Some(before.clone());
        if let Some(operations) = operations(before, after) {
            let patch = self.patch(operations)?;
            let answer = within(nodes.patch(name, &PatchParams::default(), &patch))
                .await
                .map_err(Failure::of_write)?;
            read = answer.into_object().ok();
            self.report(before, after, changed.iter().filter(|(.., is_status)| !is_status));
        }
        if status_operations(before, after).is_none() {
            return Ok(());
        }
        let conditions = |node: &Node| node.status.as_ref().and_then(|status| status.conditions.clone());
        let read = read.filter(|read| conditions(read) == conditions(before));
        let Some(operations) = read.and_then(|read| status_operations(&read, after)) else {
            return Err(Failure::new(Outcome::Conflict, "the conditions have changed"));
        };
        let patch = self.patch(operations)?;
        within(nodes.patch_status(name, &PatchParams::default(), &patch))
            .await
            .map_err(Failure::of_write)?;
        self.report(before, after, changed.iter().filter(|(.., is_status)| *is_status));
        Ok(())
    }

    /// Reports what is written.
    fn report<'a>(
        &self,
        before: &Node,
        after: &Node,
        written: impl Iterator<Item = &'a (NodeField, &'a NodeIntent, bool)>,
    ) {
        let name = before.metadata.name.as_deref().unwrap_or_default();
        for (field, intent, _) in written {
            self.metrics.count(*field, Outcome::Written);
            // A renewal is no news.
            if intent.shown != Shown::Yes {
                tracing::info!(
                    node = name,
                    field = field.as_str(),
                    value = intent.key,
                    "field of the Node written"
                );
            }
            intent.edit.written(before, after);
        }
    }

    /// A patch to send now.
    fn patch(&self, operations: Value) -> Result<Patch<()>, Failure> {
        let patch = serde_json::from_value(operations);
        let patch = patch.map_err(|error| Failure::new(Outcome::Error, error.to_string()))?;
        (self.may_send)().map_err(|error| Failure::new(Outcome::NotPermitted, error))?;
        Ok(Patch::Json(patch))
    }

    /// Records how an attempt ended.
    fn finish(
        &self,
        schedule: &mut Schedule,
        logged: &mut BTreeSet<(NodeField, Outcome)>,
        (attempt, outcomes): (Attempt, Vec<FieldOutcome>),
    ) {
        for ((field, _), outcome) in attempt.intents.iter().zip(&outcomes) {
            let Err(failure) = outcome else { continue };
            if !schedule.is_failing(*field) {
                logged.retain(|(logged, _)| logged != field);
            }
            let (node, field_name, outcome) = (&attempt.node, field.as_str(), failure.outcome.as_str());
            // With these the next attempt knows more, or there is none.
            let is_expected = matches!(
                failure.outcome,
                Outcome::Conflict | Outcome::Gone | Outcome::NotPermitted
            );
            if is_expected || !logged.insert((*field, failure.outcome)) {
                tracing::debug!(node, field = field_name, outcome, error = %failure, "field of the Node not written");
                continue;
            }
            let is_refused = failure.outcome == Outcome::Refused;
            let hint = if is_refused && self.term.is_none() {
                field.grant()
            } else {
                ""
            };
            warn_if!(is_refused, node, field = field_name, outcome, error = %failure, "field of the Node not written, retrying{hint}");
        }
        let ended = outcomes.iter().map(|outcome| match outcome {
            Ok(Edited::NotBefore(at)) => Ended::NotBefore(*at),
            Err(failure) if failure.outcome != Outcome::Gone => Ended::Failed,
            _ => Ended::Done,
        });
        let ended: Vec<_> = ended.collect();
        schedule.finish(attempt, &ended, Instant::now());
    }
}

type FieldOutcome = Result<Edited, Failure>;

/// Reads a Node without what no edit needs.
async fn read(nodes: &Api<Decoded<Node>>, name: &str) -> Result<Node, Failure> {
    let mut node = match within(nodes.get(name)).await? {
        Decoded::Object(node) => node,
        Decoded::Undecodable(undecodable) => return Err(Failure::new(Outcome::Error, undecodable.to_string())),
    };
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
    }
    Ok(node)
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    let no_answer = |_| {
        let error = format!("the API server did not answer within {} s", REQUEST_TIMEOUT.as_secs());
        Failure::new(Outcome::Timeout, error)
    };
    Ok(timeout(REQUEST_TIMEOUT, request).await.map_err(no_answer)??)
}

fn edit(intent: &NodeIntent, node: &mut Node, now: Timestamp) -> FieldOutcome {
    if intent.uid.is_some() && intent.uid != node.metadata.uid {
        return Err(Failure::new(Outcome::Gone, "another Node has this name now"));
    }
    match intent.edit.edit(node, now) {
        Edited::Outdated => Err(Failure::new(
            Outcome::Conflict,
            "the Node has changed since the value was published",
        )),
        edited => Ok(edited),
    }
}

#[cfg(test)]
mod tests;
