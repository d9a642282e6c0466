//! `headgate completions` and `headgate man`: texts generated from the command line's definition.

use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use super::{EXIT_RUNTIME, definition, fail, print};

#[derive(Debug, Args)]
pub(super) struct CompletionsArguments {
    /// The shell to write for
    shell: Shell,
}

pub(super) fn completions(arguments: &CompletionsArguments) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut definition(), "headgate", &mut text);
    print(&text)
}

pub(super) fn man() -> ExitCode {
    let mut text = Vec::new();
    match clap_mangen::Man::new(definition()).render(&mut text) {
        Ok(()) => print(&text),
        Err(error) => fail(EXIT_RUNTIME, &anyhow::Error::new(error).context("writing the man page")),
    }
}
