//! What is counted and shown of events, of IMDS, and of the taint's writes.

use headgate_clock::Clock;
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::document::{Event, Kind};
use super::seen::Seen;

/// Reasons an error of IMDS is counted under.
pub(super) const REASONS: [&str; 5] = ["connection", "document", "event", "status", "timeout"];
/// Outcomes of attempts to write.
const OUTCOMES: [&str; 9] = [
    "conflict",
    "connection",
    "error",
    "forbidden",
    "missing",
    "recorded",
    "tainted",
    "timeout",
    "untainted",
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// Counters of IMDS and of the taint.
#[derive(Clone, Debug)]
pub struct Metrics {
    polls: Counter,
    errors: Family<ReasonLabels, Counter>,
    writes: Family<OutcomeLabels, Counter>,
}

impl Metrics {
    /// Registers the counters, and gauges computed from what is seen at each scrape.
    #[must_use]
    pub fn register(registry: &mut Registry, seen: watch::Receiver<Seen>, clock: Clock) -> Self {
        let metrics = Self {
            polls: Counter::default(),
            errors: Family::default(),
            writes: Family::default(),
        };
        for reason in REASONS {
            drop(metrics.errors.get_or_create(&ReasonLabels { reason }));
        }
        for outcome in OUTCOMES {
            drop(metrics.writes.get_or_create(&OutcomeLabels { outcome }));
        }
        registry.register(
            "headgate_imds_polls",
            "Questions to IMDS for Scheduled Events that ended, with a document or without",
            metrics.polls.clone(),
        );
        registry.register(
            "headgate_imds_errors",
            "Questions to IMDS that got no document (connection, which an answer that is too large counts as, timeout, status, document), or one with an event that \
             cannot be read (event), by reason",
            metrics.errors.clone(),
        );
        registry.register(
            "headgate_spot_taint_writes",
            "Attempts to change the own Node's draining taint or the record of its notice, by outcome",
            metrics.writes.clone(),
        );
        registry.register_collector(Box::new(Events { seen, clock }));
        metrics
    }

    pub(super) fn poll(&self) {
        self.polls.inc();
    }

    pub(super) fn error(&self, reason: &'static str) {
        self.errors.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(super) fn write(&self, outcome: &'static str) {
        self.writes.get_or_create(&OutcomeLabels { outcome }).inc();
    }
}

/// Seconds from `now` to the earliest time one of these may begin; never below zero.
fn seconds_left(events: &[Event], kind: Kind, now: Timestamp) -> Option<f64> {
    let upcoming = events.iter().filter(|event| event.kind == kind);
    let earliest = upcoming.filter_map(|event| event.not_before).min()?;
    Some(earliest.duration_since(now).as_secs_f64().max(0.0))
}

/// Gauges read from the last document.
#[derive(Debug)]
struct Events {
    seen: watch::Receiver<Seen>,
    clock: Clock,
}

impl Collector for Events {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let events = self.seen.borrow().events.clone();
        let now = self.clock.now().wall;
        let mut notice = encoder.encode_descriptor(
            "headgate_spot_notice",
            "1 while the last document of Scheduled Events lists an event of this type for this VM; only Preempt is acted on.",
            None,
            MetricType::Gauge,
        )?;
        for kind in Kind::ALL {
            let value = ConstGauge::new(i64::from(events.iter().any(|event| event.kind == kind)));
            value.encode(notice.encode_family(&[("type", kind.as_str())])?)?;
        }
        let mut left = encoder.encode_descriptor(
            "headgate_spot_notice_seconds_left",
            "Seconds until the earliest time an event of this type may begin, 0 once that has passed; no series where \
             there is none, or where it has begun.",
            None,
            MetricType::Gauge,
        )?;
        for kind in Kind::ALL {
            if let Some(seconds) = seconds_left(&events, kind, now) {
                ConstGauge::new(seconds).encode(left.encode_family(&[("type", kind.as_str())])?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::State;
    use super::*;

    #[test]
    fn the_earliest_counts_and_never_below_zero() {
        let event = |kind, second: Option<i64>| Event {
            event_id: "a".into(),
            kind,
            state: State::Scheduled,
            not_before: second.map(|second| Timestamp::from_second(second).unwrap()),
            description: String::new(),
            resources: Vec::new(),
        };
        let events = [
            event(Kind::Preempt, Some(30)),
            event(Kind::Preempt, Some(20)),
            event(Kind::Preempt, None),
            event(Kind::Freeze, Some(5)),
            event(Kind::Reboot, None),
        ];
        let now = Timestamp::from_second(10).unwrap();
        for (kind, want) in [
            (Kind::Preempt, Some(10.0)),
            (Kind::Freeze, Some(0.0)),
            (Kind::Reboot, None),
            (Kind::Terminate, None),
        ] {
            assert_eq!(seconds_left(&events, kind, now), want, "{kind:?}");
        }
    }
}
