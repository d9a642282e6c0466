//! Samples of the agent's metrics.

use serde::Serialize;

/// One scrape.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    pub(crate) seconds: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) open_files: u64,
    pub(crate) threads: u64,
}

/// The value of a series in metric text.
pub(crate) fn value(metrics: &str, series: &str) -> Option<u64> {
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

impl Sample {
    pub(crate) fn read(seconds: u64, metrics: &str) -> Self {
        let figure = |series| value(metrics, series).unwrap_or_default();
        Self {
            seconds,
            resident_bytes: figure("process_resident_memory_bytes"),
            open_files: figure("process_open_fds"),
            threads: figure("process_threads"),
        }
    }
}
