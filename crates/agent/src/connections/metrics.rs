//! The metrics of the connections through the own node.

use headgate_core::telemetry::{Gauges, MetricTable};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::watch;

use super::drained::ConnectionsView;

/// The counter of connections that were cut.
#[derive(Clone, Debug)]
pub struct ConnectionMetrics {
    cut: Counter,
}

impl ConnectionMetrics {
    /// Registers the counter, and gauges that are computed from the latest count at each scrape.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>, view: watch::Receiver<ConnectionsView>) -> Self {
        let mut table = registry.into();
        table.at_scrape(move |gauges| connection_gauges(&view.borrow().clone(), gauges));
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

/// The last count, if there is one.
fn connection_gauges(view: &ConnectionsView, gauges: &mut Gauges<'_>) -> std::fmt::Result {
    let connections = view.last.iter().flat_map(|(count, _)| {
        view.seen.iter().map(|service| {
            let row = count.services.iter().find(|row| row.service == *service);
            (service.as_str(), row.map_or(0, |row| row.tcp))
        })
    });
    gauges.by_label(
        "headgate_node_connections",
        "TCP connections through the own node, established or half-closed, by Service; counted while the node has a signal, 0 for a \
            Service that had some since.",
        "service",
        connections,
    )
}
