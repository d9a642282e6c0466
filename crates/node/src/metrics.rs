//! What the own-Node watch counts and shows.

use headgate_kubernetes::WATCH_ERROR_REASONS;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::report::{Presence, Report};
use super::signal::Signal;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// Counters of the watch.
#[derive(Clone, Debug)]
pub struct Metrics {
    errors: Family<ReasonLabels, Counter>,
    lists: Counter,
}

impl Metrics {
    /// Registers the watch's counters, and gauges computed from the reports at each scrape.
    #[must_use]
    pub fn register(registry: &mut Registry, reports: watch::Receiver<Report>, taint_keys: Vec<String>) -> Self {
        let metrics = Self {
            errors: Family::default(),
            lists: Counter::default(),
        };
        for reason in WATCH_ERROR_REASONS {
            drop(metrics.errors.get_or_create(&ReasonLabels { reason }));
        }
        registry.register(
            "headgate_node_watch_errors",
            "Errors of the own-Node list and watch, by reason",
            metrics.errors.clone(),
        );
        registry.register(
            "headgate_node_watch_lists",
            "Lists of the own Node that began: one at start, one more for each restart of the watch",
            metrics.lists.clone(),
        );
        registry.register_collector(Box::new(Reports { reports, taint_keys }));
        metrics
    }

    pub(super) fn error(&self, reason: &'static str) {
        self.errors.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(super) fn list(&self) {
        self.lists.inc();
    }
}

/// Gauges read from the latest report.
#[derive(Debug)]
struct Reports {
    reports: watch::Receiver<Report>,
    taint_keys: Vec<String>,
}

impl Collector for Reports {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let report = self.reports.borrow().clone();
        let mut signals = encoder.encode_descriptor(
            "headgate_node_signal",
            "1 for each drain signal in force on this node, 0 for each that is watched for.",
            None,
            MetricType::Gauge,
        )?;
        let watched = self.taint_keys.iter().cloned().map(Signal::Taint);
        for signal in watched.chain([Signal::Deletion, Signal::Shutdown]) {
            let value = ConstGauge::new(i64::from(report.signals.contains_key(&signal)));
            value.encode(signals.encode_family(&[("signal", signal.to_string())])?)?;
        }
        let mut presence = encoder.encode_descriptor(
            "headgate_node_object",
            "1 for what is known of this node's Node object: unknown, present, missing or deleted.",
            None,
            MetricType::Gauge,
        )?;
        for state in Presence::ALL {
            let value = ConstGauge::new(i64::from(report.presence == state));
            value.encode(presence.encode_family(&[("state", state.as_str())])?)?;
        }
        Ok(())
    }
}
