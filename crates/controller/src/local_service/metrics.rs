//! The metrics of the updater of Local Services' pools.

use std::sync::atomic::AtomicU64;

use headgate_clock::{Clock, Moment};
use headgate_kubernetes::{ClusterEventRecorder, WatchErrorCounter, WatchReporter};
use headgate_local_pools::{Counters, Operation, QueueStatus, Updater};
use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::watch::WatchReporters;

/// Bounds the answer of `/statusz`.
const MAX_QUEUED_SHOWN: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// A queued update, for `/statusz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedUpdate {
    /// `NAMESPACE/NAME`.
    pub service: String,
    /// `LOAD BALANCER/POOL`, in lower case.
    pub pool: String,
    /// Since when an update of the pool has been pending.
    pub pending_since: Timestamp,
    /// Failed attempts so far.
    pub retries: u32,
    /// ARM asked to wait until then.
    pub parked_until: Option<Timestamp>,
}

/// The metrics of the updater, and its queue for `/statusz`. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    updates: Family<ResultLabel, Counter>,
    retries: Counter,
    dropped: Counter,
    rejected: Counter,
    depth: Gauge,
    oldest_age: Gauge<f64, AtomicU64>,
    parked: Gauge,
    watch_errors: WatchErrorCounter,
    queued: watch::Sender<Vec<QueuedUpdate>>,
}

impl Metrics {
    /// Registers the metrics, whose names are in docs/metrics.md.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            updates: Family::default(),
            retries: Counter::default(),
            dropped: Counter::default(),
            rejected: Counter::default(),
            depth: Gauge::default(),
            oldest_age: Gauge::default(),
            parked: Gauge::default(),
            queued: watch::Sender::default(),
            watch_errors: WatchErrorCounter::register(
                registry,
                "headgate_local_pools_watch_errors",
                "Errors of the leader's watches of Services and EndpointSlices, by reason",
            ),
        };
        for result in ["success", "failure"] {
            let _ = metrics.updates.get_or_create(&ResultLabel { result });
        }
        registry.register(
            "headgate_local_pools_updates",
            "Updates of a Local Service's backend pool that have ended, by result; retries and updates without a change do not count",
            metrics.updates.clone(),
        );
        registry.register(
            "headgate_local_pools_retries",
            "Updates of a Local Service's backend pool that were put back into the queue after a failure",
            metrics.retries.clone(),
        );
        registry.register(
            "headgate_local_pools_dropped",
            "Updates that were dropped quietly, because the Service or the pool is gone or the Service has moved",
            metrics.dropped.clone(),
        );
        registry.register(
            "headgate_local_pools_rejected",
            "Updates that a full queue did not take; the next tick finds them again",
            metrics.rejected.clone(),
        );
        registry.register(
            "headgate_local_pools_queue_depth",
            "Updates of Local Services' backend pools that are queued; on the leader only",
            metrics.depth.clone(),
        );
        registry.register(
            "headgate_local_pools_oldest_update_seconds",
            "Seconds for which the queued update that has been pending longest has been pending; on the leader only",
            metrics.oldest_age.clone(),
        );
        registry.register(
            "headgate_local_pools_parked",
            "Backend pools that wait because ARM throttles requests; on the leader only",
            metrics.parked.clone(),
        );
        metrics
    }

    /// The reporters of the watches that feed the updater.
    #[must_use]
    pub fn watch_reporters(&self, clock: &Clock, events: &ClusterEventRecorder) -> WatchReporters {
        let reporter = |resource| {
            let reporter = WatchReporter::new(resource, self.watch_errors.clone(), clock.clone());
            reporter.with_events(Some(events.clone()))
        };
        WatchReporters {
            services: reporter("services"),
            endpoint_slices: reporter("endpointslices"),
        }
    }

    /// Counts what has happened from `before` to `now`.
    pub(super) fn add(&self, now: Counters, before: Counters) {
        let updates = |result| self.updates.get_or_create_owned(&ResultLabel { result });
        updates("success").inc_by(now.succeeded.saturating_sub(before.succeeded));
        updates("failure").inc_by(now.failed.saturating_sub(before.failed));
        self.retries.inc_by(now.retried.saturating_sub(before.retried));
        self.dropped.inc_by(now.dropped.saturating_sub(before.dropped));
        self.rejected.inc_by(now.rejected.saturating_sub(before.rejected));
    }

    /// The first 100 queued updates; empty on an instance that does not lead.
    #[must_use]
    pub fn queued_updates(&self) -> watch::Receiver<Vec<QueuedUpdate>> {
        self.queued.subscribe()
    }

    /// Clears what an instance that does not lead has none of.
    pub fn clear_queue(&self) {
        self.set_queue(QueueStatus::default(), Vec::new());
    }

    /// Shows the queue as it is now.
    pub(super) fn publish_queue(&self, updater: &Updater, now: Moment) {
        let update = |operation: &Operation| QueuedUpdate {
            service: operation.key.service.to_string(),
            pool: operation.key.pool.to_string(),
            pending_since: now.wall_at(operation.pending_since),
            retries: operation.retry_count,
            parked_until: operation
                .next_eligible_at
                .filter(|eligible_at| *eligible_at > now.mono)
                .map(|eligible_at| now.wall_at(eligible_at)),
        };
        let queued = updater.queue().iter().take(MAX_QUEUED_SHOWN).map(update);
        self.set_queue(updater.queue_status(now.mono), queued.collect());
    }

    fn set_queue(&self, status: QueueStatus, queued: Vec<QueuedUpdate>) {
        self.queued.send_replace(queued);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.depth.set(count(status.depth));
        self.oldest_age.set(status.oldest_age.unwrap_or_default().as_secs_f64());
        self.parked.set(count(status.parked_pools));
    }
}
