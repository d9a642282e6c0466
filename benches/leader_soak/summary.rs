//! The result of a soak: figures and checks, as text and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::checkpoint::Checkpoint;
use crate::samples::Sample;
use crate::scenario::{Counts, SoakResult};
use crate::soaking::{Check, check};

/// Growth of memory that passes, in bytes and as a part: pages of freed objects return late.
const MAX_GROWTH_BYTES: f64 = 3.0 * 1024.0 * 1024.0;
const MAX_GROWTH: f64 = 0.1;
/// Growth of open files and threads that passes; both vary with requests.
const MAX_FILES_GROWTH: f64 = 5.0;
const MAX_THREADS_GROWTH: f64 = 4.0;
const MAX_PRINTED_SAMPLES: usize = 20;

/// The summary, as it is written to `leader-soak.json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    seconds: u64,
    counts: Counts,
    checkpoints: Vec<Checkpoint>,
    last_ledger_entries: Option<usize>,
    samples: Vec<Sample>,
    checks: Vec<Check>,
}

/// The means of a figure in the third fifth, when everything has been done once, and in the last.
fn means(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> [f64; 2] {
    let fifth = (samples.len() / 5).max(1);
    [2 * fifth, samples.len().saturating_sub(fifth)].map(|start| {
        let part: Vec<f64> = samples.iter().skip(start).take(fifth).map(&figure).collect();
        part.iter().sum::<f64>() / f64::from(u32::try_from(part.len().max(1)).unwrap_or(u32::MAX))
    })
}

impl Summary {
    pub(crate) fn new(length: Duration, result: SoakResult) -> Self {
        let samples = &result.samples;
        let [memory, last_memory] = means(samples, |sample| sample.resident_bytes);
        let [files, last_files] = means(samples, |sample| sample.open_files);
        let [threads, last_threads] = means(samples, |sample| sample.threads);
        let failed: Vec<_> = result
            .checkpoints
            .iter()
            .filter(|checkpoint| !checkpoint.is_good())
            .collect();
        let settled = result
            .checkpoints
            .iter()
            .filter_map(|checkpoint| checkpoint.settled_millis);
        let ledger = result.checkpoints.iter().map(|checkpoint| checkpoint.ledger_entries);
        let mebibytes = |bytes: f64| bytes / 1024.0 / 1024.0;
        let checks = vec![
            check(
                "every signal ended in the right state, and the ledger has nothing old",
                failed.is_empty() && result.checkpoints.len() > 1,
                format!(
                    "{} checkpoints, settled within {} ms, ledger of at most {} entries; failed: {failed:?}",
                    result.checkpoints.len(),
                    settled.max().unwrap_or_default(),
                    ledger.max().unwrap_or_default()
                ),
            ),
            check(
                "the ledger is empty at the end",
                result.last_ledger_entries.is_none_or(|entries| entries == 0),
                result.last_ledger_entries.map_or_else(
                    || "not awaited in a short soak".to_owned(),
                    |entries| format!("{entries} entries"),
                ),
            ),
            check(
                "signals, faults, outages and the stand-in were there",
                result.counts.signals_to_down > 0
                    && result.counts.faults > 0
                    && result.counts.outages > 0
                    && result.counts.manager_rounds > 0,
                format!("{:?}", result.counts),
            ),
            check(
                "memory is where it was",
                last_memory - memory <= MAX_GROWTH_BYTES.max(memory * MAX_GROWTH),
                format!(
                    "{:.1} MiB at first, {:.1} MiB at last",
                    mebibytes(memory),
                    mebibytes(last_memory)
                ),
            ),
            check(
                "open files are where they were",
                last_files - files <= MAX_FILES_GROWTH,
                format!("{files:.1} at first, {last_files:.1} at last"),
            ),
            check(
                "threads are where they were",
                last_threads - threads <= MAX_THREADS_GROWTH,
                format!("{threads:.1} at first, {last_threads:.1} at last"),
            ),
            check(
                "process and tasks are those of the start",
                result.tasks[0] == result.tasks[1],
                format!("{} and {}", result.tasks[0], result.tasks[1]),
            ),
            check(
                "no scrape failed",
                result.failed_scrapes == 0 && !samples.is_empty(),
                format!("{} of {}", result.failed_scrapes, result.failed_scrapes + samples.len()),
            ),
        ];
        Self {
            seconds: length.as_secs(),
            counts: result.counts,
            checkpoints: result.checkpoints,
            last_ledger_entries: result.last_ledger_entries,
            samples: result.samples,
            checks,
        }
    }

    /// Whether every check passed.
    pub(crate) fn good(&self) -> bool {
        self.checks.iter().all(|check| check.pass)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n   s   MiB   files   threads   CPU s   Down")?;
        let step = (self.samples.len() / MAX_PRINTED_SAMPLES).max(1);
        for sample in self.samples.iter().step_by(step) {
            writeln!(
                f,
                "{:>4} {:>5.1} {:>7} {:>9} {:>7.1} {:>6}",
                sample.seconds,
                sample.resident_bytes / 1024.0 / 1024.0,
                sample.open_files,
                sample.threads,
                sample.cpu_seconds,
                sample.down
            )?;
        }
        for check in &self.checks {
            check.fmt(f)?;
        }
        Ok(())
    }
}
