//! The benchmarks of the leader: its latency until requests to ARM, its processor time and memory.
//!
//! A real control plane, the ARM emulator, and either the release `headgate agent --role=controller`
//! or, for the times of single requests, the same leader in this process with instrumented clients. The table and
//! the files are like the agent's. `make bench-leader ARGS='-- pace flood'` runs those whose names contain one of these
//! words; with `--strict` a budget that is missed fails the run.

#[path = "../azure_emulator/azure_emulator.rs"]
mod azure_emulator;
#[expect(dead_code, reason = "one core each, and some budgets, are the agent's")]
#[path = "../measuring/measuring.rs"]
mod measuring;

#[expect(dead_code, reason = "settings are the scale report's")]
mod azure;
#[expect(dead_code, reason = "pools of interfaces are the scale report's")]
mod documents;
mod instrumented_leader;
mod program;
mod rows;
#[expect(dead_code, reason = "outages and kubelets are the scale report's")]
mod world;

use std::process::ExitCode;

use anyhow::Context as _;
use headgate_sandbox::assets::Assets;

use measuring::Machine;
use measuring::output::say;
use measuring::selection::Arguments;
use rows::ROWS;
use world::World;

fn main() -> ExitCode {
    if let Some(code) = azure_emulator::serve() {
        return code;
    }
    let Some(arguments) = Arguments::read() else {
        return ExitCode::SUCCESS;
    };
    arguments.exit(measure(&arguments))
}

/// Runs the selected rows; returns whether every budget was kept.
fn measure(arguments: &Arguments) -> anyhow::Result<bool> {
    let chosen = arguments.choose(ROWS)?;
    let assets =
        Assets::find(None).context("the benchmarks need the real control plane (`make bench-leader` builds it)")?;
    Machine::take()?.report(async |_, report| {
        say("starting etcd and kube-apiserver");
        let mut world = World::start(assets).await?;
        let measured = measuring::measure(&chosen, &mut world, report).await;
        world.stop().await;
        measured
    })
}
