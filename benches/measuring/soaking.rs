//! What soaks share: for how long they run, and how their results are checked, written and shown.

use std::env;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::conditions;
use crate::output::say;

/// An hour.
const DEFAULT_SECONDS: u64 = 3600;

/// Maximum interval between two scrapes, as Prometheus scrapes.
const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// Samples of a short soak, enough for a first and a last tenth.
const MIN_SAMPLES: u32 = 100;

/// One check of a summary.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    about: &'static str,
    pub(crate) pass: bool,
    detail: String,
}

/// A check by its name, whether it passes, and the figures.
pub(crate) fn check(about: &'static str, pass: bool, detail: String) -> Check {
    Check { about, pass, detail }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { about, pass, detail } = self;
        writeln!(f, "{} {about}: {detail}", if *pass { "pass" } else { "FAIL" })
    }
}

/// Runs a soak for `SOAK_SECONDS`, which is at least `least_seconds`, under `cargo bench` alone.
pub(crate) fn main(least_seconds: u64, run: impl FnOnce(Duration) -> anyhow::Result<bool>) -> ExitCode {
    // `cargo test --benches` does not set this variable.
    if !env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    match length(least_seconds).and_then(run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("the soak could not be run: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn length(least_seconds: u64) -> anyhow::Result<Duration> {
    let seconds = env::var("SOAK_SECONDS").map_or(Ok(DEFAULT_SECONDS), |text| text.parse());
    let seconds: u64 = seconds.context("SOAK_SECONDS is a number of seconds")?;
    ensure!(seconds >= least_seconds, "SOAK_SECONDS is at least {least_seconds}");
    Ok(Duration::from_secs(seconds))
}

/// Scrapes until `stopped` is true, and reads each scrape, with the seconds until it. Returns the samples and the errors.
pub(crate) async fn sample<S, F: Future<Output = anyhow::Result<String>>>(
    length: Duration,
    mut stopped: watch::Receiver<bool>,
    scrape: impl Fn() -> F,
    read: impl Fn(u64, &str) -> S,
) -> (Vec<S>, Vec<String>) {
    let begun = Instant::now();
    let (mut samples, mut failures) = (Vec::new(), Vec::new());
    let mut ticks = interval(MAX_INTERVAL.min(length / MIN_SAMPLES));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            // A dropped sender also stops the scrapes.
            _ = stopped.wait_for(|stopped| *stopped) => return (samples, failures),
        }
        match scrape().await {
            Ok(metrics) => samples.push(read(begun.elapsed().as_secs(), &metrics)),
            Err(error) => failures.push(format!("a scrape failed: {error:#}")),
        }
    }
}

/// Writes a summary with its conditions to a file of the benchmarks' directory, and shows it.
pub(crate) fn report(summary: &(impl Serialize + fmt::Display), name: &str) -> anyhow::Result<()> {
    let file = crate::output::directory().join(name);
    write(summary, &file).with_context(|| format!("writing {}", file.display()))?;
    say(&summary.to_string());
    say(&format!("written to {}", file.display()));
    Ok(())
}

fn write(summary: &impl Serialize, file: &Path) -> anyhow::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    let summary = json!({"conditions": conditions::conditions(), "summary": summary});
    Ok(fs::write(file, serde_json::to_string_pretty(&summary)?)?)
}
