//! The metrics of the annotation that delays the own node's deletion.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use headgate_core::node::Node;
use headgate_core::node::NodeReport;

/// The counter of timeouts.
#[derive(Clone, Debug)]
pub struct DeletionDelayMetrics {
    timeouts: Counter,
}

impl DeletionDelayMetrics {
    /// Registers the counter, and a gauge that is computed from the latest report at each scrape.
    #[must_use]
    pub fn register(registry: &mut Registry, reports: watch::Receiver<NodeReport>) -> Self {
        let metrics = Self {
            timeouts: Counter::default(),
        };
        registry.register(
            "headgate_deletion_delay_timeouts",
            "Deletions of the own node for which Cluster Autoscaler's annotation was removed because delayTermination.clusterAutoscaler \
            was over",
            metrics.timeouts.clone(),
        );
        registry.register_collector(Box::new(DelayCollector(reports)));
        metrics
    }

    pub(super) fn count_timeout(&self) {
        self.timeouts.inc();
    }
}

/// Whether the latest report shows the annotation.
#[derive(Debug)]
struct DelayCollector(watch::Receiver<NodeReport>);

impl Collector for DelayCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let is_delayed = {
            let report = self.0.borrow();
            report.node.as_ref().is_some_and(Node::is_deletion_delayed)
        };
        let gauge = encoder.encode_descriptor(
            "headgate_deletion_delayed",
            "1 while the own Node has headgate's annotation that delays Cluster Autoscaler, else 0.",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::from(is_delayed)).encode(gauge)
    }
}
