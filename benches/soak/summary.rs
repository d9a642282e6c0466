//! The result of a soak: figures and checks, as text and as JSON.

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;

use crate::probes::{ProbeCounts, histogram};
use crate::samples::{Sample, value};
use crate::scenario::ScenarioResult;
use crate::soaking::{Check, check};

/// Growth in bytes that passes the check, even if it exceeds [`MAX_GROWTH_PERCENT`].
const MAX_GROWTH_BYTES: u64 = 512 * 1024;
/// Growth in percent that passes the check.
const MAX_GROWTH_PERCENT: u64 = 5;
/// Growth of open files that passes the check; their number varies with probes.
const MAX_OPEN_FILE_GROWTH: u64 = 3;
/// Maximum number of samples in the printed series.
const MAX_PRINTED_SAMPLES: usize = 20;

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
    resident_bytes: FirstAndLastTenth,
    open_files: FirstAndLastTenth,
    series: Vec<Sample>,
    checks: Vec<Check>,
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

/// The mean of the first tenth and of the last.
#[derive(Debug, Serialize)]
struct FirstAndLastTenth {
    first: u64,
    last: u64,
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

impl FirstAndLastTenth {
    fn of(samples: &[Sample], figure: impl Fn(&Sample) -> u64) -> Self {
        let tenth = (samples.len() / 10).max(1).min(samples.len());
        let mean = |samples: &[Sample]| samples.iter().map(&figure).sum::<u64>() / (samples.len() as u64).max(1);
        Self {
            first: mean(&samples[..tenth]),
            last: mean(&samples[samples.len() - tenth..]),
        }
    }
}

impl Summary {
    pub(crate) fn new(
        length: Duration,
        counts: &ProbeCounts,
        result: &ScenarioResult,
        (samples, failures): (Vec<Sample>, Vec<String>),
        metrics: &str,
        [before, after]: [Value; 2],
    ) -> Self {
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counter = |code| value(metrics, &format!("proxy_healthz_total{{code=\"{code}\"}}")).unwrap_or_default();
        let mut taint_to_answer = histogram();
        for seen in &result.seen {
            taint_to_answer.saturating_record(u64::try_from(seen.as_micros()).unwrap_or(u64::MAX));
        }
        let mut errors = counts.errors();
        errors.extend(failures.iter().take(10).cloned());
        let mut summary = Self {
            seconds: length.as_secs(),
            probes: Codes {
                good: load(&counts.good),
                bad: load(&counts.bad),
            },
            counted: Codes {
                good: counter(200),
                bad: counter(503),
            },
            failed: load(&counts.failed),
            wrong: load(&counts.wrong),
            errors,
            latency_micros: (&counts.latency()).into(),
            taint_to_answer_micros: (&taint_to_answer).into(),
            after_outage_millis: (result.seen_after_outage.iter())
                .map(|seen| u64::try_from(seen.as_millis()).unwrap_or(u64::MAX))
                .collect(),
            resident_bytes: FirstAndLastTenth::of(&samples, |sample| sample.resident_bytes),
            open_files: FirstAndLastTenth::of(&samples, |sample| sample.open_files),
            series: samples,
            checks: Vec::new(),
        };
        summary.check(result, failures.len(), before == after);
        summary
    }

    fn check(&mut self, result: &ScenarioResult, failed_scrapes: usize, same_tasks: bool) {
        let (memory, files) = (&self.resident_bytes, &self.open_files);
        let growth = memory.last.saturating_sub(memory.first);
        self.checks = vec![
            check(
                "proxy_healthz_total is the probes made, by code",
                self.probes == self.counted && self.probes.good > 0 && self.probes.bad > 0,
                format!("made {:?}, counted {:?}", self.probes, self.counted),
            ),
            check("no probe failed", self.failed == 0, format!("{} failed", self.failed)),
            check(
                "each verdict was the taint's, within 2 s",
                self.wrong == 0 && result.missed == 0,
                format!(
                    "{} were not, {} changes were not seen in time",
                    self.wrong, result.missed
                ),
            ),
            check(
                "the API server was away and was found again",
                !result.seen_after_outage.is_empty(),
                format!("{} times", result.seen_after_outage.len()),
            ),
            check(
                "memory is where it was",
                growth <= MAX_GROWTH_BYTES.max(memory.first * MAX_GROWTH_PERCENT / 100),
                format!(
                    "{} KiB at first, {} KiB at last",
                    memory.first / 1024,
                    memory.last / 1024
                ),
            ),
            check(
                "open files are where they were",
                files.last <= files.first + MAX_OPEN_FILE_GROWTH,
                format!("{} at first, {} at last", files.first, files.last),
            ),
            check(
                "process and tasks are those of the start",
                same_tasks,
                "by /statusz".to_owned(),
            ),
            check(
                "no scrape failed",
                failed_scrapes == 0 && !self.series.is_empty(),
                format!("{failed_scrapes} of {} failed", failed_scrapes + self.series.len()),
            ),
        ];
    }

    /// Whether every check passed.
    pub(crate) fn good(&self) -> bool {
        self.checks.iter().all(|check| check.pass)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n   s   KiB resident   open files")?;
        for sample in self
            .series
            .iter()
            .step_by((self.series.len() / MAX_PRINTED_SAMPLES).max(1))
        {
            let kib = sample.resident_bytes / 1024;
            writeln!(f, "{:>4} {kib:>14} {:>12}", sample.seconds, sample.open_files)?;
        }
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
        writeln!(
            f,
            "taint to answer after an outage, ms: {:?}\n",
            self.after_outage_millis
        )?;
        for check in &self.checks {
            check.fmt(f)?;
        }
        for error in &self.errors {
            writeln!(f, "     {error}")?;
        }
        Ok(())
    }
}
