//! A leader's memory with 10,000 EndpointSlices of 2,000 Local Services in 5 load balancers, and without the updater.

use std::time::Duration;

use serde_json::json;

use crate::local_services::{LocalShape, delete};
use crate::measuring::figures::mebibytes;
use crate::measuring::memory::{Memory, forget_peak};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::program::{Program, count};
use crate::world::World;

const SHAPE: LocalShape = LocalShape::MANY;
/// Services that move before the second measurement.
const MOVED: usize = 20;
/// For lists and ticks.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(SHAPE.all_nodes()).await?;
    let uids = SHAPE.create(&world.client).await?;
    let off = one(world, &uids, "localServicePools: Disabled\n", false).await?;
    let on = one(world, &uids, "", true).await?;
    delete(&world.client).await?;
    let check = |figure, of: fn(&Memory) -> u64, budget| {
        let value = |memory: &[Memory; 2]| mebibytes(memory.iter().map(of).max().unwrap_or_default());
        let beside = PeerComparison::one("off", value(&on), value(&off));
        Check::new(figure, value(&on), "MiB", Some(beside), budget)
    };
    Ok(Row {
        checks: vec![
            check(
                "10,000 slices, 2,000 pools: resident",
                |memory| memory.resident,
                Budget::Most(150.0),
            ),
            check("the same: peak", |memory| memory.peak, Budget::None),
        ],
        raw: json!({"slices": SHAPE.services * SHAPE.slices, "endpoints": SHAPE.services * SHAPE.entries,
            "off": off.map(Memory::raw), "on": on.map(Memory::raw)}),
    })
}

/// After everything was listed, and after some Services have moved.
async fn one(world: &mut World, uids: &[String], settings: &str, follows: bool) -> anyhow::Result<[Memory; 2]> {
    let azure = SHAPE.start_azure(uids).await?;
    let leader = Program::start(world, &azure, "controller", settings).await?;
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let listed = Memory::of(leader.id)?;
    forget_peak(leader.id)?;
    SHAPE.move_endpoints(&world.client, 0..MOVED, 1).await?;
    if follows {
        let done = |metrics: &str| count(metrics, "headgate_local_pools_updates_total") == MOVED;
        leader.until("the pools follow", done).await?;
    }
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let moved = Memory::of(leader.id)?;
    leader.stop().await;
    azure.stop().await;
    SHAPE.move_endpoints(&world.client, 0..MOVED, 0).await?;
    Ok([listed, moved])
}
