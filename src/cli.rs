//! The command line: one file a subcommand, arguments in, exit code out, no logic.
//!
//! Exit codes of every subcommand: 0 done, 1 a failure while running, 2 wrong arguments or settings.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use hyper::Uri;
use jiff::SignedDuration;

mod agent;
mod azure;
#[cfg(feature = "sandbox")]
mod azure_emulator;
mod generate;
mod probe;
mod restore;
#[cfg(feature = "sandbox")]
mod sandbox;
mod spans;
mod status;
mod why;

/// Exit code for wrong arguments or settings.
const EXIT_SETTINGS: u8 = 2;
/// Exit code for a failure while running.
const EXIT_RUNTIME: u8 = 1;
/// The longest duration that an argument may have. A much longer one is a mistake, or exceeds the clock.
const MAX_DURATION: Duration = Duration::from_hours(24);

/// Stops load-balancer traffic to a Kubernetes node before the node goes away.
#[derive(Debug, Parser)]
#[command(name = "headgate", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve /healthz and /livez for one node, beside kube-proxy
    Agent(agent::Arguments),
    /// Say why new connections are or are not sent to a node, since when, and what would change it
    Why(why::Arguments),
    /// Show nodes and backend pools: signals, admin states and whose they are, who leads, what probes ask
    Status(status::Arguments),
    Restore(restore::Arguments),
    /// Ask the agent in this container, over its Unix socket, whether it is live or ready
    Probe(probe::Arguments),
    #[cfg(feature = "sandbox")]
    Sandbox(sandbox::Arguments),
    #[cfg(feature = "sandbox")]
    AzureEmulator(azure_emulator::Arguments),
    /// Print a completion script for a shell
    Completions(generate::CompletionsArguments),
    /// Print the man page
    Man,
}

/// The command line's definition, for the man page, completions and the generated reference.
#[must_use]
pub fn definition() -> clap::Command {
    Arguments::command()
}

/// Parses the process's arguments and runs what they ask for.
#[must_use]
pub fn run() -> ExitCode {
    match Arguments::parse().command {
        Command::Agent(arguments) => agent::run(&arguments),
        Command::Why(arguments) => why::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
        Command::Probe(arguments) => probe::run(&arguments),
        #[cfg(feature = "sandbox")]
        Command::Sandbox(arguments) => sandbox::run(&arguments),
        #[cfg(feature = "sandbox")]
        Command::AzureEmulator(arguments) => azure_emulator::run(&arguments),
        Command::Completions(arguments) => generate::completions(&arguments),
        Command::Man => generate::man(),
    }
}

/// Says on standard error what went wrong, with its causes, and what to do about it.
#[expect(clippy::print_stderr, reason = "the one place where a command reports its failure")]
fn fail(code: u8, error: &anyhow::Error) -> ExitCode {
    eprintln!("headgate: {}", headgate_telemetry::error_chain(error.as_ref()));
    ExitCode::from(code)
}

/// Parses a duration of at most [`MAX_DURATION`], in the notation that jiff calls friendly.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text
        .parse::<SignedDuration>()
        .ok()
        .and_then(|duration| duration.try_into().ok());
    match parsed {
        Some(duration) if duration <= MAX_DURATION => Ok(duration),
        Some(_) => Err(format!("give at most {} h", MAX_DURATION.as_secs() / 3600)),
        None => Err("give a duration with its unit, such as 500ms, 30s or 1m30s".to_owned()),
    }
}

/// An address that can be asked without TLS.
fn http_url(text: &str) -> Result<Uri, String> {
    let allowed = || "allowed: an http URL, such as http://127.0.0.1:10457/statusz".to_owned();
    let uri: Uri = text.parse().map_err(|_| allowed())?;
    if uri.scheme_str() == Some("http") && uri.authority().is_some() {
        Ok(uri)
    } else {
        Err(allowed())
    }
}

/// Writes a whole text to standard output; a reader that went away early is not a failure.
fn print(text: &[u8]) -> ExitCode {
    match io::stdout().lock().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(
            EXIT_RUNTIME,
            &anyhow::Error::new(error).context("writing to standard output"),
        ),
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_at_most_a_day() {
        for (text, parsed) in [
            ("500ms", Some(Duration::from_millis(500))),
            ("1m30s", Some(Duration::from_secs(90))),
            ("24h", Some(MAX_DURATION)),
            ("24h 1s", None),
            ("9223372036854775807s", None),
            ("-1s", None),
            ("30", None),
            ("soon", None),
        ] {
            assert_eq!(duration(text).ok(), parsed, "{text}");
        }
        assert_eq!(duration("25h"), Err("give at most 24 h".to_owned()));
    }
}
