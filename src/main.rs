//! The `headgate` binary: parses arguments, runs one subcommand, turns its outcome into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    headgate::cli::run()
}
