//! A leader with 5,000 Nodes in 3 NIC pools of one load balancer, the default of AKS: its document has many megabytes.
//!
//! Measured is the time from a signal to the request for the shared Lease while a list is being read. Memory is `make scale`'s.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::time::sleep;

use crate::azure::Azure;
use crate::documents::{CLUSTER, Members, Shape};
use crate::instrumented_leader::InstrumentedLeader;
use crate::measuring::figures::{mebibytes, millis, quantile, rounded};
use crate::measuring::report::{Budget, Check, Row};
use crate::program::count;
use crate::world::World;

const SHAPE: Shape = Shape {
    members: Members::Interfaces,
    load_balancers: 1,
    pools: 3,
    nodes: 5000,
};
/// Signals while a list is being read.
const TRIALS: usize = 20;
/// Between the read that confirms a write and the next list.
const LIST_PAUSE: Duration = Duration::from_secs(1);
/// For a list to start after another writer has released the Lease.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(SHAPE.nodes).await?;
    let azure = Azure::start(SHAPE).await?;
    let document = azure.load_balancer(CLUSTER).await?.len();
    let decided = decisions(world, &azure).await?;
    azure.stop().await;
    let check = |figure, times: &[Duration], per_mille, budget| {
        let (name, time) = quantile(times, per_mille);
        Check::new(format!("{figure}, {name}"), millis(time), "ms", None, budget)
    };
    Ok(Row {
        checks: vec![
            check(
                "signal read → decided while a list is read",
                &decided.elapsed,
                990,
                Budget::Most(5.0),
            ),
            check("the same", &decided.elapsed, 500, Budget::None),
            check("processor time of the same", &decided.processor, 990, Budget::None),
            check("processor time of the same", &decided.processor, 500, Budget::None),
        ],
        raw: json!({
            "nodes": SHAPE.nodes, "pools": SHAPE.all_pools(), "documentMiB": rounded(mebibytes(document as u64)),
            "trials": TRIALS, "decisionMillis": in_millis(&decided.elapsed), "decisionProcessorMillis": in_millis(&decided.processor),
        }),
    })
}

/// From a signal to the request for the Lease.
#[derive(Default)]
struct Decisions {
    elapsed: Vec<Duration>,
    /// The processor time of the leader's thread. The rest of `elapsed` waits for a processor, which the emulator, the API server and
    /// the thread that parses the list use as well.
    processor: Vec<Duration>,
}

fn in_millis(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|time| rounded(millis(*time))).collect()
}

/// The times from a signal to the request for the Lease. Each signal comes while a list is read, which the release of the Lease
/// by another writer has started.
async fn decisions(world: &mut World, azure: &Azure) -> anyhow::Result<Decisions> {
    let leader = InstrumentedLeader::start(world, azure).await?;
    let mut decided = Decisions::default();
    for trial in 0..=TRIALS {
        sleep(LIST_PAUSE).await;
        leader.forget();
        world.take_lock().await?;
        world.release_lock().await?;
        let released = Instant::now();
        while leader.seen().last.is_none() {
            ensure!(released.elapsed() < LIST_TIMEOUT, "the list has not started");
            sleep(Duration::from_millis(1)).await;
        }
        // It takes some hundred milliseconds.
        sleep(Duration::from_millis(u64::try_from(trial)? * 5 % 100)).await;
        world.taint(trial..trial + 1, true).await?;
        leader
            .until("one more Node is Down", |metrics| {
                count(metrics, "headgate_pool_actual_down") == (trial + 1) * SHAPE.all_pools()
            })
            .await?;
        // The first trial creates the shared Lease and is not counted.
        if trial > 0 {
            let seen = leader.seen();
            let (signal, asked) = (
                seen.signal.context("a signal")?,
                seen.asked.context("the Lease asked for")?,
            );
            decided.elapsed.push(asked.saturating_duration_since(signal));
            decided.processor.push(seen.decision_processor_time());
        }
    }
    leader.stop()?;
    world.taint(0..TRIALS + 1, false).await?;
    Ok(decided)
}
