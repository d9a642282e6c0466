//! The result of a soak: figures and checks, as text and as JSON.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;

use crate::probes::{ProbeCounts, histogram};
use crate::scenario::ScenarioResult;
use crate::soaking::{Course, Limits, Sample, check};

/// From the first tenth to the last. Open files vary with probes.
const LIMITS: Limits = Limits {
    parts: (10, 0),
    memory: (512.0 * 1024.0, 0.05),
    open_files: 3.0,
    threads: None,
};

/// The summary, as it is written to `soak.json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    seconds: u64,
    probes: Codes,
    counted: Codes,
    failed: u64,
    wrong: u64,
    /// The first errors of probes and scrapes.
    errors: Vec<String>,
    latency_micros: Quantiles,
    taint_to_answer_micros: Quantiles,
    after_outage_millis: Vec<u64>,
    #[serde(flatten)]
    pub(crate) course: Course,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Codes {
    #[serde(rename = "200")]
    good: u64,
    #[serde(rename = "503")]
    bad: u64,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p50: u64,
    p99: u64,
    max: u64,
    count: u64,
}

impl From<&Histogram<u64>> for Quantiles {
    fn from(histogram: &Histogram<u64>) -> Self {
        Self {
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            max: histogram.max(),
            count: histogram.len(),
        }
    }
}

/// The value of a series in metric text.
pub(crate) fn value<T: FromStr>(metrics: &str, series: &str) -> Option<T> {
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

impl Summary {
    pub(crate) fn new(
        length: Duration,
        counts: &ProbeCounts,
        result: &ScenarioResult,
        (samples, failures): (Vec<Sample>, Vec<String>),
        metrics: &str,
        tasks: &[Value; 2],
    ) -> Self {
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let answered = |code| value(metrics, &format!("proxy_healthz_total{{code=\"{code}\"}}")).unwrap_or_default();
        let mut taint_to_answer = histogram();
        for seen in &result.seen {
            taint_to_answer.saturating_record(u64::try_from(seen.as_micros()).unwrap_or(u64::MAX));
        }
        let mut errors = counts.errors();
        errors.extend(failures.iter().take(10).cloned());
        let [probes, counted] = [[load(&counts.good), load(&counts.bad)], [answered(200), answered(503)]]
            .map(|[good, bad]| Codes { good, bad });
        let (failed, wrong) = (load(&counts.failed), load(&counts.wrong));
        let checks = vec![
            check(
                "proxy_healthz_total is the probes made, by code",
                probes == counted && probes.good > 0 && probes.bad > 0,
                format!("made {probes:?}, counted {counted:?}"),
            ),
            check("no probe failed", failed == 0, format!("{failed} failed")),
            check(
                "each verdict was the taint's, within 2 s",
                wrong == 0 && result.missed == 0,
                format!("{wrong} were not, {} changes were not seen in time", result.missed),
            ),
            check(
                "the API server was away and was found again",
                !result.seen_after_outage.is_empty(),
                format!("{} times", result.seen_after_outage.len()),
            ),
        ];
        Self {
            seconds: length.as_secs(),
            probes,
            counted,
            failed,
            wrong,
            errors,
            latency_micros: (&counts.latency()).into(),
            taint_to_answer_micros: (&taint_to_answer).into(),
            after_outage_millis: (result.seen_after_outage.iter())
                .map(|seen| u64::try_from(seen.as_millis()).unwrap_or(u64::MAX))
                .collect(),
            course: Course::new(checks, samples, failures.len(), tasks, &LIMITS),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quantiles { p50, p99, max, count } = self.latency_micros;
        writeln!(
            f,
            "\nprobe to answer: p50 {p50} µs, p99 {p99} µs, most {max} µs of {count}"
        )?;
        let Quantiles { p50, p99, max, count } = self.taint_to_answer_micros;
        writeln!(
            f,
            "taint to answer: p50 {p50} µs, p99 {p99} µs, most {max} µs of {count}"
        )?;
        writeln!(f, "taint to answer after an outage, ms: {:?}", self.after_outage_millis)?;
        self.course.fmt(f)?;
        for error in &self.errors {
            writeln!(f, "     {error}")?;
        }
        Ok(())
    }
}
