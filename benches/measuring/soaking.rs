//! What soaks share: for how long they run, and how their results are checked, written and shown.

use std::env;
use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::conditions;
use crate::http;
use crate::output::say;

const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// An hour.
const DEFAULT_SECONDS: u64 = 3600;

/// Maximum interval between two scrapes, as Prometheus scrapes.
const MAX_INTERVAL: Duration = Duration::from_secs(5);
/// Samples of a short soak, enough for a first and a last tenth.
const MIN_SAMPLES: u32 = 100;
/// Maximum number of samples in the printed series.
const MAX_PRINTED_SAMPLES: usize = 20;

/// One scrape.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    seconds: u64,
    resident_bytes: f64,
    open_files: f64,
    threads: f64,
    cpu_seconds: f64,
    down: f64,
}

/// What may grow, as the means of a part of the soak and of its last one.
pub(crate) struct Limits {
    /// The number of parts, and the one to compare, from 0 on.
    pub(crate) parts: (usize, usize),
    /// Of memory, in bytes and as a share; the larger growth passes.
    pub(crate) memory: (f64, f64),
    pub(crate) open_files: f64,
    pub(crate) threads: Option<f64>,
}

/// The samples of a soak, and its checks.
#[derive(Debug, Serialize)]
pub(crate) struct Course {
    samples: Vec<Sample>,
    checks: Vec<Check>,
}

impl Course {
    /// Adds the checks that every soak has. `tasks` are those of the start and of the end.
    pub(crate) fn new(
        mut checks: Vec<Check>,
        samples: Vec<Sample>,
        failed_scrapes: usize,
        tasks: &[Value; 2],
        limits: &Limits,
    ) -> Self {
        let (parts, compared) = limits.parts;
        let length = (samples.len() / parts).max(1);
        let means = |figure: fn(&Sample) -> f64| {
            [compared * length, samples.len().saturating_sub(length)].map(|start| {
                let part: Vec<f64> = samples.iter().skip(start).take(length).map(figure).collect();
                part.iter().sum::<f64>() / f64::from(u32::try_from(part.len().max(1)).unwrap_or(u32::MAX))
            })
        };
        let lasting = |about, unit, [first, last]: [f64; 2], limit: f64| {
            check(
                about,
                last - first <= limit,
                format!("{first:.1}{unit} at first, {last:.1}{unit} at last"),
            )
        };
        let memory = means(|sample| sample.resident_bytes / MEBIBYTE);
        let (bytes, share) = limits.memory;
        checks.push(lasting(
            "memory is where it was",
            " MiB",
            memory,
            (bytes / MEBIBYTE).max(memory[0] * share),
        ));
        let open_files = means(|sample| sample.open_files);
        checks.push(lasting(
            "open files are where they were",
            "",
            open_files,
            limits.open_files,
        ));
        if let Some(limit) = limits.threads {
            checks.push(lasting(
                "threads are where they were",
                "",
                means(|sample| sample.threads),
                limit,
            ));
        }
        checks.push(check(
            "process and tasks are those of the start",
            tasks[0] == tasks[1],
            format!("{} and {}", tasks[0], tasks[1]),
        ));
        checks.push(check(
            "no scrape failed",
            failed_scrapes == 0 && !samples.is_empty(),
            format!("{failed_scrapes} of {} failed", failed_scrapes + samples.len()),
        ));
        Self { samples, checks }
    }

    /// Whether every check passed.
    pub(crate) fn good(&self) -> bool {
        self.checks.iter().all(|check| check.pass)
    }
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n   s   MiB   files   threads   CPU s   Down")?;
        let step = (self.samples.len() / MAX_PRINTED_SAMPLES).max(1);
        for sample in self.samples.iter().step_by(step) {
            writeln!(
                f,
                "{:>4} {:>5.1} {:>7} {:>9} {:>7.1} {:>6}",
                sample.seconds,
                sample.resident_bytes / MEBIBYTE,
                sample.open_files,
                sample.threads,
                sample.cpu_seconds,
                sample.down
            )?;
        }
        self.checks.iter().try_for_each(|check| check.fmt(f))
    }
}

/// One check of a summary.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    about: &'static str,
    pass: bool,
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

/// Scrapes until `stopped` is true, and reads each scrape with `gauge`. Returns the samples and the errors.
pub(crate) async fn sample<F: Future<Output = anyhow::Result<String>>>(
    length: Duration,
    mut stopped: watch::Receiver<bool>,
    scrape: impl Fn() -> F,
    gauge: impl Fn(&str, &str) -> f64,
) -> (Vec<Sample>, Vec<String>) {
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
            Ok(metrics) => samples.push(Sample {
                seconds: begun.elapsed().as_secs(),
                resident_bytes: gauge(&metrics, "process_resident_memory_bytes"),
                open_files: gauge(&metrics, "process_open_fds"),
                threads: gauge(&metrics, "process_threads"),
                cpu_seconds: gauge(&metrics, "process_cpu_seconds_total"),
                down: gauge(&metrics, "headgate_pool_actual_down"),
            }),
            Err(error) => failures.push(format!("a scrape failed: {error:#}")),
        }
    }
}

/// The start times of a program's tasks and of its process.
pub(crate) async fn tasks(address: SocketAddr) -> anyhow::Result<Value> {
    let (_, body) = http::get_json(address, "/statusz").await?;
    let status: Value = serde_json::from_str(&body)?;
    Ok(json!({"startedAt": status["startedAt"], "tasks": status["tasks"]}))
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
