//! Samples of the leader's metrics.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::program::{Program, sum};

const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// Samples of a short soak.
const MIN_SAMPLES: u32 = 60;

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

/// Scrapes until `stopped` is true. Returns the samples and the number of scrapes that failed.
pub(crate) async fn take(
    leader: &Program,
    length: Duration,
    mut stopped: watch::Receiver<bool>,
) -> (Vec<Sample>, usize) {
    let begun = Instant::now();
    let (mut samples, mut failed) = (Vec::new(), 0);
    let mut ticks = interval(MAX_INTERVAL.min(length / MIN_SAMPLES));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopped.wait_for(|stopped| *stopped) => return (samples, failed),
        }
        let Ok(metrics) = leader.metrics().await else {
            failed += 1;
            continue;
        };
        samples.push(Sample {
            seconds: begun.elapsed().as_secs(),
            resident_bytes: sum(&metrics, "process_resident_memory_bytes"),
            open_files: sum(&metrics, "process_open_fds"),
            threads: sum(&metrics, "process_threads"),
            cpu_seconds: sum(&metrics, "process_cpu_seconds_total"),
            down: sum(&metrics, "headgate_pool_actual_down"),
        });
    }
}
