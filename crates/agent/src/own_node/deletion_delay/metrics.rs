//! The metrics of the annotation that delays the own node's deletion.

use headgate_core::node::{Node, NodeReport};
use headgate_core::telemetry::MetricTable;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::watch;

/// The counter of timeouts.
#[derive(Clone, Debug)]
pub struct DeletionDelayMetrics {
    timeouts: Counter,
}

impl DeletionDelayMetrics {
    /// Registers the counter, and a gauge that is computed from the latest report at each scrape.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>, reports: watch::Receiver<NodeReport>) -> Self {
        let mut table = registry.into();
        let timeouts = table.metric(
            "headgate_deletion_delay_timeouts",
            "Deletions of the own node for which Cluster Autoscaler's annotation was removed because delayTermination.clusterAutoscaler \
            was over",
        );
        table.at_scrape(move |gauges| {
            let is_delayed = {
                let report = reports.borrow();
                report.node.as_ref().is_some_and(Node::is_deletion_delayed)
            };
            gauges.gauge(
                "headgate_deletion_delayed",
                "1 while the own Node has headgate's annotation that delays Cluster Autoscaler, else 0.",
                i64::from(is_delayed),
            )
        });
        Self { timeouts }
    }

    pub(super) fn count_timeout(&self) {
        self.timeouts.inc();
    }
}
