//! The metrics of notifications.

use headgate_telemetry::words;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

words! {
    /// How a notice ended.
    pub(crate) enum Outcome {
        /// The receiver accepted it.
        Delivered = "delivered",
        /// The receiver rejected it for good.
        Rejected = "rejected",
        /// No attempt succeeded within the time for retries.
        Expired = "expired",
        /// The queue was full.
        Dropped = "dropped",
    }
}

/// Counters and the gauge of the queue.
#[derive(Clone, Debug)]
pub struct Metrics {
    notices: Family<OutcomeLabel, Counter>,
    failures: Family<ReasonLabel, Counter>,
    queued: Gauge,
}

impl Metrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            notices: Family::default(),
            failures: Family::default(),
            queued: Gauge::default(),
        };
        for outcome in Outcome::ALL {
            drop(metrics.notices.get_or_create(&OutcomeLabel {
                outcome: outcome.as_str(),
            }));
        }
        for reason in super::webhook::AttemptError::REASONS {
            drop(metrics.failures.get_or_create(&ReasonLabel { reason }));
        }
        registry.register(
            "headgate_notifications",
            "Notices for the webhook that have ended, by outcome: delivered, rejected by the receiver for good, expired after \
             notifications.retryTimeout, or dropped because the queue was full",
            metrics.notices.clone(),
        );
        registry.register(
            "headgate_notification_failures",
            "Attempts to send a notice to the webhook that failed, by reason",
            metrics.failures.clone(),
        );
        registry.register(
            "headgate_notifications_queued",
            "Notices for the webhook that are queued or being sent",
            metrics.queued.clone(),
        );
        metrics
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        self.notices
            .get_or_create(&OutcomeLabel {
                outcome: outcome.as_str(),
            })
            .inc();
    }

    pub(crate) fn failed(&self, reason: &'static str) {
        self.failures.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(crate) fn queued(&self, by: i64) {
        self.queued.inc_by(by);
    }
}
