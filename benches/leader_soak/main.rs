//! A long run of one leader: 500 Nodes whose signals come and go, a stand-in for cloud-controller-manager that shares the Lease
//! and the pools, faults of ARM, and outages of the API server.
//!
//! At checkpoints all disturbances pause, and every pool entry has to reach the state that the signals require. At the end
//! memory, ledger, open files, threads and tasks are where they were. `make soak-leader` runs it for `SOAK_SECONDS`, by default
//! one hour; it is not part of `cargo bench` or `cargo test`. The summary goes to `target/headgate-bench/leader-soak.json`.

#[expect(dead_code, reason = "some requests are those of other benchmarks")]
#[path = "../leader/azure.rs"]
mod azure;
#[expect(dead_code, reason = "some requests are those of other benchmarks")]
#[path = "../azure_emulator/azure_emulator.rs"]
mod azure_emulator;
#[expect(dead_code, reason = "the soak has no network interfaces")]
#[path = "../leader/documents.rs"]
mod documents;
#[expect(dead_code, reason = "the soak sends no probes")]
#[path = "../soak/http.rs"]
mod http;
#[expect(dead_code, reason = "the soak has no rows")]
#[path = "../measuring/measuring.rs"]
mod measuring;
#[expect(dead_code, reason = "some conditions are those of other benchmarks")]
#[path = "../leader/program.rs"]
mod program;
#[path = "../measuring/soaking.rs"]
mod soaking;
#[expect(dead_code, reason = "some changes are those of other benchmarks")]
#[path = "../leader/world.rs"]
mod world;

mod checkpoint;
mod cloud_controller_manager;
mod scenario;
mod signals;
mod summary;

use std::process::ExitCode;
use std::time::Duration;

use headgate_sandbox::assets::Assets;

use azure::Azure;
use documents::{Members, Shape};
use measuring::conditions;
use measuring::output::{self, say};
use program::Program;
use summary::Summary;
use world::World;

/// A shorter run has no outage and shows nothing about memory.
const LEAST_SECONDS: u64 = 120;
const SHAPE: Shape = Shape {
    members: Members::Addresses,
    load_balancers: 2,
    pools: 2,
    nodes: 500,
};

fn main() -> ExitCode {
    if let Some(code) = azure_emulator::serve() {
        return code;
    }
    soaking::main(LEAST_SECONDS, run)
}

fn run(length: Duration) -> anyhow::Result<bool> {
    // Child processes end with the thread that starts them, so this thread starts all of them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let summary = runtime.block_on(soak(length))?;
    soaking::report(&summary, "leader-soak.json")?;
    Ok(summary.course.good())
}

async fn soak(length: Duration) -> anyhow::Result<Summary> {
    let mut world = World::start(Assets::find(None)?).await?;
    world.nodes(SHAPE.nodes).await?;
    let azure = Azure::start(SHAPE).await?;
    let leader = Program::start(&mut world, &azure).await?;
    say(&format!(
        "a leader works on {} pool entries for {} s",
        azure.entries(),
        length.as_secs()
    ));
    let result = scenario::run(&mut world, &azure, &leader, length).await;
    leader.stop().await;
    azure.stop().await;
    world.stop().await;
    Ok(Summary::new(length, result?))
}
