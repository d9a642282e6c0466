//! The metrics of the updater of Local Services' pools.

use headgate_core::clock::Moment;
use headgate_core::telemetry::{ByLabel, MetricTable};
use headgate_kubernetes::WatchErrorCounter;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::local_pools::{Counters, Operation, QueueStatus, Updater};

/// Bounds the answer of `/statusz`.
const MAX_QUEUED_SHOWN: usize = 100;

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
    updates: ByLabel<Counter>,
    retries: Counter,
    dropped: Counter,
    depth: Gauge,
    oldest_since: Gauge,
    parked: Gauge,
    watch_errors: WatchErrorCounter,
    queued: watch::Sender<Vec<QueuedUpdate>>,
}

impl Metrics {
    /// Registers the metrics, whose names are in docs/reference/metrics.md.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>) -> Self {
        let mut table = registry.into();
        Self {
            updates: table.by_label(
                "headgate_local_pools_updates",
                "Updates of a Local Service's backend pool that have ended, by result; without retries and updates without a change",
                "result",
                ["success", "failure"],
            ),
            retries: table.metric(
                "headgate_local_pools_retries",
                "Updates of a Local Service's backend pool that are tried again after a failure",
            ),
            dropped: table.metric(
                "headgate_local_pools_dropped",
                "Updates of Local Services' pools that were dropped, because the Service, its slices or the pool is gone or the Service has moved",
            ),
            depth: table.metric(
                "headgate_local_pools_queue_depth",
                "Updates of Local Services' backend pools that are queued; on the leader only",
            ),
            oldest_since: table.metric(
                "headgate_local_pools_oldest_update_timestamp_seconds",
                "Unix time since which the oldest queued update has been pending, 0 if none is; on the leader only",
            ),
            parked: table.metric(
                "headgate_local_pools_parked",
                "Backend pools that wait because ARM throttles requests; on the leader only",
            ),
            watch_errors: WatchErrorCounter::declare(
                &mut table,
                "headgate_local_pools_watch_errors",
                "Errors of the leader's watches of Services and EndpointSlices, by reason",
            ),
            queued: watch::Sender::default(),
        }
    }

    /// Counts the errors of the watches of Services and EndpointSlices.
    pub fn watch_errors(&self) -> WatchErrorCounter {
        self.watch_errors.clone()
    }

    /// Counts what has happened from `before` to `now`.
    pub(super) fn add(&self, now: Counters, before: Counters) {
        self.updates
            .of("success")
            .inc_by(now.succeeded.saturating_sub(before.succeeded));
        self.updates
            .of("failure")
            .inc_by(now.failed.saturating_sub(before.failed));
        self.retries.inc_by(now.retried.saturating_sub(before.retried));
        self.dropped.inc_by(now.dropped.saturating_sub(before.dropped));
    }

    /// The first 100 queued updates, by Service; empty on an instance that does not lead.
    pub fn queued_updates(&self) -> watch::Receiver<Vec<QueuedUpdate>> {
        self.queued.subscribe()
    }

    /// Clears what an instance that does not lead has none of.
    pub(crate) fn clear_queue(&self) {
        self.set_queue(QueueStatus::default(), None, Vec::new());
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
        let status = updater.queue_status(now.mono);
        let oldest = status.oldest_since.map(|since| now.wall_at(since));
        self.set_queue(status, oldest, queued.collect());
    }

    fn set_queue(&self, status: QueueStatus, oldest: Option<Timestamp>, queued: Vec<QueuedUpdate>) {
        self.queued.send_replace(queued);
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.depth.set(count(status.depth));
        self.oldest_since.set(oldest.map_or(0, Timestamp::as_second));
        self.parked.set(count(status.parked_pools));
    }
}
