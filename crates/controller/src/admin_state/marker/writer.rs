//! Writes the conditions: a change of the status at once, everything else with the next confirmation.
//!
//! `headgate_node::MarkerState` decides what is due.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use headgate_clock::Clock;
use headgate_kubernetes::Decoded;
use headgate_leader::Term;
use headgate_node::{DueMarker, MarkerState, NodeIdentity, WrittenMarker, write_marker};
use headgate_telemetry::{Reconcile, ReconcileSpan, Reconciled};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::evaluation::Markers;

/// For one write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_CONCURRENT_WRITES: usize = 8;
/// Then what has changed meanwhile is considered: a confirmation never delays a change by more.
const MAX_WRITES_PER_ROUND: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// The counter of writes. Clones share it.
#[derive(Clone, Debug)]
pub struct MarkerMetrics {
    writes: Family<OutcomeLabels, Counter>,
}

impl MarkerMetrics {
    const OUTCOMES: [&'static str; 5] = ["changed", "confirmed", "error", "forbidden", "gone"];

    /// Registers the counter.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let writes = Family::<OutcomeLabels, Counter>::default();
        for outcome in Self::OUTCOMES {
            drop(writes.get_or_create(&OutcomeLabels { outcome }));
        }
        registry.register(
            "headgate_marker_writes",
            "Attempts of the leader to write the Node condition headgate.dev/OutOfLoadBalancers, by outcome",
            writes.clone(),
        );
        Self { writes }
    }

    fn count(&self, outcome: &'static str) {
        self.writes.get_or_create(&OutcomeLabels { outcome }).inc();
    }
}

/// Writes the conditions of a term.
#[derive(Clone)]
pub struct MarkerWriter {
    /// A client of the API server that does not retry by itself.
    pub client: Client,
    /// The counter of writes.
    pub metrics: MarkerMetrics,
    /// Wall and monotonic time.
    pub clock: Clock,
}

impl MarkerWriter {
    /// Writes until the term ends; never ends by itself. `markers` has what each condition should say, and what it says.
    pub(in super::super) async fn run(self, term: Term, mut markers: watch::Receiver<Arc<Markers>>) {
        let nodes = Api::<Decoded<Node>>::all(self.client.clone());
        let mut written: HashMap<String, WrittenMarker> = HashMap::new();
        loop {
            let states = Arc::clone(&markers.borrow_and_update());
            let now = Instant::now();
            written.retain(|name, attempt| states.contains_key(name) || attempt.is_recent(now));
            let (mut now_due, mut next_at) = (Vec::new(), None);
            for (name, state) in &*states {
                match state.due(written.get(name), Instant::now()) {
                    DueMarker::NotBefore(at) => next_at = next_at.into_iter().chain(at).min(),
                    due => now_due.push((name, state, due)),
                }
            }
            let is_idle = now_due.is_empty();
            // Changes first: a tool may wait for them.
            now_due.sort_by_key(|(.., due)| *due == DueMarker::Confirmation);
            now_due.truncate(MAX_WRITES_PER_ROUND);
            let now_due: Vec<_> = now_due
                .into_iter()
                .map(|(name, state, due)| (name.clone(), state.clone(), due))
                .collect();
            let mut outcomes = stream::iter(now_due)
                .map(|(name, state, due)| {
                    let (writer, nodes, term) = (self.clone(), nodes.clone(), term.clone());
                    async move {
                        let span = ReconcileSpan::start(Reconciled::Marker, || Reconcile {
                            term: Some(term.number()),
                            node: Some(&name),
                            ..Reconcile::default()
                        });
                        let outcome = span.run(writer.write(&nodes, &term, &name, &state, due, &span)).await;
                        (name, state.attempted(outcome.is_ok(), Instant::now()), outcome)
                    }
                })
                .buffer_unordered(MAX_CONCURRENT_WRITES);
            while let Some((name, attempt, outcome)) = outcomes.next().await {
                self.metrics.count(outcome.unwrap_or_else(|outcome| outcome));
                written.insert(name, attempt);
            }
            drop(outcomes);
            if !is_idle {
                continue;
            }
            tokio::select! {
                changed = markers.changed() => if changed.is_err() {
                    // The controller ends with the term, and so does this task.
                    return std::future::pending().await;
                },
                () = sleep_until(next_at.unwrap_or_else(Instant::now)), if next_at.is_some() => {}
            }
        }
    }

    /// Writes one condition; returns the outcome that the metric counts.
    async fn write(
        &self,
        nodes: &Api<Decoded<Node>>,
        term: &Term,
        name: &str,
        state: &MarkerState,
        due: DueMarker,
        span: &ReconcileSpan,
    ) -> Result<&'static str, &'static str> {
        if term.permit().is_err() {
            return Err("error");
        }
        let identity = NodeIdentity {
            uid: &state.uid,
            resource_version: None,
        };
        let now = self.clock.now().wall;
        let write = write_marker(nodes, name, identity, &state.wanted, due == DueMarker::Transition, now);
        let (outcome, error) = match timeout(WRITE_TIMEOUT, write).await {
            Ok(Ok(())) if due == DueMarker::Confirmation => return Ok("confirmed"),
            Ok(Ok(())) => return Ok("changed"),
            Ok(Err(error)) => {
                let outcome = match &error {
                    kube::Error::Api(status) if matches!(status.code, 401 | 403) => "forbidden",
                    // No Node, or another one of this name.
                    kube::Error::Api(status) if matches!(status.code, 404 | 409) => "gone",
                    _ => "error",
                };
                (outcome, headgate_telemetry::error_chain(&error))
            }
            Err(_) => ("error", format!("no answer within {} s", WRITE_TIMEOUT.as_secs())),
        };
        if outcome != "gone" {
            span.fail(outcome, &error);
            tracing::warn!(node = name, outcome, error, "marker not written, retrying");
        }
        Err(outcome)
    }
}
