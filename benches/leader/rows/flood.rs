//! A leader's whole processor time, all parsing, HTTP and TLS of the API server's side included, and its bytes, for
//! 1,000 of 5,000 Nodes tainted at once.
//!
//! Nodes cannot be tainted at the same instant, so another writer holds the shared Lease meanwhile. The time that the leader
//! uses while the taints arrive is counted separately from the time after it gets the Lease.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::azure::Azure;
use crate::documents::Shape;
use crate::measuring::cpu_time;
use crate::measuring::figures::{float, mebibytes, millis, rounded};
use crate::measuring::report::{Budget, Check, Row};
use crate::program::{Program, count};
use crate::world::World;

const SHAPE: Shape = Shape::LARGE;
const TAINTED: usize = 1000;
/// Time after the last change in which events and the ledger are written.
const QUIET: Duration = Duration::from_secs(5);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(SHAPE.nodes).await?;
    let azure = Azure::start(SHAPE).await?;
    let leader = Program::start(world, &azure).await?;
    tokio::time::sleep(QUIET).await;
    world.take_lock().await?;
    let (start, journal) = (cpu_time::process(leader.id)?, azure.now().await?);
    let expected = TAINTED * SHAPE.all_pools();
    let tainting = Instant::now();
    world.taint(0..TAINTED, true).await?;
    let tainting = tainting.elapsed();
    // Metrics are read rarely, because each answer costs processor time too.
    quiet(&leader, |metrics| {
        count(metrics, "headgate_pool_desired_down") == expected
    })
    .await?;
    let seen = cpu_time::process(leader.id)?;
    let before = azure.since(journal).await?;
    let writing = Instant::now();
    world.release_lock().await?;
    let done = |metrics: &str| {
        count(metrics, "headgate_pool_actual_down") == expected
            && count(metrics, "headgate_admin_state_queue_depth") == 0
    };
    quiet(&leader, done).await?;
    let writing = writing.elapsed();
    let confirmed = cpu_time::process(leader.id)?;
    world.lock_free().await?;
    tokio::time::sleep(QUIET).await;
    let end = cpu_time::process(leader.id)?;
    let all = azure.since(journal).await?;
    leader.stop().await;
    azure.stop().await;
    world.taint(0..TAINTED, false).await?;

    let time = |figure, time| Check::new(figure, millis(time), "ms", None, Budget::None);
    let bytes = |figure, count: u64| Check::new(figure, mebibytes(count), "MiB", None, Budget::None);
    Ok(Row {
        checks: vec![
            Check::new(
                "processor time, Lease free → Down read back",
                millis(confirmed.saturating_sub(seen)),
                "ms",
                None,
                Budget::Most(150.0),
            ),
            time("processor time while 1,000 taints came in", seen.saturating_sub(start)),
            time(
                "processor time after that: events, ledger",
                end.saturating_sub(confirmed),
            ),
            bytes("sent to ARM", all.sent),
            bytes(
                "received from ARM, Lease free → the end",
                all.received - before.received,
            ),
            bytes("received from ARM while taints came in", before.received),
            Check::new(
                "PUTs",
                float(all.puts as u64),
                "",
                None,
                Budget::Most(float(SHAPE.all_pools() as u64)),
            ),
        ],
        raw: json!({
            "tainted": TAINTED, "nodes": SHAPE.nodes, "pools": SHAPE.all_pools(), "armRequests": all.requests,
            "taintingSeconds": rounded(tainting.as_secs_f64()), "writingSeconds": rounded(writing.as_secs_f64()),
        }),
    })
}

/// Waits for a metric, with only ten reads per second.
async fn quiet(leader: &Program, reached: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    for _ in 0..1800 {
        if reached(&leader.metrics().await?) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("the leader does not come to an end")
}
