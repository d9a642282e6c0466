//! `headgate sandbox`.
use std::process::ExitCode;
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {}
pub(super) fn run(_: &Arguments) -> ExitCode {
    ExitCode::SUCCESS
}
