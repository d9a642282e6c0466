//! The metrics of the updater of Local Services' pools.

use std::sync::atomic::AtomicU64;

use headgate_clock::Clock;
use headgate_kubernetes::{WatchErrorCounter, WatchReporter};
use headgate_local_pools::{Counters, QueueStatus};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::watch::WatchReporters;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The metrics of the updater. Clones share them.
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
    pub fn watch_reporters(&self, clock: &Clock) -> WatchReporters {
        let reporter = |resource| WatchReporter::new(resource, self.watch_errors.clone(), clock.clone());
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

    /// Sets the gauges; the default on an instance that does not lead.
    pub fn set_queue(&self, status: QueueStatus) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.depth.set(count(status.depth));
        self.oldest_age.set(status.oldest_age.unwrap_or_default().as_secs_f64());
        self.parked.set(count(status.parked_pools));
    }
}
