//! Writes the annotation that delays the own node's deletion, and the event about a delay that has ended too early.
//!
//! Each write is a merge patch of this one annotation that names the Node's UID. The same value is written at most every 5 s, so two
//! agents that disagree during a roll cost few requests. Failures are retried with backoff and logged once for each kind. When the
//! process stops, the annotation stays: the next agent of the node follows it.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use headgate_clock::Clock;
use headgate_kubernetes::{Decoded, EventKind, EventSink};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::metrics::{DeletionDelayMetrics, WriteOutcome};
use super::{DelayState, DelayTarget, DeletionDelay};
use crate::names::DELETION_DELAY_ANNOTATION;
use crate::report::NodeReport;

/// For one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// The backoff after the first failure; Cluster Autoscaler looks every 5 s.
const MIN_BACKOFF: Duration = Duration::from_millis(200);
/// The longest backoff.
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// How long the watch may take to show a write, and the shortest time between two equal writes.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);
/// What the annotation says. Cluster Autoscaler reads the key only.
const VALUE: &str = "true";
const TIMED_OUT: EventKind = EventKind::warning("DeletionDelayTimedOut", "DelayDeletion");

/// What the task is started with.
pub struct DeletionDelayTask {
    /// A client of the API server.
    pub client: Client,
    /// The name of the own Node.
    pub node_name: String,
    /// `holdDeletion.timeout`; `None` if the setting is off.
    pub timeout: Option<Duration>,
    /// What is known of the own Node.
    pub reports: watch::Receiver<NodeReport>,
    /// Records the event about a timeout.
    pub events: EventSink,
    /// The counters.
    pub metrics: DeletionDelayMetrics,
    /// Wall and monotonic time.
    pub clock: Clock,
}

/// The last write that succeeded.
struct Written {
    uid: String,
    is_delayed: bool,
    at: Instant,
}

/// Failed writes since the last one that succeeded.
struct Failures {
    delays: ExponentialBackoff,
    logged: Option<WriteOutcome>,
    retry_at: Instant,
}

impl Failures {
    fn none() -> Self {
        let backoff = ExponentialBuilder::default()
            .with_min_delay(MIN_BACKOFF)
            .with_max_delay(MAX_BACKOFF)
            .without_max_times();
        Self {
            delays: backoff.build(),
            logged: None,
            retry_at: Instant::now(),
        }
    }
}

/// Keeps the annotation of the own Node as it should be, until the task is aborted.
pub async fn delay_deletion(task: DeletionDelayTask) {
    let nodes = Api::all(task.client.clone());
    let mut reports = task.reports.clone();
    let mut delay = DeletionDelay::new(task.timeout);
    let mut state = DelayState::Unknown;
    let mut written: Option<Written> = None;
    let mut failures = Failures::none();
    loop {
        let report = reports.borrow_and_update().clone();
        let target = delay.observe(&report, task.clock.now());
        let has_timed_out = target.state == DelayState::TimedOut && state == DelayState::Deleting;
        state = target.state;
        let due_at = due_at(&report, target, written.as_ref(), &failures);
        if let Some((uid, is_delayed, at)) = &due_at
            && *at <= Instant::now()
        {
            match task.write(&nodes, uid, *is_delayed).await {
                Ok(()) => {
                    failures = Failures::none();
                    written = Some(Written {
                        uid: uid.clone(),
                        is_delayed: *is_delayed,
                        at: Instant::now(),
                    });
                }
                Err((outcome, error)) => task.failed(&mut failures, outcome, &error),
            }
        }
        if has_timed_out {
            task.timed_out(&report);
        }
        let wakes_at = [target.changes_at, due_at.map(|(.., at)| at.max(failures.retry_at))];
        let wakes_at = wakes_at.into_iter().flatten().min();
        let is_running = tokio::select! {
            changed = reports.changed() => changed.is_ok(),
            () = sleep_until(wakes_at.unwrap_or_else(Instant::now)), if wakes_at.is_some() => true,
        };
        if !is_running {
            // The watch of the Node has ended: the process stops, and aborts this task.
            return std::future::pending().await;
        }
    }
}

