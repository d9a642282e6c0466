//! The command line: one file for each subcommand, which turns its arguments into a call and the outcome into an exit code.
//!
//! What is public is used by the subcommands of `headgate-lab`, too.

#![expect(
    clippy::doc_markdown,
    reason = "doc comments of arguments are the help, where backticks would show"
)]

use std::ffi::OsStr;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{FromArgMatches as _, Parser, Subcommand};
pub use headgate_core::settings::duration_up_to;
use headgate_core::telemetry::escape_line;
use hyper::Uri;
use tokio::runtime::{Builder, Runtime};

mod agent;
pub mod azure;
mod azure_setup;
mod check;
mod clean_nodes;
pub mod cluster;
mod colour;
mod complete;
mod connections;
mod drain;
pub mod generate;
mod help;
mod hold;
mod output;
mod plan;
mod prepare_uninstall;
pub(super) mod probe;
mod restore;
mod signals;
mod spans;
mod status;
mod sysdump;
mod undrain;
mod verify;
mod version;
mod why;

use crate::failure::report;
pub use crate::failure::{EXIT_CODES, EXIT_INTERRUPTED, Failure, exit_code};
pub use help::definition;

/// The file by which `kubectl headgate` finds the program.
const PLUGIN_FILE: &str = "kubectl-headgate";

/// Stops load-balancer traffic to a Kubernetes node before the node goes away.
#[derive(Debug, Parser)]
#[command(name = "headgate", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve /healthz and /livez for one node beside kube-proxy, and lead: write admin states, act on maintenances
    Agent(agent::Arguments),
    /// Explain what /healthz of a node answers and why, since when, and what would change that
    Why(why::Arguments),
    /// Show nodes and backend pools: signals, admin states and their owners, the leader, health answers
    Status(status::Arguments),
    /// Show the versions of this program and of headgate's agents and controllers in the cluster
    Version(version::Arguments),
    Sysdump(sysdump::Arguments),
    Restore(restore::Arguments),
    #[command(hide = true)]
    PrepareUninstall(prepare_uninstall::Arguments),
    CleanNodes(clean_nodes::Arguments),
    Drain(drain::Arguments),
    Undrain(undrain::Arguments),
    Plan(plan::Arguments),
    AzureSetup(azure_setup::Arguments),
    Check(check::Arguments),
    Verify(verify::Arguments),
    Connections(connections::Arguments),
    #[command(hide = true)]
    Hold(hold::Arguments),
    /// Ask the agent in this container over its Unix socket whether it is live or ready
    #[command(hide = true)]
    Probe(probe::Arguments),
    /// Print a completion script for a shell
    Completions(generate::CompletionsArguments),
    /// Print the man page
    Man,
}

/// The name by which the program was called, for usage lines: that of a plugin of `kubectl` is `kubectl headgate`.
fn bin_name(program: &OsStr) -> &'static str {
    match Path::new(program).file_name() {
        Some(name) if name == PLUGIN_FILE => "kubectl headgate",
        _ => "headgate",
    }
}

/// The arguments of the process. Exits after `--help`, `--version` and wrong ones.
fn parse_arguments() -> Arguments {
    let program = std::env::args_os().next().unwrap_or_default();
    let mut definition = definition().bin_name(bin_name(&program));
    let parsed = Arguments::from_arg_matches(&definition.get_matches_mut());
    parsed.unwrap_or_else(|error| error.format(&mut definition).exit())
}

/// Parses the arguments of the process and runs their subcommand.
pub fn run() -> ExitCode {
    if complete::answer() {
        return ExitCode::SUCCESS;
    }
    let outcome = match parse_arguments().command {
        Command::Agent(arguments) => agent::run(&arguments),
        Command::Why(arguments) => why::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Version(arguments) => version::run(&arguments),
        Command::Sysdump(arguments) => sysdump::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
        Command::PrepareUninstall(arguments) => prepare_uninstall::run(&arguments),
        Command::CleanNodes(arguments) => clean_nodes::run(&arguments),
        Command::Drain(arguments) => drain::run(&arguments),
        Command::Undrain(arguments) => undrain::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::AzureSetup(arguments) => azure_setup::run_command(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Connections(arguments) => connections::run(&arguments),
        Command::Hold(arguments) => hold::run(&arguments),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Completions(arguments) => generate::completions(&arguments, definition()),
        Command::Man => generate::man(definition()),
    };
    exit_code("headgate", outcome)
}

/// Builds a runtime on this thread.
///
/// # Errors
/// The system refuses it.
pub fn build_runtime() -> Result<Runtime, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("starting the runtime").map_err(Failure::runtime)
}

