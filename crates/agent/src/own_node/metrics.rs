//! The metrics of the own Node and its watch.

use headgate_core::clock::Clock;
use headgate_core::telemetry::MetricTable;
use headgate_kubernetes::{WatchErrorCounter, WatchReporter};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

use headgate_core::node::Node;
use headgate_core::node::Signal;
use headgate_core::node::SignalRules;
use headgate_core::node::{NodeObjectState, NodeReport};

/// Counters of the own-Node watch.
#[derive(Clone, Debug)]
pub struct Metrics {
    errors: WatchErrorCounter,
    lists: Counter,
}

impl Metrics {
    /// Registers the counters, and gauges that are computed from the latest report at each scrape. `rules`
    /// name what could be a signal by the settings.
    #[must_use]
    pub fn register<'a>(
        registry: impl Into<MetricTable<'a>>,
        reports: watch::Receiver<NodeReport>,
        rules: SignalRules,
    ) -> Self {
        let mut table = registry.into();
        table.collector(ReportCollector { reports, rules });
        Self {
            errors: WatchErrorCounter::declare(
                &mut table,
                "headgate_node_watch_errors",
                "Errors of lists and watches of the own Node, by reason",
            ),
            lists: table.metric(
                "headgate_node_watch_lists",
                "Lists of the own Node: at the start, in each period of the watch (290 s), and at each restart of it",
            ),
        }
    }

    /// A reporter for the watch of the Node `name`, which counts in these metrics.
    #[must_use]
    pub fn watch_reporter(&self, name: &str, clock: &Clock) -> WatchReporter {
        WatchReporter::new("nodes", self.errors.clone(), clock.clone()).for_object(name)
    }

    pub(super) fn count_list(&self) {
        self.lists.inc();
    }
}

/// Gauges of the latest report.
#[derive(Debug)]
struct ReportCollector {
    reports: watch::Receiver<NodeReport>,
    rules: SignalRules,
}

impl Collector for ReportCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let report = self.reports.borrow().clone();
        let mut signals = encoder.encode_descriptor(
            "headgate_node_signal",
            "1 for each signal that this node has, 0 for each other that it could have.",
            None,
            MetricType::Gauge,
        )?;
        let names = self.rules.names(report.signals());
        for (name, is_present) in names.filter(|(name, _)| !matches!(name.parse(), Ok(Signal::Azure(_)))) {
            let value = ConstGauge::new(i64::from(is_present));
            value.encode(signals.encode_family(&[("signal", name)])?)?;
        }
        let is_out = report.node.as_ref().is_some_and(Node::is_marked_out);
        let out = encoder.encode_descriptor(
            "headgate_node_out_of_load_balancers",
            "1 while the own Node's condition headgate.dev/OutOfLoadBalancers is True, else 0.",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(i64::from(is_out)).encode(out)?;
        let mut object_state = encoder.encode_descriptor(
            "headgate_node_object",
            "1 for the state of the own Node object: unknown, present, missing or deleted.",
            None,
            MetricType::Gauge,
        )?;
        for state in NodeObjectState::ALL {
            let value = ConstGauge::new(i64::from(report.object_state == state));
            value.encode(object_state.encode_family(&[("state", state.as_str())])?)?;
        }
        Ok(())
    }
}
