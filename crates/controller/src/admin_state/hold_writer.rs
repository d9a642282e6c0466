//! Records holds on Nodes: writes new ones, renews them, and removes those that are over.
//!
//! Invariants: each write needs a permit of the term and names the Node's UID, so it never reaches another Node of the same
//! name. A failed write is repeated; the agent lets a hold end by itself if no renewal arrives. A leader without the right
//! to write other Nodes writes nothing, and reports it with the first hold of its term.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use headgate_clock::{Clock, Moment};
use headgate_leader::Term;
use headgate_node::{HOLD_ANNOTATION, HOLD_TTL, NodeHold};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::holds::{DesiredHold, DesiredHolds};
use super::target_states::TargetStates;
use crate::other_nodes::OtherNodes;

/// Five renewals before the agent lets a hold end.
const RENEW_INTERVAL: Duration = Duration::from_mins(1);
const _: () = assert!(RENEW_INTERVAL.as_secs() * 5 <= HOLD_TTL.as_secs());
/// Until a failed write is repeated, and until a removal that the watch does not show is.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CONCURRENT_WRITES: usize = 8;

/// What this term last wrote on a Node.
#[derive(Clone, Debug)]
struct Written {
    node_uid: String,
    /// `None` if the hold was removed.
    hold: Option<NodeHold>,
    at: Instant,
}

/// A write that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HoldWrite {
    node: String,
    node_uid: String,
    /// `None` removes the hold.
    hold: Option<NodeHold>,
}

/// Records the holds until the term ends; never ends by itself.
pub(super) async fn write_holds(
    client: Client,
    term: Term,
    clock: Clock,
    mut holds: watch::Receiver<Option<Arc<DesiredHolds>>>,
    mut targets: watch::Receiver<Option<Arc<TargetStates>>>,
) {
    let nodes = Api::<Node>::all(client);
    let mut written = BTreeMap::new();
    loop {
        let now = clock.now();
        let desired = holds.borrow_and_update().clone();
        let recorded = recorded_holds(targets.borrow_and_update().as_deref());
        let due = desired.map_or_else(Vec::new, |desired| due_writes(&desired, &recorded, &written, now));
        let mut has_failed = false;
        let mut outcomes = stream::iter(due)
            .map(|write| {
                let (nodes, term) = (nodes.clone(), term.clone());
                async move {
                    let outcome = write_hold(&nodes, &term, &write).await;
                    (write, outcome)
                }
            })
            .buffer_unordered(MAX_CONCURRENT_WRITES);
        while let Some((HoldWrite { node, node_uid, hold }, outcome)) = outcomes.next().await {
            match outcome {
                Ok(()) => {
                    let at = clock.now().mono;
                    written.insert(node, Written { node_uid, hold, at });
                }
                Err(error) => {
                    has_failed = true;
                    tracing::warn!(node, error, retry_in = ?RETRY_INTERVAL, "hold not written");
                }
            }
        }
        drop(outcomes);
        let interval = if has_failed || !recorded.is_empty() {
            RETRY_INTERVAL
        } else {
            RENEW_INTERVAL
        };
        tokio::select! {
            changed = holds.changed(), if !has_failed => if changed.is_err() {
                // The controller ends with the term, and so does this task.
                std::future::pending::<()>().await;
            },
            changed = targets.changed(), if !has_failed => if changed.is_err() {
                std::future::pending::<()>().await;
            },
            () = sleep_until(Instant::now() + interval) => {}
        }
    }
}

/// Reports the first hold that this process may not record. Never ends by itself.
pub(super) async fn report_refusal(other_nodes: OtherNodes, mut holds: watch::Receiver<Option<Arc<DesiredHolds>>>) {
    let is_due = |holds: &Option<Arc<DesiredHolds>>| holds.as_ref().is_some_and(|holds| !holds.is_empty());
    let is_due = holds.wait_for(is_due).await.is_ok();
    if is_due {
        // The check has logged and recorded the refusal.
        let _refusal = other_nodes.check("guard.minimumInService").await;
    }
    std::future::pending::<()>().await;
}

/// The UIDs of the Nodes that have a hold, by name.
fn recorded_holds(targets: Option<&TargetStates>) -> BTreeMap<String, String> {
    let nodes = targets.into_iter().flat_map(|targets| targets.nodes.iter());
    let held = nodes.filter(|node| node.hold.is_some());
    held.map(|node| (node.name.clone(), node.uid.clone())).collect()
}

/// The writes that are due: new and changed holds, renewals, and removals.
fn due_writes(
    desired: &DesiredHolds,
    recorded: &BTreeMap<String, String>,
    written: &BTreeMap<String, Written>,
    now: Moment,
) -> Vec<HoldWrite> {
    let new = desired.iter().filter_map(|(name, desired)| {
        let hold = node_hold(desired, now);
        let is_current = written.get(name).is_some_and(|written| {
            let is_same = written.hold.as_ref().is_some_and(|written| written.is_same(&hold));
            is_same && now.mono < written.at + RENEW_INTERVAL
        });
        (!is_current).then(|| HoldWrite {
            node: name.clone(),
            node_uid: desired.node.uid.clone(),
            hold: Some(hold),
        })
    });
    let over = recorded.iter().filter(|(name, uid)| {
        let is_removed = written.get(*name).is_some_and(|written| {
            written.node_uid == **uid && written.hold.is_none() && now.mono < written.at + RETRY_INTERVAL
        });
        !desired.contains_key(*name) && !is_removed
    });
    let over = over.map(|(name, uid)| HoldWrite {
        node: name.clone(),
        node_uid: uid.clone(),
        hold: None,
    });
    new.chain(over).collect()
}

fn node_hold(desired: &DesiredHold, now: Moment) -> NodeHold {
    NodeHold {
        node_uid: desired.node.uid.clone(),
        pools: desired.pools.clone(),
        probes_headgate: desired.probes_headgate,
        signals: desired.signals.clone(),
        pending: desired.pending.clone(),
        renewed_at: now.wall,
    }
}

async fn write_hold(nodes: &Api<Node>, term: &Term, write: &HoldWrite) -> Result<(), String> {
    let value = match &write.hold {
        Some(hold) => Value::String(hold.to_annotation().map_err(|error| error.to_string())?),
        None => Value::Null,
    };
    let patch = json!({"metadata": {"uid": write.node_uid, "annotations": {HOLD_ANNOTATION: value}}});
    drop(term.permit().map_err(|error| error.to_string())?);
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let answer = timeout(WRITE_TIMEOUT, nodes.patch_metadata(&write.node, &params, &patch)).await;
    let answer = answer.map_err(|_| format!("no answer within {} s", WRITE_TIMEOUT.as_secs()))?;
    answer
        .map(drop)
        .map_err(|error| headgate_telemetry::error_chain(&error))
}

#[cfg(test)]
mod tests;
