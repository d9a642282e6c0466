//! The formats of the commands that show something, and `-w`: those of `kubectl`.
//!
//! Invariant: a watch prints a report only if it differs from the one before in more than its time. What a report shows is the
//! report's own; tables and JSON are made there.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;

use crate::report::{Detail, Report};

use super::colour::print_coloured;
use super::{Failure, duration_up_to, print, print_json, print_yaml};

/// The longest `--interval`. The help has it, too.
const MAX_INTERVAL: Duration = Duration::from_hours(1);
/// The shortest, so that a watch does not load the API server and ARM.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The `apiVersion` of JSON and YAML.
const OUTPUT_VERSION: &str = "cli.headgate.dev/v1alpha1";

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Output {
    Text,
    /// With more columns or facts, and all rows
    Wide,
    Json,
    Yaml,
    /// TYPE/NAME, one a line
    Name,
}

#[derive(Debug, Args)]
pub(super) struct WatchArguments {
    /// Read again every --interval, and print what has changed
    #[arg(short, long)]
    watch: bool,

    /// Time between two reads of --watch, at most 1h
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_INTERVAL), default_value = "5s", requires = "watch")]
    interval: Duration,
}

/// Prints what `read` returns, and with `--watch` again whenever it has changed, until the process is stopped or standard output
/// has no reader left. A failed read of a watch is reported once, and tried again.
pub(super) async fn show<T: Report>(
    output: Output,
    arguments: &WatchArguments,
    read: impl AsyncFn() -> Result<T, Failure>,
) -> Result<(), Failure> {
    let mut shown = read().await?;
    print_report(output, &shown)?;
    if !arguments.watch {
        return Ok(());
    }
    let mut failure = None;
    loop {
        tokio::time::sleep(arguments.interval.max(MIN_INTERVAL)).await;
        if !has_reader() {
            return Ok(());
        }
        match read().await {
            Ok(report) => {
                failure = None;
                if report.comparable() != shown.comparable() {
                    match output {
                        Output::Text | Output::Wide => print(format!("\n{:.0}\n", report.taken_at()).as_bytes())?,
                        Output::Yaml => print(b"---\n")?,
                        _ => {}
                    }
                    print_report(output, &report)?;
                    shown = report;
                }
            }
            Err(error) => {
                let text = error.error.to_string();
                if failure.as_ref() != Some(&text) {
                    super::report("headgate", &error.error);
                    failure = Some(text);
                }
            }
        }
    }
}

/// Whether standard output can still be read by another program, as a pipe to `head` cannot once it has ended. A file or a terminal
/// always can.
fn has_reader() -> bool {
    let stdout = io::stdout();
    let mut descriptors = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    // Where the question itself fails, the next write decides.
    let answered = poll(&mut descriptors, PollTimeout::ZERO).is_ok();
    let closed = PollFlags::POLLERR | PollFlags::POLLHUP;
    !answered || !descriptors[0].revents().is_some_and(|events| events.intersects(closed))
}

/// A report with what says how to read it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Typed<'a, T> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    report: &'a T,
}

impl<'a, T: Report> Typed<'a, T> {
    fn new(kind: &'static str, report: &'a T) -> Self {
        Self {
            api_version: OUTPUT_VERSION,
            kind,
            report,
        }
    }
}

/// Prints a report in this format.
pub(super) fn print_report<T: Report>(output: Output, report: &T) -> Result<(), Failure> {
    let print_text = |text: &str| {
        if T::IS_COLOURED {
            print_coloured(text)
        } else {
            print(text.as_bytes())
        }
    };
    match output {
        Output::Text => print_text(&report.text(Detail::Narrow)),
        Output::Wide => print_text(&report.text(Detail::Wide)),
        Output::Json => match T::KIND {
            Some(kind) => print_json(&Typed::new(kind, report)),
            None => print_json(report),
        },
        Output::Yaml => match T::KIND {
            Some(kind) => print_yaml(&Typed::new(kind, report)),
            None => print_yaml(report),
        },
        Output::Name => {
            let names = report.names();
            let lines = names
                .iter()
                .map(|name| format!("{}\n", headgate_core::telemetry::escape_line(name)));
            print(lines.collect::<String>().as_bytes())
        }
    }
}
