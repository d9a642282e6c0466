//! Records holds on Nodes: writes new ones, renews them, and removes those that are over. `schedule` says which writes are due.
//!
//! Invariants: each write follows a read of its Node and names the UID and the `resourceVersion` of that read, and the permit of the
//! term is checked between the two. So it never reaches another Node of the same name, and one of a leader whose term is over never
//! replaces what the next leader wrote (docs/decisions.md 67). Nodes do not wait for each other: a write that fails or hangs is repeated
//! with its Node's backoff; the agent lets a hold end by itself if no renewal arrives. A leader without the right to write other
//! Nodes writes nothing, and reports it with the first hold of its term.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use headgate_clock::Clock;
use headgate_kubernetes::Decoded;
use headgate_leader::Term;
use headgate_node::HOLD_ANNOTATION;
use headgate_telemetry::{Reconcile, ReconcileSpan, Reconciled};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::holds::DesiredHolds;
use super::target_states::TargetStates;
use crate::other_nodes::OtherNodes;

mod schedule;

use schedule::{HoldSchedule, HoldWrite, RecordedHolds};

type NodeMetadata = Decoded<PartialObjectMeta<Node>>;

/// For one write with its reads.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Reads and writes of a Node in a row that another writer has changed in between.
const MAX_ATTEMPTS: u32 = 4;

/// Records the holds until the term ends; never ends by itself.
pub(super) async fn write_holds(
    client: Client,
    term: Term,
    clock: Clock,
    mut holds: watch::Receiver<Option<Arc<DesiredHolds>>>,
    mut targets: watch::Receiver<Option<Arc<TargetStates>>>,
) {
    let nodes = Api::<NodeMetadata>::all(client);
    let mut schedule = HoldSchedule::default();
    let mut writes = FuturesUnordered::new();
    loop {
        let desired = holds.borrow_and_update().clone();
        let recorded = recorded_holds(targets.borrow_and_update().as_deref());
        // Before the first plan nothing is known to be over.
        let (due, next_at) = desired.map_or_else(Default::default, |desired| {
            schedule.start_due(&desired, &recorded, clock.now())
        });
        for write in due {
            let (nodes, term) = (nodes.clone(), term.clone());
            writes.push(async move {
                let span = ReconcileSpan::start(Reconciled::Hold, || Reconcile {
                    term: Some(term.number()),
                    node: Some(&write.node),
                    ..Reconcile::default()
                });
                let outcome = timeout(WRITE_TIMEOUT, span.run(write_hold(&nodes, &term, &write))).await;
                let no_answer = |_| Err(format!("no answer within {} s", WRITE_TIMEOUT.as_secs()));
                let outcome = outcome.unwrap_or_else(no_answer);
                if let Err(error) = &outcome {
                    span.fail("NotWritten", error);
                }
                (write, outcome)
            });
        }
        tokio::select! {
            changed = holds.changed() => if changed.is_err() {
                // The controller ends with the term, and so does this task.
                std::future::pending::<()>().await;
            },
            changed = targets.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
            Some((write, outcome)) = writes.next() => {
                let node = write.node.clone();
                let retry_in = schedule.finish(write, outcome.is_ok(), clock.now().mono);
                if let Err(error) = outcome {
                    tracing::warn!(node, error, ?retry_in, "hold not written");
                }
            }
            () = sleep_until(next_at.unwrap_or_else(Instant::now)), if next_at.is_some() => {}
        }
    }
}

/// Reports the first hold that this process may not record and with which an agent would answer 200. Never ends by itself.
pub(super) async fn report_refusal(other_nodes: OtherNodes, mut holds: watch::Receiver<Option<Arc<DesiredHolds>>>) {
    let turns_answers = |holds: &Arc<DesiredHolds>| holds.values().any(|hold| hold.probes_headgate);
    let is_due = |holds: &Option<Arc<DesiredHolds>>| holds.as_ref().is_some_and(turns_answers);
    let is_due = holds.wait_for(is_due).await.is_ok();
    if is_due {
        // The check has logged and recorded the refusal.
        let _refusal = other_nodes.check("guard.minimumInService");
    }
    std::future::pending::<()>().await;
}

fn recorded_holds(targets: Option<&TargetStates>) -> RecordedHolds {
    let nodes = targets.into_iter().flat_map(|targets| targets.nodes.iter());
    let held = nodes.filter(|node| node.hold.is_some());
    held.map(|node| (node.name.clone(), Arc::clone(node))).collect()
}

/// Writes a hold, or removes it, as a change of the Node that was just read. Repeats both if another writer was faster.
async fn write_hold(nodes: &Api<NodeMetadata>, term: &Term, write: &HoldWrite) -> Result<(), String> {
    let describe = |error: kube::Error| headgate_telemetry::error_chain(&error);
    let value = match &write.hold {
        Some(hold) => Value::String(hold.to_annotation().map_err(|error| error.to_string())?),
        None => Value::Null,
    };
    for _ in 0..MAX_ATTEMPTS {
        let node = nodes.get_opt(&write.node).await.map_err(describe)?;
        let node = node.map(Decoded::into_object).transpose().map_err(describe)?;
        let node = node.filter(|node| node.metadata.uid.as_ref() == Some(&write.node_uid));
        let Some(metadata) = node.map(|node| node.metadata) else {
            let is_removal = write.hold.is_none();
            let missing = || format!("the Node with the UID {} no longer exists", write.node_uid);
            return is_removal.then_some(()).ok_or_else(missing);
        };
        let annotations = metadata.annotations.unwrap_or_default();
        if value.is_null() && !annotations.contains_key(HOLD_ANNOTATION) {
            return Ok(());
        }
        let patch = json!({"metadata": {
            "uid": write.node_uid, "resourceVersion": metadata.resource_version, "annotations": {HOLD_ANNOTATION: value}}});
        // After the read: what a next leader has written since then has another version.
        drop(term.permit().map_err(|error| error.to_string())?);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        match nodes.patch(&write.node, &params, &patch).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            answer => return answer.map(drop).map_err(describe),
        }
    }
    Err("other writers change the Node all the time".to_owned())
}

#[cfg(test)]
mod tests;
