//! The metrics of Scheduled Events and of polling IMDS.

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The counters of polls.
#[derive(Clone, Debug)]
pub struct Metrics {
    polls: Counter,
    errors: Family<ReasonLabels, Counter>,
}

impl Metrics {
    /// Registers the counters, and gauges that are computed from the latest snapshot at each scrape.
    #[must_use]
    pub fn register(registry: &mut Registry, snapshots: watch::Receiver<EventsSnapshot>) -> Self {
        let metrics = Self {
            polls: Counter::default(),
            errors: Family::default(),
        };
        for reason in ImdsErrorReason::ALL {
            let reason = reason.as_str();
            drop(metrics.errors.get_or_create(&ReasonLabels { reason }));
        }
        registry.register(
            "headgate_imds_polls",
            "Requests to IMDS for Scheduled Events that ended",
            metrics.polls.clone(),
        );
        registry.register(
            "headgate_imds_errors",
            "Requests to IMDS without a document, by reason: connection (also a response that is too large), timeout, status, document; \
            and documents with an event that is not readable (event)",
            metrics.errors.clone(),
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
            "1 while Scheduled Events list an event of this type for this VM, else 0. Only Preempt is a signal.",
            None,
            MetricType::Gauge,
        )?;
        for event_type in EventType::ALL {
            let is_listed = events.iter().any(|event| event.event_type == event_type);
            ConstGauge::new(i64::from(is_listed)).encode(notice.encode_family(&[("type", event_type.as_str())])?)?;
        }
        let mut start = encoder.encode_descriptor(
            "headgate_spot_notice_not_before_timestamp_seconds",
            "Unix time of the earliest event of this type; no series without one, or once it has started.",
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
