//! What headgate costs a large cluster: real API server, agents and two controllers, Nodes up to 50,000, ten load balancers.
//!
//! Phases follow each other: at rest, churn, 1,000 signals at once, a taint of three tenths of the Nodes, the death of the leader, a restart of
//! the API server, and a slow ARM that throttles. `make scale NODES=10000 AGENTS=300 MINUTES=10` runs it; it is not part of `cargo bench` or
//! `cargo test`. The report and its plots go to `target/headgate-bench/scale-NODES`. A budget that is missed is in the report and fails
//! nothing; a phase that did not happen does.

#[expect(dead_code, reason = "some requests are those of other benchmarks")]
#[path = "../leader/azure.rs"]
mod azure;
#[path = "../azure_emulator/azure_emulator.rs"]
mod azure_emulator;
#[expect(dead_code, reason = "the load balancers of other benchmarks all have the same nodes")]
#[path = "../leader/documents.rs"]
mod documents;
#[expect(dead_code, reason = "there are no rows")]
#[path = "../measuring/measuring.rs"]
mod measuring;
#[expect(dead_code, reason = "controllers are the fleet's")]
#[path = "../leader/program.rs"]
mod program;
#[expect(dead_code, reason = "some changes are those of other benchmarks")]
#[path = "../leader/world.rs"]
mod world;

mod audit;
mod computed;
mod fleet;
mod node_updates;
mod options;
mod phases;
mod recording;
mod report;
mod scenario;
mod services;
mod signals;
mod traffic;

use std::env;
use std::process::ExitCode;

use headgate_sandbox::Interrupts;

use measuring::memory;
use measuring::output::say;
use options::Options;

fn main() -> ExitCode {
    if let Some(code) = azure_emulator::serve() {
        return code;
    }
    // `cargo test --benches` does not set this argument.
    if !env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let options = Options::read()?;
    memory::raise_open_files()?;
    // Child processes end with the thread that starts them, so this thread starts all of them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (report, measured) = runtime.block_on(async {
        let interrupts = Interrupts::listen()?;
        Box::pin(scenario::run(&options, interrupts)).await
    })?;
    report.write(&options.directory())?;
    measured
}