/// Runs the work of a command. Requests without an answer and programs that give credentials are not waited for.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = build_runtime()?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}

/// A parser of http URLs.
fn http_url(text: &str) -> Result<Uri, String> {
    let allowed = || "allowed: an http URL, such as http://127.0.0.1:10457/statusz".to_owned();
    let uri: Uri = text.parse().map_err(|_| allowed())?;
    if uri.scheme_str() == Some("http") && uri.authority().is_some() {
        Ok(uri)
    } else {
        Err(allowed())
    }
}

/// Asks for confirmation on the terminal. Without a terminal, `--yes` is required. `otherwise` says what was not done.
fn confirm(question: &str, otherwise: &'static str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        anyhow::bail!("standard input is not a terminal, so there is no confirmation; give --yes");
    }
    let mut error = io::stderr().lock();
    write!(error, "{question} [y/N] ")?;
    error.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => anyhow::bail!(otherwise),
    }
}

/// Writes a text to standard output. A reader that closes early is not a failure.
///
/// # Errors
/// It cannot be written.
pub fn print(text: &[u8]) -> Result<(), Failure> {
    written(io::stdout().lock().write_all(text))
}

fn written(outcome: io::Result<()>) -> Result<(), Failure> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::runtime(
            anyhow::Error::new(error).context("writing to standard output"),
        )),
        _ => Ok(()),
    }
}

/// Prints a line about progress, which may have texts of others, to standard error.
fn print_progress(line: &str) {
    // The command goes on without a reader.
    let _ = writeln!(io::stderr().lock(), "headgate: {}", escape_line(line));
}

/// Writes a value to standard output as indented JSON. Strings of others cannot control a terminal.
///
/// # Errors
/// It cannot be written.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut json = serde_json::to_string_pretty(value).map_err(Failure::runtime)?;
    json.push('\n');
    print(headgate_core::telemetry::escape_json(&json).as_bytes())
}

/// Writes a value to standard output as YAML. Strings of others cannot control a terminal.
///
/// # Errors
/// It cannot be written.
pub fn print_yaml(value: &impl serde::Serialize) -> Result<(), Failure> {
    let yaml = serde_yaml::to_string(value).map_err(Failure::runtime)?;
    print(headgate_core::telemetry::escape_lines(&yaml).as_bytes())
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn usage_names_the_program_as_it_was_called() {
        for (program, expected) in [
            ("/root/.krew/bin/kubectl-headgate", "Usage: kubectl headgate why "),
            ("kubectl-headgate", "Usage: kubectl headgate why "),
            ("/usr/bin/headgate", "Usage: headgate why "),
            ("", "Usage: headgate why "),
        ] {
            let mut definition = definition().bin_name(bin_name(OsStr::new(program)));
            let help = definition
                .try_get_matches_from_mut(["any", "why", "--help"])
                .unwrap_err();
            assert!(help.to_string().contains(expected), "{program}: {help}");
        }
    }

    #[test]
    fn every_duration_flag_has_a_documented_maximum() {
        let mut found = 0;
        for command in definition().get_subcommands() {
            let durations = command.get_arguments().filter(|argument| {
                let names = argument.get_value_names().unwrap_or_default();
                names.iter().any(|name| *name == "DURATION")
            });
            for argument in durations {
                found += 1;
                let flag = format!("--{}", argument.get_long().unwrap());
                let help = argument.get_help().unwrap().to_string();
                assert!(help.contains("at most "), "{flag}: {help}");
                for value in ["1000000h", "-1s", "5"] {
                    let arguments = [
                        "headgate".to_owned(),
                        command.get_name().to_owned(),
                        format!("{flag}={value}"),
                    ];
                    let error = Arguments::try_parse_from(arguments).unwrap_err();
                    assert_eq!(
                        (error.kind(), error.exit_code()),
                        (ErrorKind::ValueValidation, 2),
                        "{error}"
                    );
                    let text = error.to_string();
                    for part in [flag.as_str(), value, "allowed: a duration from 0s to "] {
                        assert!(text.contains(part), "no {part} in {text}");
                    }
                }
            }
        }
        assert!(found >= 2, "{found}");
    }
}
