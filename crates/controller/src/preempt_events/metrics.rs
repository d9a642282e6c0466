//! The metrics of eviction notices in Node events.

use headgate_kubernetes::WatchErrorCounter;
use headgate_spot::TaintChange;
use headgate_telemetry::MetricTable;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What became of an event, or of an attempt to write a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The taint was added and the notice recorded.
    Tainted,
    /// The notice was recorded without a change of the taint.
    Recorded,
    /// The taint was removed.
    Untainted,
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
    /// The term had ended, or was not sure to last, before the write was sent.
    NotPermitted,
    /// The Node had changed since it was read.
    Conflict,
    /// The credentials lack the right, or the policy refuses the write.
    Forbidden,
    /// The API server did not answer in time.
    Timeout,
    /// A failure of another kind.
    Error,
}

impl Outcome {
    const ALL: [Self; 14] = [
        Self::Tainted,
        Self::Recorded,
        Self::Untainted,
        Self::Advisory,
        Self::QueryFailed,
        Self::Stale,
        Self::Unknown,
        Self::NotSpot,
        Self::Delayed,
        Self::NotPermitted,
        Self::Conflict,
        Self::Forbidden,
        Self::Timeout,
        Self::Error,
    ];

    /// The label `outcome`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tainted => "tainted",
            Self::Recorded => "recorded",
            Self::Untainted => "untainted",
            Self::Advisory => "ignored_advisory",
            Self::QueryFailed => "ignored_query_failed",
            Self::Stale => "ignored_stale",
            Self::Unknown => "ignored_unknown",
            Self::NotSpot => "ignored_not_spot",
            Self::Delayed => "delayed",
            Self::NotPermitted => "not_permitted",
            Self::Conflict => "conflict",
            Self::Forbidden => "forbidden",
            Self::Timeout => "timeout",
            Self::Error => "error",
        }
    }

    /// The outcome of a request that failed.
    pub(super) fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                401 | 403 => Self::Forbidden,
                // 422 is a failed test in the patch.
                409 | 422 => Self::Conflict,
                _ => Self::Error,
            },
            _ => Self::Error,
        }
    }
}

impl From<TaintChange> for Outcome {
    fn from(change: TaintChange) -> Self {
        match change {
            TaintChange::Tainted => Self::Tainted,
            TaintChange::Recorded => Self::Recorded,
            TaintChange::Untainted => Self::Untainted,
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
            "PreemptScheduled events of Nodes that the leader ignored, and writes of the draining taint that follow from them, by outcome",
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
