//! Benchmarks of the ARM emulator: a process of its own on a socket, with persistent connections.
//!
//! They measure large pools, many clients at once, and the memory over many requests, each with a new emulator. Table
//! and files are the same as in the agent's benchmarks. There are no budgets. `make bench-emulator ARGS='-- memory'`
//! runs those whose names contain a word.

#[path = "../azure_emulator/azure_emulator.rs"]
mod azure_emulator;
#[expect(
    dead_code,
    reason = "only the agent's benchmarks have budgets and medians over rounds"
)]
#[path = "../measuring/measuring.rs"]
mod measuring;

mod fixture;
mod load;
mod rows;

use std::process::ExitCode;

use fixture::Fixture;
use measuring::Machine;
use measuring::selection::Arguments;
use rows::ROWS;

fn main() -> ExitCode {
    if let Some(code) = azure_emulator::serve() {
        return code;
    }
    let Some(arguments) = Arguments::read() else {
        return ExitCode::SUCCESS;
    };
    arguments.exit(measure(&arguments))
}

/// Runs the selected rows; there is no budget to exceed.
fn measure(arguments: &Arguments) -> anyhow::Result<bool> {
    let chosen = arguments.choose(ROWS)?;
    Machine::take()?.report(async |cores, report| {
        for row in chosen {
            let mut fixture = Fixture::start(cores).await?;
            let measured = measuring::measure(&[row], &mut fixture, report).await;
            fixture.stop().await;
            measured?;
        }
        Ok(())
    })
}
