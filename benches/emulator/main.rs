//! The benchmarks of the ARM emulator: the release `headgate azure-emulator` on a socket, over kept connections.
//!
//! Large pools, many clients at once, and what it holds in memory while it goes on. Each has an emulator of its own;
//! the table and the files are as the agent's. There are no budgets: the figures are for whoever
//! changes the emulator. `make bench-emulator ARGS='-- memory'` runs those whose names contain a word.

#[path = "../azure_emulator/azure_emulator.rs"]
mod azure_emulator;
#[expect(dead_code, reason = "budgets, and medians over rounds, are the agent's")]
#[path = "../measuring/measuring.rs"]
mod measuring;

mod load;
mod rows;
mod world;

use std::process::ExitCode;

use measuring::Machine;
use measuring::selection::Arguments;
use rows::ROWS;
use world::World;

fn main() -> ExitCode {
    let Some(arguments) = Arguments::read() else {
        return ExitCode::SUCCESS;
    };
    arguments.exit(measure(&arguments))
}

/// Runs the chosen rows; there is no budget to be missed.
fn measure(arguments: &Arguments) -> anyhow::Result<bool> {
    let chosen = arguments.choose(ROWS)?;
    Machine::take()?.report(async |cores, report| {
        for row in chosen {
            let mut world = World::start(cores).await?;
            let measured = measuring::measure(&[row], &mut world, report).await;
            world.stop().await;
            measured?;
        }
        Ok(())
    })
}
