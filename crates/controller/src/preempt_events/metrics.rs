//! The metrics of eviction notices in Node events.

use headgate_core::telemetry::MetricTable;
use headgate_kubernetes::WatchErrorCounter;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Why an event leads to no taint, or not at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Ignored: a recommendation, not an eviction.
    Advisory,
    /// Ignored: the detector's own query had failed.
    QueryFailed,
    /// Ignored: older than ten minutes.
    Stale,
    /// Ignored: a message in no known form, or about a name that no Node can have.
    Unknown,
    /// Ignored: the Node has no label of a spot VM.
    NotSpot,
    /// Five Nodes got the taint in the last minute, so this one gets it later.
    Delayed,
}

impl Outcome {
    const ALL: [Self; 6] = [
        Self::Advisory,
        Self::QueryFailed,
        Self::Stale,
        Self::Unknown,
        Self::NotSpot,
        Self::Delayed,
    ];

    /// The label `outcome`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Advisory => "ignored_advisory",
            Self::QueryFailed => "ignored_query_failed",
            Self::Stale => "ignored_stale",
            Self::Unknown => "ignored_unknown",
            Self::NotSpot => "ignored_not_spot",
            Self::Delayed => "delayed",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// The counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    outcomes: Family<OutcomeLabels, Counter>,
    errors: WatchErrorCounter,
}

impl Metrics {
    /// Registers the counters.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            outcomes: Family::default(),
            errors: WatchErrorCounter::declare(
                &mut MetricTable::from(&mut *registry),
                "headgate_preempt_event_watch_errors",
                "Errors of lists and watches of PreemptScheduled events, by reason",
            ),
        };
        for outcome in Outcome::ALL {
            let outcome = outcome.as_str();
            drop(metrics.outcomes.get_or_create(&OutcomeLabels { outcome }));
        }
        registry.register(
            "headgate_preempt_events",
            "PreemptScheduled events of Nodes that the leader ignored, and taints that follow from them later, by outcome",
            metrics.outcomes.clone(),
        );
        metrics
    }

    pub(super) fn watch_errors(&self) -> WatchErrorCounter {
        self.errors.clone()
    }

    pub(super) fn count(&self, outcome: Outcome) {
        let outcome = outcome.as_str();
        self.outcomes.get_or_create(&OutcomeLabels { outcome }).inc();
    }
}
