//! The benchmarks of the node agent, beside the real kube-proxy and a bare hyper responder.
//!
//! `cargo bench` starts a control plane, a kube-proxy and the release `headgate agent` in a network
//! namespace of its own and measures them in the same run, on the same two cores. Every row with
//! budgets has a file in `rows/`; its figures are printed as a table and written to
//! `target/headgate-bench/NAME.json`. Compare ratios: absolute figures depend on the machine.
//!
//! `cargo bench -- taint memory` runs the rows whose names contain one of these words. A budget that is
//! missed is shown; with `cargo bench -- --strict` it also fails the run. A row that could not be measured always does.

#[expect(dead_code, reason = "processor time of one thread is the leader's")]
#[path = "../measuring/measuring.rs"]
mod measuring;

mod bare;
mod flood;
mod http;
mod load;
mod namespace;
mod rows;
mod world;

use std::env;
use std::process::ExitCode;

use anyhow::Context as _;
use headgate_sandbox::assets::Assets;

use measuring::Machine;
use measuring::output::say;
use measuring::selection::Arguments;
use rows::ROWS;
use world::World;

fn main() -> ExitCode {
    let own: Vec<String> = env::args().skip(1).collect();
    if let Some(responder) = bare::Arguments::read(&own) {
        if let Err(error) = bare::run(&responder) {
            say(&format!("error: {error:#}"));
            return ExitCode::FAILURE;
        }
        return ExitCode::SUCCESS;
    }
    let Some(arguments) = Arguments::read() else {
        say("benchmarks are run by `cargo bench`");
        return ExitCode::SUCCESS;
    };
    arguments.exit(measure(&arguments))
}

/// Runs the selected rows; returns whether every budget was kept.
fn measure(arguments: &Arguments) -> anyhow::Result<bool> {
    let chosen = arguments.choose(ROWS)?;
    let assets = Assets::find(None).context("the benchmarks need the real control plane (`make bench` builds it)")?;
    // Must run before a second thread exists.
    namespace::enter()?;
    Machine::take()?.report(async |cores, report| {
        say("starting etcd, kube-apiserver, kube-proxy and headgate");
        let mut world = World::start(assets, cores.clone()).await?;
        let measured = measuring::measure(&chosen, &mut world, report).await;
        world.stop().await;
        measured
    })
}
