//! The taint reconciler: publishes when the draining taint and the recorded notice of the own Node are not in their target state.
//!
//! The watch of the own Node shows when there may be something to change. What changes is decided again on the Node as the writer reads it.

use std::sync::Arc;
use std::time::Duration;

use headgate_core::changed;
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
        tokio::select! {
            () = changed(&mut reports) => {}
            () = changed(&mut snapshots) => {}
            () = sleep(recheck_after.unwrap_or_default()), if recheck_after.is_some() => {}
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

/// The time until a taint ends without another observation.
fn removal_delay(report: &NodeReport, snapshot: &EventsSnapshot, now: Timestamp) -> Option<Duration> {
    let record = NoticeRecord::from_annotations(&report.node.as_ref()?.annotations)?;
    let ends_at = record.taint_ends_at(&snapshot.trackers.gravest())?;
    Duration::try_from(ends_at.duration_since(now)).ok()
}

#[cfg(test)]
mod tests {
    use headgate_core::clock::Moment;
    use headgate_core::node::{AzureNotice, NodeReader, SPOT_NOTICE_ANNOTATION, SignalRules};
    use serde_json::json;

    use super::super::fixtures::{at, record};
    use super::super::notice::{NoticeTracker, NoticeTrackers};
    use super::*;

    #[test]
    fn a_clear_agent_leaves_the_taint_of_another_for_the_grace() {
        const GRACE: Duration = Duration::from_mins(1);
        let start = Clock::System.now();
        let empty = |second| {
            let mono = start.mono + Duration::from_secs(second);
            move |notice, tracker: &NoticeTracker| tracker.next(&[], notice, true, GRACE, Moment { mono, ..start })
        };
        let chosen = AzureNotice::ALL.into();
        let snapshot = EventsSnapshot {
            trackers: NoticeTrackers::default().map(&chosen, empty(0)).map(&chosen, empty(60)),
            ..EventsSnapshot::default()
        };
        let rules = SignalRules::default();
        let node = json!({"metadata": {"name": "n", "uid": "u",
            "annotations": {SPOT_NOTICE_ANNOTATION: json!(record("a", Some(100), Some(59))).to_string()}}});
        let node = NodeReader::own(rules.clone()).read(serde_json::from_value(node).unwrap());
        let report = NodeReport::initial(None, &rules, start).with_node(node, start);
        for (second, rechecks_after, is_removed) in [(60, 59, false), (118, 1, false), (119, 0, true)] {
            let delay = removal_delay(&report, &snapshot, at(second));
            assert_eq!(delay, Some(Duration::from_secs(rechecks_after)), "{second}");
            assert_eq!(intent(&report, &snapshot, at(second)).is_some(), is_removed, "{second}");
        }
    }
}
