//! The taint reconciler: publishes when the draining taint and the recorded notice of the own Node are not in their target state.
//!
//! The watch of the own Node shows when there may be something to change. What changes is decided again on the Node as the writer reads it.

use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::NodeReport;
use headgate_kubernetes::{Edited, FieldIntents, NodeIntent, Shown};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;
use tokio::time::sleep;

use super::node_edit::edit_node;
use super::snapshot::EventsSnapshot;
use super::taint_action::{NoticeRecord, next_taint_action};

/// Keeps published what is to change on the Node `name`, until the task is aborted.
pub async fn reconcile_taint(
    name: String,
    mut reports: watch::Receiver<NodeReport>,
    mut snapshots: watch::Receiver<EventsSnapshot>,
    intents: FieldIntents,
    clock: Clock,
) {
    loop {
        let (report, snapshot) = (
            reports.borrow_and_update().clone(),
            snapshots.borrow_and_update().clone(),
        );
        let now = clock.now().wall;
        let intent = intent(&report, &snapshot, now);
        let recheck_after = match intent {
            Some(_) => None,
            None => removal_delay(&report, &snapshot, now),
        };
        intents.publish(intent.map(|intent| (name.clone(), intent)).into_iter().collect());
        let is_running = tokio::select! {
            changed = reports.changed() => changed.is_ok(),
            changed = snapshots.changed() => changed.is_ok(),
            () = sleep(recheck_after.unwrap_or_default()), if recheck_after.is_some() => true,
        };
        if !is_running {
            // A sender was dropped: the process stops, and aborts this task.
            return std::future::pending().await;
        }
    }
}

/// What is to change if the latest watched version of the Node is not in the target state.
fn intent(report: &NodeReport, snapshot: &EventsSnapshot, now: Timestamp) -> Option<NodeIntent> {
    let shown = report.node.as_ref()?;
    let record = NoticeRecord::from_annotations(&shown.annotations);
    let tracker = snapshot.trackers.gravest();
    let action = next_taint_action(&tracker, record.as_ref(), &shown.boot_id, now)?;
    Some(NodeIntent {
        uid: Some(shown.uid.clone()),
        key: format!("{action:?}"),
        shown: Shown::No,
        renew_interval: None,
        edit: Arc::new(move |node: &mut Node, now| {
            edit_node(&tracker, node, now);
            Edited::Done
        }),
    })
}

/// The time until a taint without confirmation ends.
fn removal_delay(report: &NodeReport, snapshot: &EventsSnapshot, now: Timestamp) -> Option<Duration> {
    let is_unconfirmed = snapshot.trackers.gravest().is_unconfirmed;
    let node = report.node.as_ref().filter(|_| is_unconfirmed)?;
    let deadline = NoticeRecord::from_annotations(&node.annotations)?.confirmation_deadline()?;
    Duration::try_from(deadline.duration_since(now)).ok()
}
