//! The `headgate-lab` binary: what headgate's authors and the curious run. It starts the product's program, `headgate`, as any
//! user does; the product does not depend on it.
//!
//! One file for each subcommand. Exit codes are those of `headgate`: 0 success, 1 a failure while running, 2 wrong arguments or settings.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use headgate::cli::{exit_code, generate};

mod azure_emulator;
mod budget;
mod drill;
mod drill_report;
mod headgate_program;
mod sandbox;

/// Try out headgate on one machine: a cluster, drills, an emulated Azure, and the arithmetic behind them
#[derive(Debug, Parser)]
#[command(name = "headgate-lab", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Sandbox(sandbox::Arguments),
    AzureEmulator(azure_emulator::Arguments),
    Drill(Box<drill::Arguments>),
    DrillReport(drill_report::Arguments),
    Budget(budget::Arguments),
    /// Print a completion script for a shell
    Completions(generate::CompletionsArguments),
    /// Print the man page
    Man,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Sandbox(arguments) => sandbox::run(&arguments),
        Command::AzureEmulator(arguments) => azure_emulator::run(&arguments),
        Command::Drill(arguments) => drill::run(&arguments),
        Command::DrillReport(arguments) => drill_report::run(&arguments),
        Command::Budget(arguments) => budget::run(&arguments),
        Command::Completions(arguments) => generate::completions(&arguments, Arguments::command()),
        Command::Man => generate::man(Arguments::command()),
    };
    exit_code("headgate-lab", outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_flag_has_a_documented_maximum() {
        let mut found = 0;
        for command in Arguments::command().get_subcommands() {
            for argument in command.get_arguments() {
                let names = argument.get_value_names().unwrap_or_default();
                if !names.iter().any(|name| *name == "DURATION") {
                    continue;
                }
                found += 1;
                let flag = argument.get_long().unwrap();
                let help = argument.get_help().unwrap().to_string();
                assert!(help.contains("at most "), "{flag}: {help}");
                for value in ["1000000h", "-1s", "5"] {
                    let given = format!("--{flag}={value}");
                    let error = Arguments::try_parse_from(["headgate-lab", command.get_name(), &given]).unwrap_err();
                    assert_eq!(error.exit_code(), 2, "{error}");
                    let text = error.to_string();
                    assert!(
                        text.contains(flag) && text.contains("allowed: a duration from 0s to "),
                        "{text}"
                    );
                }
            }
        }
        assert!(found >= 10, "{found}");
    }
}
