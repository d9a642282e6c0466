//! The metrics of the health port. The counters have kube-proxy's names without its prefix
//! (docs/dev/decisions.md 2), and names of headgate's own.

use headgate_core::clock::Clock;
use headgate_core::telemetry::{Gauges, MetricTable};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::watch;

use super::failed_probes::AnswerCounts;
use super::verdict::{Verdict, VerdictInputs};
use super::verdict_changes::LastChange;

/// The counters of answers with 200 and with 503. Both series exist from the start.
#[derive(Clone, Debug)]
pub(super) struct AnswerCounters {
    ok: Counter,
    unavailable: Counter,
}

impl AnswerCounters {
    /// Registers the counters under each of the names.
    pub(super) fn declare(table: &mut MetricTable<'_>, names: &[&str], help: &str) -> Self {
        let family = Family::<[(&'static str, &'static str); 1], Counter>::default();
        for name in names {
            table.add(name, help, family.clone());
        }
        let counter = |code| family.get_or_create_owned(&[("code", code)]);
        Self {
            ok: counter("200"),
            unavailable: counter("503"),
        }
    }

    pub(super) fn increment(&self, is_ok: bool) {
        let counter = if is_ok { &self.ok } else { &self.unavailable };
        counter.inc();
    }

    pub(super) fn counts(&self) -> AnswerCounts {
        AnswerCounts {
            ok: self.ok.get(),
            unavailable: self.unavailable.get(),
        }
    }
}

/// The counters of the health port.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(super) healthz: AnswerCounters,
    pub(super) livez: AnswerCounters,
}

impl Metrics {
    /// Registers the counters, and gauges that are computed from the inputs at each scrape.
    pub fn register<'a>(
        registry: impl Into<MetricTable<'a>>,
        inputs: VerdictInputs,
        last_change: watch::Receiver<Option<LastChange>>,
        clock: Clock,
    ) -> Self {
        let mut table = registry.into();
        table.at_scrape(move |gauges| verdict_gauges(&inputs.verdict(clock.now()), *last_change.borrow(), gauges));
        Self {
            healthz: AnswerCounters::declare(
                &mut table,
                &["headgate_healthz_responses", "proxy_healthz"],
                "Answers of /healthz, by HTTP status code",
            ),
            livez: AnswerCounters::declare(
                &mut table,
                &["headgate_livez_responses", "proxy_livez"],
                "Answers of /livez, by HTTP status code",
            ),
        }
    }
}

/// Gauges of the present verdict.
fn verdict_gauges(verdict: &Verdict, last_change: Option<LastChange>, gauges: &mut Gauges<'_>) -> std::fmt::Result {
    let is_ok = [("healthz", verdict.is_healthz_ok()), ("livez", verdict.is_livez_ok())];
    gauges.by_label(
        "headgate_healthy",
        "1 if the path answers 200 at present, 0 if 503.",
        "path",
        is_ok.map(|(path, is_ok)| (path, i64::from(is_ok))),
    )?;
    let changed = [
        ("healthz", last_change.map(|last| last.healthz)),
        ("livez", last_change.map(|last| last.livez)),
    ];
    gauges.by_label(
        "headgate_verdict_last_change_timestamp_seconds",
        "Unix time of the last change of the path's answer, or of the first evaluation.",
        "path",
        changed.map(|(path, at)| (path, at.map_or(0.0, |at| at.as_duration().as_secs_f64()))),
    )
}
