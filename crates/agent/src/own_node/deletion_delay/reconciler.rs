//! Publishes the annotation that delays the own node's deletion, and records the event about a delay that has ended too early.
//!
//! When the process stops, the annotation stays: the next agent of the node follows it.

use std::sync::Arc;
use std::time::Duration;

use headgate_core::changed;
use headgate_core::clock::Clock;
use headgate_kubernetes::{Edited, EventKind, EventSink, FieldIntents, NodeIntent, Shown};
use k8s_openapi::api::core::v1::Node as NodeResource;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use headgate_core::node::{DELETION_DELAY_ANNOTATION, Node, NodeReport};

use super::metrics::DeletionDelayMetrics;
use super::{DelayState, DelayTarget, DeletionDelay};

/// What the annotation says. Cluster Autoscaler reads the key only.
const VALUE: &str = "true";
const TIMED_OUT: EventKind = EventKind::warning("DeletionDelayTimedOut", "DelayDeletion");

/// What the task is started with.
pub struct DeletionDelayTask {
    /// The name of the own Node.
    pub node_name: String,
    /// `delayTermination.clusterAutoscaler`; `None` if the setting is off.
    pub timeout: Option<Duration>,
    /// What is known of the own Node.
    pub reports: watch::Receiver<NodeReport>,
    /// Where the annotation is published.
    pub intents: FieldIntents,
    /// Records the event about a timeout.
    pub events: EventSink,
    /// The counter of timeouts.
    pub metrics: DeletionDelayMetrics,
    /// Wall and monotonic time.
    pub clock: Clock,
}

/// Keeps what the annotation of the own Node should be published, until the task is aborted.
pub async fn delay_deletion(task: DeletionDelayTask) {
    let mut reports = task.reports.clone();
    let mut delay = DeletionDelay::new(task.timeout);
    let mut state = DelayState::Unknown;
    loop {
        let report = reports.borrow_and_update().clone();
        let target = delay.observe(&report, task.clock.now());
        let has_timed_out = target.state == DelayState::TimedOut && state == DelayState::Deleting;
        state = target.state;
        let intent = intent(&report, target).map(|intent| (task.node_name.clone(), intent));
        task.intents.publish(intent.into_iter().collect());
        if has_timed_out {
            task.timed_out(&report);
        }
        let changes_at = target.changes_at;
        tokio::select! {
            () = changed(&mut reports) => {}
            () = sleep_until(changes_at.unwrap_or_else(Instant::now)), if changes_at.is_some() => {}
        }
    }
}

fn intent(report: &NodeReport, target: DelayTarget) -> Option<NodeIntent> {
    let (shown, is_delayed) = (report.node.as_ref()?, target.is_delayed?);
    let is_shown = shown.is_deletion_delayed() == is_delayed;
    Some(NodeIntent {
        uid: Some(shown.uid.clone()),
        key: is_delayed.to_string(),
        shown: if is_shown { Shown::Yes } else { Shown::No },
        renew_interval: None,
        edit: Arc::new(move |node: &mut NodeResource, _| {
            let annotations = node.metadata.annotations.get_or_insert_default();
            if is_delayed {
                annotations.insert(DELETION_DELAY_ANNOTATION.to_owned(), VALUE.to_owned());
            } else {
                annotations.remove(DELETION_DELAY_ANNOTATION);
            }
            Edited::Done
        }),
    })
}

impl DeletionDelayTask {
    /// Reports that the deletion goes on although the node has not left its load balancers.
    fn timed_out(&self, report: &NodeReport) {
        self.metrics.count_timeout();
        let observed = report.node.as_ref();
        let waits_for = observed.map_or("the Node is not known", Node::waits_for);
        let what = if observed.is_some_and(Node::is_marked_out) {
            "connections still pass through it after"
        } else {
            "it has not left its load balancers within"
        };
        let seconds = self.timeout.unwrap_or_default().as_secs();
        let note = format!(
            "headgate no longer delays the deletion of the node by Cluster Autoscaler: {what} {seconds} s (delayTermination.clusterAutoscaler): {waits_for}"
        );
        tracing::warn!(node = self.node_name, timeout = ?self.timeout, waits_for, "stopped delaying the deletion of the node: the time for it is over, and connections may be lost");
        let about = self.events.own_node(observed.map(|node| &*node.uid));
        self.events.record(about, TIMED_OUT, note);
    }
}
