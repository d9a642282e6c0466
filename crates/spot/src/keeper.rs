//! The keeper of the taint: carries out on the own Node what is wished for it.
//!
//! The watch of the own Node says when there may be something to do; what is done is decided again on a
//! Node freshly read, and written only if that very Node is still the one. A Node that changed in between
//! (422, the patch's test failed) is read again at once, a few times; anything else waits longer each
//! time, and is told once for each reason.

use std::time::Duration;

use headgate_clock::Clock;
use headgate_node::Report;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::edit::{Edit, edit};
use super::metrics::Metrics;
use super::seen::Seen;
use super::taint::{Record, wish};

/// Bound on one reading and writing; the API server answers in milliseconds or is in trouble.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a Node that changed meanwhile is read again at once.
const QUICK_ATTEMPTS: u32 = 5;
/// The first wait after a failure. A notice is short.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait. No jitter: each node's notice comes at a time of its own.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How long the watch may take to show what was written before it is looked at again.
const WATCH_LAG: Duration = Duration::from_secs(5);

/// Why an attempt failed.
#[derive(Debug)]
struct Failure {
    outcome: &'static str,
    error: String,
}

/// Keeps the taint of the Node `name` for ever; never returns of itself.
pub async fn keep(
    client: Client,
    name: String,
    mut reports: watch::Receiver<Report>,
    mut seen: watch::Receiver<Seen>,
    metrics: Metrics,
    clock: Clock,
) {
    let nodes = Api::<DynamicObject>::all_with(client, &ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&()));
    let mut failures = 0;
    let mut told = None;
    loop {
        reports.mark_unchanged();
        seen.mark_unchanged();
        let wait = if is_wished(&reports.borrow(), &seen.borrow()) {
            let attempt = attempt(&nodes, &name, &seen, &clock);
            let outcome = timeout(ATTEMPT_TIMEOUT, attempt).await.unwrap_or_else(|_| {
                let error = format!("the API server did not answer within {} s", ATTEMPT_TIMEOUT.as_secs());
                Err(Failure {
                    outcome: "timeout",
                    error,
                })
            });
            match outcome {
                Ok(done) => {
                    if let Some(outcome) = done {
                        metrics.write(outcome);
                        tracing::info!(node = name, outcome, "the draining taint and the record of its notice");
                    }
                    (failures, told) = (0, None);
                    Some(WATCH_LAG)
                }
                Err(failure) => {
                    failures += 1;
                    metrics.write(failure.outcome);
                    let quick = failure.outcome == "conflict" && failures <= QUICK_ATTEMPTS;
                    if !quick && told != Some(failure.outcome) {
                        told = Some(failure.outcome);
                        tell(&name, &failure);
                    }
                    sleep(if quick { Duration::ZERO } else { wait_after(failures) }).await;
                    continue;
                }
            }
        } else {
            failures = 0;
            None
        };
        let more = tokio::select! {
            changed = reports.changed() => changed.is_ok(),
            changed = seen.changed() => changed.is_ok(),
            () = sleep(wait.unwrap_or_default()), if wait.is_some() => true,
        };
        if !more {
            // A sender is gone: the process is stopping, and this task with it.
            return std::future::pending().await;
        }
    }
}

/// Whether the Node as it was last watched leaves something to do.
fn is_wished(report: &Report, seen: &Seen) -> bool {
    report.facts.as_ref().is_some_and(|facts| {
        let record = Record::in_annotations(&facts.annotations);
        wish(&seen.follow, record.as_ref(), &facts.boot_id).is_some()
    })
}

fn wait_after(failures: u32) -> Duration {
    FIRST_WAIT
        .saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)))
        .min(LONGEST_WAIT)
}

fn tell(name: &str, failure: &Failure) {
    let hint = if failure.outcome == "forbidden" {
        "; the component manifests/components/spot grants patch on nodes"
    } else {
        ""
    };
    tracing::warn!(
        node = name,
        outcome = failure.outcome,
        error = failure.error,
        "the draining taint cannot be changed, /healthz does not depend on it; trying again{hint}"
    );
}

/// Reads the Node and writes what it lacks; says what was written, if anything was.
async fn attempt(
    nodes: &Api<DynamicObject>,
    name: &str,
    seen: &watch::Receiver<Seen>,
    clock: &Clock,
) -> Result<Option<&'static str>, Failure> {
    let node = nodes.get(name).await.map_err(|error| failure(&error))?;
    let follow = seen.borrow().follow.clone();
    let Some(Edit { outcome, operations }) = edit(&follow, &node, clock.now().wall) else {
        return Ok(None);
    };
    let patch = serde_json::from_value(operations).map_err(|error| Failure {
        outcome: "error",
        error: error.to_string(),
    })?;
    let patched = nodes
        .patch(name, &PatchParams::default(), &Patch::<()>::Json(patch))
        .await;
    patched.map(|_| Some(outcome)).map_err(|error| failure(&error))
}

fn failure(error: &kube::Error) -> Failure {
    let outcome = match error {
        kube::Error::Api(status) => match status.code {
            401 | 403 => "forbidden",
            404 => "missing",
            // A failed test is a 422, as a Node that the API server will not have is too: both are read again.
            409 | 422 => "conflict",
            _ => "error",
        },
        kube::Error::HyperError(_) | kube::Error::Service(_) => "connection",
        _ => "error",
    };
    Failure {
        outcome,
        error: headgate_telemetry::chain(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound() {
        let waits: Vec<_> = [1, 2, 3, 7, 8, 40].map(|n| wait_after(n).as_millis()).into();
        assert_eq!(waits, [100, 200, 400, 6400, 10_000, 10_000]);
    }
}
