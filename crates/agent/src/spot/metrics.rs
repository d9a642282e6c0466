//! The metrics of Scheduled Events and of polling IMDS.

use headgate_core::telemetry::{ByLabel, Gauges, MetricTable};
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::watch;

use super::document::{EventType, ScheduledEvent};
use super::snapshot::{EventsSnapshot, ImdsErrorReason};

/// The counters of polls.
#[derive(Clone, Debug)]
pub struct Metrics {
    polls: Counter,
    errors: ByLabel<Counter>,
}

impl Metrics {
    /// Registers the counters, and gauges that are computed from the latest snapshot at each scrape.
    pub fn register<'a>(registry: impl Into<MetricTable<'a>>, snapshots: watch::Receiver<EventsSnapshot>) -> Self {
        let mut table = registry.into();
        let metrics = Self {
            polls: table.metric(
                "headgate_imds_polls",
                "Polls of IMDS for Scheduled Events that ended",
            ),
            errors: table.by_label(
                "headgate_imds_errors",
                "Polls of IMDS without a document, by reason: connection (also a response that is too large), timeout, status, document; \
            and documents with an event that is not readable (event)",
                "reason",
                ImdsErrorReason::ALL.map(ImdsErrorReason::as_str),
            ),
        };
        table.at_scrape(move |gauges| {
            let events = snapshots.borrow().events.clone();
            event_gauges(&events, gauges)
        });
        metrics
    }

    pub(super) fn count_poll(&self) {
        self.polls.inc();
    }

    pub(super) fn count_error(&self, reason: ImdsErrorReason) {
        self.errors.of(reason.as_str()).inc();
    }
}

/// The earliest start of an event of this type.
fn earliest_start(events: &[ScheduledEvent], event_type: EventType) -> Option<Timestamp> {
    let upcoming = events.iter().filter(|event| event.event_type == event_type);
    upcoming.filter_map(|event| event.not_before).min()
}

/// Gauges of the events in the latest document.
fn event_gauges(events: &[ScheduledEvent], gauges: &mut Gauges<'_>) -> std::fmt::Result {
    let is_listed = |event_type| events.iter().any(|event| event.event_type == event_type);
    gauges.by_label(
        "headgate_spot_notice",
        "1 if the last document of Scheduled Events that was received lists an event of this type for this VM, else 0.",
        "type",
        EventType::ALL.map(|event_type| (event_type.as_str(), i64::from(is_listed(event_type)))),
    )?;
    let starts = EventType::ALL.into_iter().filter_map(|event_type| {
        let start = earliest_start(events, event_type)?;
        Some((event_type.as_str(), start.as_second()))
    });
    gauges.by_label(
        "headgate_spot_notice_not_before_timestamp_seconds",
        "Unix time of the earliest event of this type; no series without one, or once it has started.",
        "type",
        starts,
    )
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
