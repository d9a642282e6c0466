//! The metrics of admin states: what is desired and what is, how much is still to be done, how long it took.

use std::time::Duration;

use headgate_kubernetes::WatchErrorCounter;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::plan::PoolCounts;

/// What the leader's work shows; empty where it does not lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) pools: Vec<PoolCounts>,
    pub(super) pending: usize,
}

/// The metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    took: Histogram,
    watch_errors: WatchErrorCounter,
    summaries: watch::Sender<Summary>,
}

impl Metrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        // From less than ARM needs for anything to longer than any eviction's notice.
        let buckets = [
            0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0,
        ];
        let metrics = Self {
            took: Histogram::new(buckets),
            watch_errors: WatchErrorCounter::register(
                registry,
                "headgate_admin_state_watch_errors",
                "Errors of the leader's watch of all Nodes, by reason",
            ),
            summaries: watch::Sender::default(),
        };
        registry.register(
            "headgate_admin_state_signal_to_down_seconds",
            "From a Node's signal being seen by the leader to Down being read back in every pool",
            metrics.took.clone(),
        );
        registry.register_collector(Box::new(Shown(metrics.summaries.subscribe())));
        metrics
    }

    pub(super) fn watch_errors(&self) -> WatchErrorCounter {
        self.watch_errors.clone()
    }

    pub(super) fn took(&self, time: Duration) {
        self.took.observe(time.as_secs_f64());
    }

    pub(super) fn show(&self, summary: Summary) {
        self.summaries.send_if_modified(|shown| {
            let news = *shown != summary;
            *shown = summary;
            news
        });
    }
}

/// A number of a pool's.
type Count = fn(&PoolCounts) -> usize;

#[derive(Debug)]
struct Shown(watch::Receiver<Summary>);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let summary = self.0.borrow().clone();
        let kind = prometheus_client::metrics::MetricType::Gauge;
        let about = "Changes of admin states that are still to be made; on the leader.";
        let gauge = ConstGauge::new(i64::try_from(summary.pending).unwrap_or(i64::MAX));
        let descriptor = encoder.encode_descriptor("headgate_admin_state_queue_depth", about, None, kind)?;
        gauge.encode(descriptor)?;
        let pools: [(&str, &str, Count); 4] = [
            (
                "headgate_pool_addresses",
                "Addresses in a backend pool that a load-balancing rule uses, by load_balancer and pool; on the leader.",
                |pool| pool.entries,
            ),
            (
                "headgate_pool_desired_down",
                "Addresses that are to be Down, as their Nodes' signals say, by load_balancer and pool; on the leader.",
                |pool| pool.desired_down,
            ),
            (
                "headgate_pool_actual_down",
                "Addresses that are Down, whoever set them, by load_balancer and pool; on the leader.",
                |pool| pool.actual_down,
            ),
            (
                "headgate_pool_eligible",
                "Addresses that get new connections, as far as admin states go, once all changes are made, by load_balancer and pool; on the leader.",
                |pool| pool.eligible,
            ),
        ];
        for (name, about, count) in pools {
            let mut family = encoder.encode_descriptor(name, about, None, kind)?;
            for pool in &summary.pools {
                let labels = [
                    ("load_balancer", pool.pool.load_balancer().name()),
                    ("pool", pool.pool.name()),
                ];
                let gauge = ConstGauge::new(i64::try_from(count(pool)).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
