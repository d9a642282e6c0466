//! Samples of the leader's metrics.

use serde::Serialize;

use crate::program::sum;

/// One scrape.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    pub(crate) seconds: u64,
    pub(crate) resident_bytes: f64,
    pub(crate) open_files: f64,
    pub(crate) threads: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) down: f64,
}

impl Sample {
    pub(crate) fn read(seconds: u64, metrics: &str) -> Self {
        Self {
            seconds,
            resident_bytes: sum(metrics, "process_resident_memory_bytes"),
            open_files: sum(metrics, "process_open_fds"),
            threads: sum(metrics, "process_threads"),
            cpu_seconds: sum(metrics, "process_cpu_seconds_total"),
            down: sum(metrics, "headgate_pool_actual_down"),
        }
    }
}
