//! The metrics of eviction notices in Node events.

use headgate_core::telemetry::{ByLabel, MetricTable, words};
use headgate_kubernetes::WatchErrorCounter;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

words! {
    /// Why an event leads to no taint, or not at once.
    pub enum Outcome {
        /// Ignored: a recommendation, not an eviction.
        Advisory = "ignored_advisory",
        /// Ignored: the detector's own query had failed.
        QueryFailed = "ignored_query_failed",
        /// Ignored: older than ten minutes, or a condition of the Node says that the notice has ended.
        Stale = "ignored_stale",
        /// Ignored: a message in no known form, or about a name that no Node can have.
        Unknown = "ignored_unknown",
        /// Ignored: the Node has no label of a spot VM.
        NotSpot = "ignored_not_spot",
        /// Five Nodes got the taint in the last minute, so this one gets it later.
        Delayed = "delayed",
    }
}

/// The counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    outcomes: ByLabel<Counter>,
    errors: WatchErrorCounter,
}

impl Metrics {
    /// Registers the counters.
    pub fn register(registry: &mut Registry) -> Self {
        let mut table = MetricTable::from(registry);
        Self {
            outcomes: table.by_label(
                "headgate_preempt_events",
                "PreemptScheduled events of Nodes that the leader ignored, and those whose taint it delayed, by outcome",
                "outcome",
                Outcome::ALL.map(Outcome::as_str),
            ),
            errors: WatchErrorCounter::declare(
                &mut table,
                "headgate_preempt_event_watch_errors",
                "Errors of lists and watches of PreemptScheduled events, by reason",
            ),
        }
    }

    pub(super) fn watch_errors(&self) -> WatchErrorCounter {
        self.errors.clone()
    }

    pub(super) fn count(&self, outcome: Outcome) {
        self.outcomes.of(outcome.as_str()).inc();
    }
}
