//! The taint reconciler: brings the draining taint and the recorded notice of the own Node to their target state.
//!
//! The watch of the own Node shows when there may be something to change. The change is then planned again on a fresh
//! read of the Node, and written only if the Node still has that version. After a conflict (422: the test in the
//! patch failed) the Node is read again at once, a few times. Other failures are retried with backoff and logged once
//! for each kind.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use headgate_clock::Clock;
use headgate_kubernetes::Decoded;
use headgate_node::NodeReport;
use headgate_telemetry::{Reconcile, ReconcileSpan, Reconciled};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::metrics::{Metrics, WriteOutcome};
use super::node_patch::{NodePatch, plan_patch};
use super::snapshot::EventsSnapshot;
use super::taint_action::{NoticeRecord, next_taint_action};

/// Time for one read and write. An API server that works answers in milliseconds.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Conflicts after which the Node is read again without backoff.
const MAX_IMMEDIATE_RETRIES: usize = 5;
/// The backoff after the first failure; short, since a notice is.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// The longest backoff. There is no jitter: notices reach the nodes at different times.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// The time between two attempts to remove a taint without confirmation where the API server refuses them.
const REFUSED_REMOVAL_DELAY: Duration = Duration::from_mins(5);
/// Time in which the watch shows a write; after it the state is evaluated again.
const WATCH_LAG_TIMEOUT: Duration = Duration::from_secs(5);

/// Why an attempt failed.
#[derive(Debug)]
struct AttemptError {
    outcome: WriteOutcome,
    error: String,
}

fn backoff() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(MIN_BACKOFF)
        .with_max_delay(MAX_BACKOFF)
        .without_max_times()
        .build()
}

/// Reconciles the taint of the Node `name` until the task is aborted.
pub async fn reconcile_taint(
    client: Client,
    name: String,
    mut reports: watch::Receiver<NodeReport>,
    mut snapshots: watch::Receiver<EventsSnapshot>,
    metrics: Metrics,
    clock: Clock,
) {
    let nodes =
        Api::<Decoded<DynamicObject>>::all_with(client, &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()));
    let (mut delays, mut failures, mut logged) = (backoff(), 0, None);
    loop {
        reports.mark_unchanged();
        snapshots.mark_unchanged();
        let now = clock.now().wall;
        let recheck_after = if is_change_due(&reports.borrow(), &snapshots.borrow(), now) {
            let span = ReconcileSpan::start(Reconciled::DrainingTaint, || Reconcile {
                node: Some(&name),
                ..Reconcile::default()
            });
            let attempt = span.run(attempt(&nodes, &name, &snapshots, &clock));
            let outcome = timeout(ATTEMPT_TIMEOUT, attempt).await.unwrap_or_else(|_| {
                let error = format!("the API server did not answer within {} s", ATTEMPT_TIMEOUT.as_secs());
                Err(AttemptError {
                    outcome: WriteOutcome::Timeout,
                    error,
                })
            });
            match outcome {
                Ok(written) => {
                    if let Some(outcome) = written {
                        metrics.count_write(outcome);
                        let outcome = outcome.as_str();
                        tracing::info!(node = name, outcome, "draining taint and recorded notice written");
                    }
                    (delays, failures, logged) = (backoff(), 0, None);
                    Some(WATCH_LAG_TIMEOUT)
                }
                Err(failure) => {
                    failures += 1;
                    span.fail(failure.outcome.as_str(), &failure.error);
                    metrics.count_write(failure.outcome);
                    let is_immediate = failure.outcome == WriteOutcome::Conflict && failures <= MAX_IMMEDIATE_RETRIES;
                    // The backoff has no last element.
                    let delay = delays.next().unwrap_or(MAX_BACKOFF);
                    if !is_immediate && logged != Some(failure.outcome) {
                        logged = Some(failure.outcome);
                        log_failure(&name, &failure);
                    }
                    // Without the feature there may be no right either, and the removal is not urgent.
                    let is_refused =
                        failure.outcome == WriteOutcome::Forbidden && snapshots.borrow().tracker.is_unconfirmed;
                    let delay = if is_refused { REFUSED_REMOVAL_DELAY } else { delay };
                    sleep(if is_immediate { Duration::ZERO } else { delay }).await;
                    continue;
                }
            }
        } else {
            (delays, failures) = (backoff(), 0);
            removal_delay(&reports.borrow(), &snapshots.borrow(), now)
        };
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

/// Whether the latest watched version of the Node is not in the target state.
fn is_change_due(report: &NodeReport, snapshot: &EventsSnapshot, now: Timestamp) -> bool {
    report.node.as_ref().is_some_and(|node| {
        let record = NoticeRecord::from_annotations(&node.annotations);
        next_taint_action(&snapshot.tracker, record.as_ref(), &node.boot_id, now).is_some()
    })
}

/// The time until a taint without confirmation ends.
fn removal_delay(report: &NodeReport, snapshot: &EventsSnapshot, now: Timestamp) -> Option<Duration> {
    let node = report.node.as_ref().filter(|_| snapshot.tracker.is_unconfirmed)?;
    let deadline = NoticeRecord::from_annotations(&node.annotations)?.confirmation_deadline()?;
    Duration::try_from(deadline.duration_since(now)).ok()
}

fn log_failure(name: &str, failure: &AttemptError) {
    let hint = if failure.outcome == WriteOutcome::Forbidden {
        "; the component manifests/components/spot grants patch on nodes"
    } else {
        ""
    };
    tracing::warn!(
        node = name,
        outcome = failure.outcome.as_str(),
        error = failure.error,
        "draining taint not written, /healthz does not depend on it{hint}"
    );
}

/// Reads the Node and writes what is missing; returns the outcome of the write, if one was necessary.
async fn attempt(
    nodes: &Api<Decoded<DynamicObject>>,
    name: &str,
    snapshots: &watch::Receiver<EventsSnapshot>,
    clock: &Clock,
) -> Result<Option<WriteOutcome>, AttemptError> {
    let node = nodes.get(name).await.and_then(Decoded::into_object);
    let node = node.map_err(|error| attempt_error(&error))?;
    let tracker = snapshots.borrow().tracker.clone();
    let Some(NodePatch { outcome, operations }) = plan_patch(&tracker, &node, clock.now().wall) else {
        return Ok(None);
    };
    let patch = serde_json::from_value(operations).map_err(|error| AttemptError {
        outcome: WriteOutcome::Error,
        error: error.to_string(),
    })?;
    let patched = nodes
        .patch(name, &PatchParams::default(), &Patch::<()>::Json(patch))
        .await;
    patched.map(|_| Some(outcome)).map_err(|error| attempt_error(&error))
}

fn attempt_error(error: &kube::Error) -> AttemptError {
    let outcome = match error {
        kube::Error::Api(status) => match status.code {
            401 | 403 => WriteOutcome::Forbidden,
            404 => WriteOutcome::Missing,
            // 422 is a failed test, or a Node that the API server rejects: both are read again.
            409 | 422 => WriteOutcome::Conflict,
            _ => WriteOutcome::Error,
        },
        kube::Error::HyperError(_) | kube::Error::Service(_) => WriteOutcome::Connection,
        _ => WriteOutcome::Error,
    };
    AttemptError {
        outcome,
        error: headgate_telemetry::error_chain(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_its_maximum() {
        let delay_after = |failures: usize| backoff().nth(failures - 1).unwrap();
        let delays: Vec<_> = [1, 2, 3, 7, 8, 40].map(|n| delay_after(n).as_millis()).into();
        assert_eq!(delays, [100, 200, 400, 6400, 10_000, 10_000]);
    }
}
