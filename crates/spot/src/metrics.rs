//! The metrics of Scheduled Events, of polling IMDS, and of writing the taint.

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::document::{EventType, ScheduledEvent};
use super::snapshot::{EventsSnapshot, ImdsErrorReason};

/// The outcome of an attempt to write the Node; the label `outcome` of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// The Node had changed since it was read.
    Conflict,
    /// The API server was not reachable.
    Connection,
    /// A failure of another kind.
    Error,
    /// The credentials lack the right to patch Nodes.
    Forbidden,
    /// The Node does not exist.
    Missing,
    /// The notice was recorded without a change of the taint.
    Recorded,
    /// The taint was added and the notice recorded.
    Tainted,
    /// The API server did not answer in time.
    Timeout,
    /// The taint was removed.
    Untainted,
}

impl WriteOutcome {
    const ALL: [Self; 9] = [
        Self::Conflict,
        Self::Connection,
        Self::Error,
        Self::Forbidden,
        Self::Missing,
        Self::Recorded,
        Self::Tainted,
        Self::Timeout,
        Self::Untainted,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Connection => "connection",
            Self::Error => "error",
            Self::Forbidden => "forbidden",
            Self::Missing => "missing",
            Self::Recorded => "recorded",
            Self::Tainted => "tainted",
            Self::Timeout => "timeout",
            Self::Untainted => "untainted",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// The counters of polls and of writes.
#[derive(Clone, Debug)]
pub struct Metrics {
    polls: Counter,
    errors: Family<ReasonLabels, Counter>,
    writes: Family<OutcomeLabels, Counter>,
}

impl Metrics {
    /// Registers the counters, and gauges that are computed from the latest snapshot at each scrape.
    #[must_use]
    pub fn register(registry: &mut Registry, snapshots: watch::Receiver<EventsSnapshot>) -> Self {
        let metrics = Self {
            polls: Counter::default(),
            errors: Family::default(),
            writes: Family::default(),
        };
        for reason in ImdsErrorReason::ALL {
            let reason = reason.as_str();
            drop(metrics.errors.get_or_create(&ReasonLabels { reason }));
        }
        for outcome in WriteOutcome::ALL {
            let outcome = outcome.as_str();
            drop(metrics.writes.get_or_create(&OutcomeLabels { outcome }));
        }
        registry.register(
            "headgate_imds_polls",
            "Requests to IMDS for Scheduled Events that ended, with or without a document",
            metrics.polls.clone(),
        );
        registry.register(
            "headgate_imds_errors",
            "Requests to IMDS without a document, by reason: connection (which includes a response that is too large), \
             timeout, status, document; and documents with an event that is not readable (event)",
            metrics.errors.clone(),
        );
        registry.register(
            "headgate_spot_taint_writes",
            "Attempts to change the own Node's draining taint or the recorded notice, by outcome",
            metrics.writes.clone(),
        );
        registry.register_collector(Box::new(EventsCollector { snapshots }));
        metrics
    }

    pub(super) fn count_poll(&self) {
        self.polls.inc();
    }

    pub(super) fn count_error(&self, reason: ImdsErrorReason) {
        let reason = reason.as_str();
        self.errors.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(super) fn count_write(&self, outcome: WriteOutcome) {
        let outcome = outcome.as_str();
        self.writes.get_or_create(&OutcomeLabels { outcome }).inc();
    }
}

/// The earliest start of an event of this type.
fn earliest_start(events: &[ScheduledEvent], event_type: EventType) -> Option<Timestamp> {
    let upcoming = events.iter().filter(|event| event.event_type == event_type);
    upcoming.filter_map(|event| event.not_before).min()
}

/// Gauges of the latest snapshot.
#[derive(Debug)]
struct EventsCollector {
    snapshots: watch::Receiver<EventsSnapshot>,
}

impl Collector for EventsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let events = self.snapshots.borrow().events.clone();
        let mut notice = encoder.encode_descriptor(
            "headgate_spot_notice",
            "1 while the latest document of Scheduled Events lists an event of this type for this VM, 0 otherwise. Only Preempt is a signal.",
            None,
            MetricType::Gauge,
        )?;
        for event_type in EventType::ALL {
            let is_listed = events.iter().any(|event| event.event_type == event_type);
            ConstGauge::new(i64::from(is_listed)).encode(notice.encode_family(&[("type", event_type.as_str())])?)?;
        }
        let mut start = encoder.encode_descriptor(
            "headgate_spot_notice_not_before_timestamp_seconds",
            "Unix time of the earliest start of an event of this type. No series without such an event, or once it has started.",
            None,
            MetricType::Gauge,
        )?;
        for event_type in EventType::ALL {
            if let Some(at) = earliest_start(&events, event_type) {
                ConstGauge::new(at.as_second()).encode(start.encode_family(&[("type", event_type.as_str())])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::EventStatus;
    use super::*;

    #[test]
    fn earliest_start_is_of_the_events_of_one_type() {
        let event = |event_type, second: Option<i64>| ScheduledEvent {
            event_id: "a".into(),
            event_type,
            status: EventStatus::Scheduled,
            not_before: second.map(|second| Timestamp::from_second(second).unwrap()),
            description: String::new(),
            resources: Vec::new(),
        };
        let events = [
            event(EventType::Preempt, Some(30)),
            event(EventType::Preempt, Some(20)),
            event(EventType::Preempt, None),
            event(EventType::Freeze, Some(5)),
            event(EventType::Reboot, None),
        ];
        for (event_type, want) in [
            (EventType::Preempt, Some(20)),
            (EventType::Freeze, Some(5)),
            (EventType::Reboot, None),
            (EventType::Terminate, None),
        ] {
            let found = earliest_start(&events, event_type);
            assert_eq!(found.map(Timestamp::as_second), want, "{event_type:?}");
        }
    }
}
