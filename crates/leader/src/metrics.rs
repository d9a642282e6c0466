//! What is counted of the terms that begin here.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::term::Term;

/// How a term's work fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermFailure {
    /// It said so.
    Error,
    /// It ended without being told to.
    Returned,
    /// A defect.
    Panic,
    /// It was ended, since it did not come to its end in time.
    Aborted,
}

impl TermFailure {
    const ALL: [Self; 4] = [Self::Error, Self::Returned, Self::Panic, Self::Aborted];

    fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Returned => "returned",
            Self::Panic => "panic",
            Self::Aborted => "aborted",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToLabels {
    to: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// A term whose work has begun.
#[derive(Debug)]
struct Begun {
    term: Term,
    since: Timestamp,
}

/// The terms of this instance. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct LeaderMetrics {
    begun: Arc<Mutex<Option<Begun>>>,
    transitions: Family<ToLabels, Counter>,
    failures: Family<ReasonLabels, Counter>,
}

impl LeaderMetrics {
    /// Registers the counters, and gauges that are asked for at each scrape.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for to in ["leader", "follower"] {
            drop(metrics.transitions.get_or_create(&ToLabels { to }));
        }
        for reason in TermFailure::ALL.map(TermFailure::as_str) {
            drop(metrics.failures.get_or_create(&ReasonLabels { reason }));
        }
        registry.register(
            "headgate_leader_transitions",
            "Times that this instance became the leader, and that it ceased to be",
            metrics.transitions.clone(),
        );
        registry.register(
            "headgate_leader_failed_terms",
            "Terms whose work failed here, by reason: an error, a return without being told to, a panic, or ended since it did not \
             come to its end in time. The first three give the Lease back, and this instance rests for a growing time",
            metrics.failures.clone(),
        );
        registry.register_collector(Box::new(Present(metrics.clone())));
        metrics
    }

    /// The work of a term begins; it ends with what is given back.
    pub fn begins(&self, term: &Term, since: Timestamp) -> TermMetricsGuard {
        let term = term.clone();
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(Begun { term, since });
        self.transitions.get_or_create(&ToLabels { to: "leader" }).inc();
        TermMetricsGuard {
            metrics: self.clone(),
            ended: false,
            failure: None,
        }
    }

    /// The number of the term that lasts here, and since when its work does.
    #[must_use]
    pub fn present(&self) -> Option<(i32, Timestamp)> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let lasting = begun.as_ref().filter(|begun| begun.term.permit().is_ok());
        lasting.map(|begun| (begun.term.number(), begun.since))
    }
}

/// The work of a term, for as long as it lasts.
#[derive(Debug)]
#[must_use = "the work has ended when this is dropped"]
pub struct TermMetricsGuard {
    metrics: LeaderMetrics,
    ended: bool,
    failure: Option<TermFailure>,
}

impl TermMetricsGuard {
    /// It has ended, well or not.
    pub fn ended(mut self, failure: Option<TermFailure>) {
        self.ended = true;
        self.failure = failure;
    }
}

impl Drop for TermMetricsGuard {
    fn drop(&mut self) {
        let failure = match self.failure {
            None if self.ended => None,
            None if std::thread::panicking() => Some(TermFailure::Panic),
            None => Some(TermFailure::Aborted),
            said => said,
        };
        if let Some(failure) = failure {
            let reason = failure.as_str();
            self.metrics.failures.get_or_create(&ReasonLabels { reason }).inc();
        }
        *self.metrics.begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.metrics
            .transitions
            .get_or_create(&ToLabels { to: "follower" })
            .inc();
    }
}

/// The present term at a scrape.
#[derive(Debug)]
struct Present(LeaderMetrics);

impl Collector for Present {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let present = self.0.present();
        for (name, help, value) in [
            (
                "headgate_leader",
                "1 while this instance is the leader, 0 otherwise.",
                i64::from(present.is_some()),
            ),
            (
                "headgate_leader_term",
                "Number of the term that this instance leads in, 0 where it does not; no two terms have one number.",
                present.map_or(0, |(number, _)| number.into()),
            ),
        ] {
            let descriptor = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(descriptor)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_telemetry::{Format, encode};
    use tokio::time::{Instant, advance};

    use super::super::term::Tenure;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn terms_are_counted_and_the_present_one_is_shown() {
        let mut registry = Registry::default();
        let metrics = LeaderMetrics::register(&mut registry);
        let shows = |line: &str| {
            let text = encode(&registry, Format::Prometheus).unwrap();
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        };
        shows("headgate_leader 0");
        let begin = |number| Tenure::begin(number, Instant::now() + Duration::from_secs(1));
        let (_tenure, term) = begin(7);
        let working = metrics.begins(&term, Timestamp::UNIX_EPOCH);
        shows("headgate_leader 1");
        shows("headgate_leader_term 7");
        assert_eq!(metrics.present(), Some((7, Timestamp::UNIX_EPOCH)));
        // The term has ended by the clock, whatever its work does.
        advance(Duration::from_secs(1)).await;
        shows("headgate_leader 0");
        working.ended(None);
        let (_tenure, term) = begin(8);
        metrics
            .begins(&term, Timestamp::UNIX_EPOCH)
            .ended(Some(TermFailure::Error));
        drop(metrics.begins(&term, Timestamp::UNIX_EPOCH));
        let working = metrics.begins(&term, Timestamp::UNIX_EPOCH);
        let panics = tokio::spawn(async move {
            let _working = working;
            panic!("a defect");
        });
        assert!(panics.await.unwrap_err().is_panic());
        shows("headgate_leader 0");
        shows("headgate_leader_transitions_total{to=\"leader\"} 4");
        shows("headgate_leader_transitions_total{to=\"follower\"} 4");
        for (reason, count) in [("error", 1), ("returned", 0), ("panic", 1), ("aborted", 1)] {
            shows(&format!(
                "headgate_leader_failed_terms_total{{reason=\"{reason}\"}} {count}"
            ));
        }
    }
}
