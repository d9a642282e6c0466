//! The benchmarks of the leader: how soon it decides and asks ARM, what it writes, what it costs.
//!
//! A real control plane, the release `headgate azure-emulator`, and either the release `headgate agent --role=controller`
//! or, where the times of single requests count, the same leader in this process with spies on both sides. The table and
//! the files are as the agent's (`benches/agent`). `make bench-leader ARGS='-- pace memory'` runs those whose names contain
//! one of these words; with `--strict` a budget that is missed fails the run.

#[expect(dead_code, reason = "one core each is the agent's")]
#[path = "../agent/cpu.rs"]
mod cpu;
#[expect(dead_code, reason = "medians over rounds are the agent's")]
#[path = "../agent/figures.rs"]
mod figures;
#[path = "../agent/memory.rs"]
mod memory;
#[expect(dead_code, reason = "other budgets are the agent's")]
#[path = "../agent/report.rs"]
mod report;

mod azure;
#[expect(dead_code, reason = "superseded writes are the emulator's")]
#[path = "../emulator/client.rs"]
mod client;
mod documents;
mod processor;
mod program;
mod rows;
mod spied;
mod world;

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use headgate::sandbox::assets::Assets;

use report::Report;
use rows::ROWS;
use world::World;

fn main() -> ExitCode {
    // `cargo test --benches` runs it without this.
    let arguments: Vec<String> = env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let strict = arguments.iter().any(|argument| argument == "--strict");
    let words: Vec<String> = arguments.into_iter().filter(|word| !word.starts_with("--")).collect();
    match measure(&words) {
        Ok(kept) if kept || !strict => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs the chosen rows; whether every budget was kept.
fn measure(words: &[String]) -> anyhow::Result<bool> {
    let chosen: Vec<_> = ROWS
        .iter()
        .filter(|row| words.is_empty() || words.iter().any(|word| row.name.contains(word.as_str())))
        .collect();
    if chosen.is_empty() {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        anyhow::bail!("no benchmark is called so; there are {}", names.join(", "));
    }
    let assets =
        Assets::find(None).context("the benchmarks need the real control plane (`make bench-leader` builds it)")?;
    memory::raise_open_files()?;
    let precedence = cpu::Precedence::take();
    let cores = cpu::Cores::take()?;
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("headgate-bench");
    let mut report = Report::new(&cores, precedence.allowed, directory)?;
    // One thread, as the agent has for this.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        say("starting etcd and kube-apiserver");
        let mut world = World::start(assets).await?;
        for row in chosen {
            say(&format!(
                "{}: {} (load average {})",
                row.name,
                row.about,
                cpu::load_average()
            ));
            let measured = tokio::select! {
                measured = (row.measure)(&mut world) => measured,
                _ = tokio::signal::ctrl_c() => {
                    world.stop().await;
                    anyhow::bail!("interrupted");
                }
            };
            report.add(row.name, measured)?;
        }
        world.stop().await;
        anyhow::Ok(())
    })?;
    report.finish()
}

/// A line for the person who watches; one that nobody reads is not worth failing for.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
