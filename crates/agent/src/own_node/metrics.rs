//! The metrics of the own Node and its watch.

use headgate_core::clock::Clock;
use headgate_core::node::{Node, NodeObjectState, NodeReport, Signal, SignalRules};
use headgate_core::telemetry::{Gauges, MetricTable};
use headgate_kubernetes::{WatchErrorCounter, WatchReporter};
use prometheus_client::metrics::counter::Counter;
use tokio::sync::watch;

/// Counters of the own-Node watch.
#[derive(Clone, Debug)]
pub struct Metrics {
    errors: WatchErrorCounter,
    lists: Counter,
}

impl Metrics {
    /// Registers the counters.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>) -> Self {
        let mut table = registry.into();
        Self {
            errors: WatchErrorCounter::declare(
                &mut table,
                "headgate_node_watch_errors",
                "Errors of lists and watches of the own Node, by reason",
            ),
            lists: table.metric(
                "headgate_node_watch_lists",
                "Lists of the own Node, with the watches that begin with one: at the start, in each period of the watch (290 s), and at each restart of it",
            ),
        }
    }

    /// A reporter for the watch of the Node `name`, which counts in these metrics.
    pub fn watch_reporter(&self, name: &str, clock: &Clock) -> WatchReporter {
        WatchReporter::new("nodes", self.errors.clone(), clock.clone()).for_object(name)
    }

    pub(super) fn count_list(&self) {
        self.lists.inc();
    }
}

/// Registers gauges that are computed from the latest report at each scrape. `rules` name what could be a signal by the settings.
pub fn register_gauges<'a>(
    registry: impl Into<MetricTable<'a>>,
    reports: watch::Receiver<NodeReport>,
    rules: SignalRules,
) {
    registry.into().at_scrape(move |gauges| {
        let report = reports.borrow().clone();
        report_gauges(&report, &rules, gauges)
    });
}

/// Gauges of the latest report.
fn report_gauges(report: &NodeReport, rules: &SignalRules, gauges: &mut Gauges<'_>) -> std::fmt::Result {
    let names: Vec<_> = rules.names(report.signals()).collect();
    let of_node = names
        .iter()
        .filter(|(name, _)| !matches!(name.parse(), Ok(Signal::Azure(_))));
    gauges.by_label(
        "headgate_node_signal",
        "1 for each signal of health answers that this node has, 0 for each other that it could have; without Azure's notices, which \
            headgate_spot_notice has.",
        "signal",
        of_node.map(|(name, is_present)| (name.as_str(), i64::from(*is_present))),
    )?;
    let is_out = report.node.as_ref().is_some_and(Node::is_marked_out);
    gauges.gauge(
        "headgate_node_out_of_load_balancers",
        "1 while the own Node's condition headgate.dev/OutOfLoadBalancers is True, else 0.",
        i64::from(is_out),
    )?;
    gauges.by_label(
        "headgate_node_object",
        "1 for the state of the own Node object: unknown, present, missing or deleted.",
        "state",
        NodeObjectState::ALL.map(|state| (state.as_str(), i64::from(report.object_state == state))),
    )
}