/// The write that is due, and when; `None` if the Node shows what it should.
fn due_at(
    report: &NodeReport,
    target: DelayTarget,
    written: Option<&Written>,
    failures: &Failures,
) -> Option<(String, bool, Instant)> {
    let node = report.node.as_ref()?;
    let is_delayed = target
        .is_delayed
        .filter(|wanted| *wanted != node.is_deletion_delayed())?;
    let echo = written.filter(|written| written.uid == node.uid && written.is_delayed == is_delayed);
    let at = echo.map_or_else(Instant::now, |written| written.at + ECHO_TIMEOUT);
    Some((node.uid.clone(), is_delayed, at.max(failures.retry_at)))
}

impl DeletionDelayTask {
    async fn write(
        &self,
        nodes: &Api<Decoded<PartialObjectMeta<Node>>>,
        uid: &str,
        is_delayed: bool,
    ) -> Result<(), (WriteOutcome, String)> {
        let value = is_delayed.then_some(VALUE);
        let patch = json!({"metadata": {"uid": uid, "annotations": {DELETION_DELAY_ANNOTATION: value}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let write = nodes.patch(&self.node_name, &params, &patch);
        let answer = timeout(WRITE_TIMEOUT, write).await.map_err(|_| {
            let error = format!("the API server did not answer within {} s", WRITE_TIMEOUT.as_secs());
            (WriteOutcome::Timeout, error)
        })?;
        answer.map_err(|error| (outcome_of(&error), headgate_telemetry::error_chain(&error)))?;
        let outcome = if is_delayed {
            WriteOutcome::Set
        } else {
            WriteOutcome::Removed
        };
        self.metrics.count_write(outcome);
        tracing::info!(
            node = self.node_name,
            outcome = outcome.as_str(),
            "annotation that delays the deletion of the node written"
        );
        Ok(())
    }

    fn failed(&self, failures: &mut Failures, outcome: WriteOutcome, error: &str) {
        self.metrics.count_write(outcome);
        // The backoff has no last element.
        let delay = failures.delays.next().unwrap_or(MAX_BACKOFF);
        failures.retry_at = Instant::now() + delay;
        if failures.logged == Some(outcome) {
            return;
        }
        failures.logged = Some(outcome);
        let hint = if outcome == WriteOutcome::Forbidden {
            "; the component manifests/components/delay-deletion grants patch on nodes"
        } else {
            ""
        };
        tracing::warn!(
            node = self.node_name,
            outcome = outcome.as_str(),
            error,
            "annotation that delays the deletion of the node not written{hint}"
        );
    }

    /// Reports that the deletion goes on although the node has not left its load balancers.
    fn timed_out(&self, report: &NodeReport) {
        self.metrics.count_timeout();
        let observed = report.node.as_ref();
        let marker = observed.and_then(|node| node.marker.as_ref());
        let marker = marker.map_or("the condition headgate.dev/OutOfLoadBalancers is missing", |marker| {
            marker.message.as_str()
        });
        let seconds = self.timeout.unwrap_or_default().as_secs();
        let note = format!(
            "headgate no longer delays the deletion of the node by Cluster Autoscaler: it has not left its load balancers within {seconds} s \
             (holdDeletion.timeout): {marker}"
        );
        tracing::warn!(node = self.node_name, timeout = ?self.timeout, marker, "deletion of the node no longer delayed");
        let about = self.events.own_node(observed.map(|node| &*node.uid));
        self.events.record(about, TIMED_OUT, note);
    }
}

fn outcome_of(error: &kube::Error) -> WriteOutcome {
    match error {
        kube::Error::Api(status) => match status.code {
            401 | 403 => WriteOutcome::Forbidden,
            404 => WriteOutcome::Missing,
            409 | 422 => WriteOutcome::Conflict,
            _ => WriteOutcome::Error,
        },
        kube::Error::HyperError(_) | kube::Error::Service(_) => WriteOutcome::Connection,
        _ => WriteOutcome::Error,
    }
}
