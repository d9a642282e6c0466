//! The result of a soak: figures and checks, as text and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::checkpoint::Checkpoint;
use crate::scenario::{Counts, SoakResult};
use crate::soaking::{Course, Limits, check};

/// From the third fifth, when everything has been done once, to the last. Pages of freed objects return late; open files and
/// threads vary with requests.
const LIMITS: Limits = Limits {
    parts: (5, 2),
    memory: (3.0 * 1024.0 * 1024.0, 0.1),
    open_files: 5.0,
    threads: Some(4.0),
};

/// The summary, as it is written to `leader-soak.json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    seconds: u64,
    counts: Counts,
    checkpoints: Vec<Checkpoint>,
    last_ledger_entries: Option<usize>,
    #[serde(flatten)]
    pub(crate) course: Course,
}

impl Summary {
    pub(crate) fn new(length: Duration, result: SoakResult) -> Self {
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
        ];
        Self {
            seconds: length.as_secs(),
            counts: result.counts,
            checkpoints: result.checkpoints,
            last_ledger_entries: result.last_ledger_entries,
            course: Course::new(checks, result.samples, result.failed_scrapes, &result.tasks, &LIMITS),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.course.fmt(f)
    }
}
