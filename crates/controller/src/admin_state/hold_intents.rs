//! Publishes the holds that should be on Nodes: new ones are written and renewed, those that are over removed. Pure but for the channels.
//!
//! Invariants: a hold names the UID of its Node, and is written from a read of it with a permit of the term. So it never reaches another
//! Node of the same name, and one of a leader whose term is over never replaces what the next leader wrote (docs/dev/decisions.md 67). The
//! agent lets a hold end by itself if no renewal arrives. A leader without the right to write other Nodes writes nothing, and reports it
//! with the first hold of its term.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_core::changed;
use headgate_core::node::{HOLD_ANNOTATION, HOLD_TTL, NodeHold};
use headgate_kubernetes::{Edited, FieldIntents, NodeIntent, Shown};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use super::holds::{DesiredHold, DesiredHolds};
use super::target_states::TargetStates;
use crate::other_nodes::OtherNodes;
use crate::pool::ClusterNode;

/// Three renewals before the agent lets a hold end. A fifth of 5,000 Nodes costs 10 writes a second.
const RENEW_INTERVAL: Duration = Duration::from_secs(100);
const _: () = assert!(RENEW_INTERVAL.as_secs() * 3 <= HOLD_TTL.as_secs());

/// The Nodes that have a hold, as the watch shows them, by name.
type RecordedHolds = BTreeMap<String, Arc<ClusterNode>>;

/// Keeps the holds published until the term ends; never ends by itself.
pub(super) async fn publish_holds(
    intents: FieldIntents,
    mut holds: watch::Receiver<Option<Arc<DesiredHolds>>>,
    mut targets: watch::Receiver<Option<Arc<TargetStates>>>,
) {
    loop {
        let desired = holds.borrow_and_update().clone();
        let recorded = recorded_holds(targets.borrow_and_update().as_deref());
        // Before the first plan nothing is known to be over.
        if let Some(desired) = desired {
            intents.publish(hold_intents(&desired, &recorded));
        }
        tokio::select! {
            () = changed(&mut holds) => {}
            () = changed(&mut targets) => {}
        }
    }
}

/// Reports the first hold that this process may not record and with which an agent would answer 200. Never ends by itself.
pub(super) async fn report_refusal(other_nodes: OtherNodes, mut holds: watch::Receiver<Option<Arc<DesiredHolds>>>) {
    let turns_answers = |holds: &Arc<DesiredHolds>| holds.values().any(|desired| desired.hold.probes_headgate);
    let is_due = |holds: &Option<Arc<DesiredHolds>>| holds.as_ref().is_some_and(turns_answers);
    let is_due = holds.wait_for(is_due).await.is_ok();
    if is_due {
        // The check has logged and recorded the refusal.
        let _refusal = other_nodes.check("adminState.minimumInService");
    }
    std::future::pending::<()>().await;
}

fn recorded_holds(targets: Option<&TargetStates>) -> RecordedHolds {
    let held = targets.into_iter().flat_map(TargetStates::held_nodes);
    held.map(|node| (node.name.clone(), Arc::clone(node))).collect()
}

/// What is to be on each Node that has a hold or is to have one.
fn hold_intents(desired: &DesiredHolds, recorded: &RecordedHolds) -> BTreeMap<String, NodeIntent> {
    let names: BTreeSet<&String> = desired.keys().chain(recorded.keys()).collect();
    let intent = |name: &String| {
        let shown = recorded.get(name);
        let intent = desired.get(name).and_then(|hold| {
            let record = hold.record(Timestamp::UNIX_EPOCH)?;
            let key = record.to_annotation().ok()?;
            Some(hold_intent(hold, &record, key, shown))
        });
        // A hold that cannot be recorded is removed, like one that is over.
        intent.or_else(|| shown.map(|node| removal(node)))
    };
    names
        .into_iter()
        .filter_map(|name| Some((name.clone(), intent(name)?)))
        .collect()
}

/// The value of the annotation; `None` if it is more than an agent reads.
fn annotation(hold: &DesiredHold, renewed_at: Timestamp) -> Option<String> {
    hold.record(renewed_at)?.to_annotation().ok()
}

fn hold_intent(hold: &DesiredHold, record: &NodeHold, key: String, shown: Option<&Arc<ClusterNode>>) -> NodeIntent {
    let shown = shown
        .filter(|node| node.uid == hold.node.uid)
        .and_then(|node| node.hold.as_ref());
    let is_shown = shown.is_some_and(|shown| {
        (&record.pools, record.probes_headgate, &record.signals, &record.pending)
            == (&shown.pools, shown.probes_headgate, &shown.signals, &shown.pending)
    });
    let hold = hold.clone();
    NodeIntent {
        uid: Some(hold.node.uid.clone()),
        key,
        shown: if is_shown { Shown::Yes } else { Shown::No },
        renew_interval: Some(RENEW_INTERVAL),
        edit: Arc::new(move |node: &mut Node, now| {
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.extend(annotation(&hold, now).map(|value| (HOLD_ANNOTATION.to_owned(), value)));
            Edited::Done
        }),
    }
}

fn removal(node: &ClusterNode) -> NodeIntent {
    NodeIntent {
        uid: Some(node.uid.clone()),
        key: String::new(),
        shown: Shown::No,
        renew_interval: None,
        edit: Arc::new(|node: &mut Node, _| {
            let annotations = node.metadata.annotations.as_mut();
            annotations.map(|annotations| annotations.remove(HOLD_ANNOTATION));
            Edited::Done
        }),
    }
}

#[cfg(test)]
mod tests;
