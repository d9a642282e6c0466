//! The metrics of the annotation that delays the own node's deletion.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::node::Node;
use crate::report::NodeReport;

/// The outcome of an attempt to write the annotation; the label `outcome` of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// The Node is another one under the same name.
    Conflict,
    /// The API server was not reachable.
    Connection,
    /// A failure of another kind.
    Error,
    /// The credentials lack the right to patch Nodes, or a policy refuses the annotation.
    Forbidden,
    /// The Node does not exist.
    Missing,
    /// The annotation was removed.
    Removed,
    /// The annotation was set.
    Set,
    /// The API server did not answer in time.
    Timeout,
}

impl WriteOutcome {
    const ALL: [Self; 8] = [
        Self::Conflict,
        Self::Connection,
        Self::Error,
        Self::Forbidden,
        Self::Missing,
        Self::Removed,
        Self::Set,
        Self::Timeout,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Connection => "connection",
            Self::Error => "error",
            Self::Forbidden => "forbidden",
            Self::Missing => "missing",
            Self::Removed => "removed",
            Self::Set => "set",
            Self::Timeout => "timeout",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// The counters of writes and of timeouts.
#[derive(Clone, Debug)]
pub struct DeletionDelayMetrics {
    writes: Family<OutcomeLabels, Counter>,
    timeouts: Counter,
}

impl DeletionDelayMetrics {
    /// Registers the counters, and a gauge that is computed from the latest report at each scrape.
    #[must_use]
    pub fn register(registry: &mut Registry, reports: watch::Receiver<NodeReport>) -> Self {
        let metrics = Self {
            writes: Family::default(),
            timeouts: Counter::default(),
        };
        for outcome in WriteOutcome::ALL {
            let outcome = outcome.as_str();
            drop(metrics.writes.get_or_create(&OutcomeLabels { outcome }));
        }
        registry.register(
            "headgate_deletion_delay_writes",
            "Attempts to set or remove the annotation by which Cluster Autoscaler waits before it deletes the own node, by outcome",
            metrics.writes.clone(),
        );
        registry.register(
            "headgate_deletion_delay_timeouts",
            "Deletions of the own node by Cluster Autoscaler for which the annotation was removed because holdDeletion.timeout was over",
            metrics.timeouts.clone(),
        );
        registry.register_collector(Box::new(DelayCollector(reports)));
        metrics
    }

    pub(super) fn count_write(&self, outcome: WriteOutcome) {
        let outcome = outcome.as_str();
        self.writes.get_or_create(&OutcomeLabels { outcome }).inc();
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
            "1 while the own Node has headgate's annotation by which Cluster Autoscaler waits before it deletes the node, else 0.",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::from(is_delayed)).encode(gauge)
    }
}
