//! The metrics of the connections through the own node.

use headgate_core::telemetry::MetricTable;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

use super::drained::ConnectionsView;

/// The counter of connections that were cut.
#[derive(Clone, Debug)]
pub struct ConnectionMetrics {
    cut: Counter,
}

impl ConnectionMetrics {
    /// Registers the counter, and gauges that are computed from the latest count at each scrape.
    #[must_use]
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>, view: watch::Receiver<ConnectionsView>) -> Self {
        let mut table = registry.into();
        table.collector(CountCollector(view));
        Self {
            cut: table.metric(
                "headgate_node_connections_cut",
                "Connections through the own node when its Node was deleted",
            ),
        }
    }

    pub(super) fn count_cut(&self, connections: u64) {
        self.cut.inc_by(connections);
    }
}

/// The last count.
#[derive(Debug)]
struct CountCollector(watch::Receiver<ConnectionsView>);

impl Collector for CountCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let ConnectionsView { last, seen, .. } = self.0.borrow().clone();
        let mut gauges = encoder.encode_descriptor(
            "headgate_node_connections",
            "Established TCP connections through the own node, by Service; counted while the node has a signal, 0 for a Service that \
            had some since.",
            None,
            MetricType::Gauge,
        )?;
        let Some((count, _)) = last else { return Ok(()) };
        for service in &*seen {
            let row = count.services.iter().find(|row| row.service == *service);
            let connections = row.map_or(0, |row| i64::try_from(row.tcp).unwrap_or(i64::MAX));
            ConstGauge::new(connections).encode(gauges.encode_family(&[("service", service.as_str())])?)?;
        }
        Ok(())
    }
}
