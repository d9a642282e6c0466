//! The benchmarks of the ARM emulator: the release `headgate azure-emulator` on a socket, over kept connections.
//!
//! Large pools, many clients at once, and what it holds in memory while it goes on. Each has an emulator of its own;
//! the table and the files are as the agent's (`benches/agent`). There are no budgets: the figures are for whoever
//! changes the emulator. `make bench-emulator ARGS='-- memory'` runs those whose names contain a word.

#[path = "../agent/cpu.rs"]
mod cpu;
#[expect(dead_code, reason = "medians over rounds are the agent's")]
#[path = "../agent/figures.rs"]
mod figures;
#[path = "../agent/memory.rs"]
mod memory;
#[expect(dead_code, reason = "there are no budgets here")]
#[path = "../agent/report.rs"]
mod report;

mod client;
mod load;
mod rows;
mod world;

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use report::Report;
use rows::ROWS;
use world::World;

fn main() -> ExitCode {
    // `cargo test --benches` runs it without this.
    if !env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    match measure(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs the chosen rows.
fn measure(words: &[String]) -> anyhow::Result<()> {
    let chosen: Vec<_> = ROWS
        .iter()
        .filter(|row| words.is_empty() || words.iter().any(|word| row.name.contains(word.as_str())))
        .collect();
    if chosen.is_empty() {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        anyhow::bail!("no benchmark is called so; there are {}", names.join(", "));
    }
    memory::raise_open_files()?;
    let precedence = cpu::Precedence::take();
    let cores = cpu::Cores::take()?;
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("headgate-bench");
    let mut report = Report::new(&cores, precedence.allowed, directory)?;
    // One thread: the child is bound to the one that starts it, and load is made on it as well.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        for row in chosen {
            say(&format!("{}: {}", row.name, row.about));
            let world = World::start(&cores).await?;
            let measured = tokio::select! {
                measured = (row.measure)(&world) => measured,
                _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
            };
            world.stop().await;
            report.add(row.name, measured)?;
        }
        anyhow::Ok(())
    })?;
    report.finish().map(drop)
}

/// A line for the person who watches; one that nobody reads is not worth failing for.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
