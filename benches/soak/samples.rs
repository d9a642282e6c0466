//! Samples of the agent's metrics, scraped as by Prometheus.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::http;

/// Maximum interval between two scrapes.
const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// Samples of a short soak, enough for a first and a last tenth.
const MIN_SAMPLES: u32 = 100;

/// One scrape.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    pub(crate) seconds: u64,
    pub(crate) resident_bytes: u64,
    pub(crate) open_files: u64,
    pub(crate) threads: u64,
}

/// All scrapes, and those that failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    pub(crate) taken: Vec<Sample>,
    pub(crate) failures: Vec<String>,
}

/// The value of a series in metric text.
pub(crate) fn value(metrics: &str, series: &str) -> Option<u64> {
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// Scrapes until `stopped` is true.
pub(crate) async fn take(address: SocketAddr, length: Duration, mut stopped: watch::Receiver<bool>) -> Samples {
    let begun = Instant::now();
    let mut samples = Samples::default();
    let mut ticks = interval(MAX_INTERVAL.min(length / MIN_SAMPLES));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            // A dropped sender also stops the scrapes.
            _ = stopped.wait_for(|stopped| *stopped) => return samples,
        }
        match http::get(address, "/metrics").await {
            Ok((200, metrics)) => {
                let figure = |series| value(&metrics, series).unwrap_or_default();
                samples.taken.push(Sample {
                    seconds: begun.elapsed().as_secs(),
                    resident_bytes: figure("process_resident_memory_bytes"),
                    open_files: figure("process_open_fds"),
                    threads: figure("process_threads"),
                });
            }
            Ok((code, _)) => samples.failures.push(format!("a scrape was answered {code}")),
            Err(error) => samples.failures.push(format!("a scrape failed: {error}")),
        }
    }
}
