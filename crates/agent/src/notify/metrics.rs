//! The metrics of notifications.

use headgate_core::telemetry::{ByLabel, MetricTable, words};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

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
    notices: ByLabel<Counter>,
    failures: ByLabel<Counter>,
    queued: Gauge,
}

impl Metrics {
    /// Registers the metrics.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>) -> Self {
        let mut table = registry.into();
        Self {
            notices: table.by_label(
                "headgate_notifications",
                "Notices for the webhook that have ended, by outcome: delivered, rejected by the receiver, expired after 10 min, or \
                dropped because the queue was full",
                "outcome",
                Outcome::ALL.map(Outcome::as_str),
            ),
            failures: table.by_label(
                "headgate_notification_failures",
                "Attempts to send a notice to the webhook that failed, by reason",
                "reason",
                super::webhook::AttemptError::REASONS,
            ),
            queued: table.metric(
                "headgate_notifications_queued",
                "Notices for the webhook that are queued or being sent",
            ),
        }
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        self.notices.of(outcome.as_str()).inc();
    }

    pub(crate) fn failed(&self, reason: &'static str) {
        self.failures.of(reason).inc();
    }

    pub(crate) fn queued(&self, by: i64) {
        self.queued.inc_by(by);
    }
}
