//! A leader's memory with 5,000 Nodes in 4 load balancers of 5,000 entries: after everything was listed, and after 1,000
//! Nodes went Down and came back. One only leads; one answers for a Node too and keeps 2,000 Services.

use std::time::Duration;

use serde_json::{Map, json};

use crate::azure::Azure;
use crate::azure_emulator::node_name;
use crate::documents::{LEADERS_NODE, Shape};
use crate::measuring::figures::mebibytes;
use crate::measuring::memory::{Memory, forget_peak};
use crate::measuring::report::{Budget, Check, Row};
use crate::measuring::services;
use crate::program::{Program, count};
use crate::world::World;

const SHAPE: Shape = Shape::LARGE;
const TAINTED: usize = 1000;
/// The time includes several lists of load balancers, one every 15 s.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(SHAPE.nodes).await?;
    let mut checks = Vec::new();
    let mut raw = Map::new();
    let alone = one(world, "controller", "").await?;
    let node = |place| {
        if place == 0 {
            LEADERS_NODE.to_owned()
        } else {
            node_name(place)
        }
    };
    services::create(&world.client, node).await?;
    let with_services = one(world, "all", "serviceHealthChecks: Path\n").await?;
    for (name, memory, figures) in [
        (
            "withServices",
            with_services,
            ["5,000 Nodes, 2,000 Services: resident", "the same: peak"],
        ),
        (
            "controller",
            alone,
            ["5,000 Nodes, --role=controller: resident", "the same: peak"],
        ),
    ] {
        let of = |field: fn(&Memory) -> u64| mebibytes(memory.iter().map(field).max().unwrap_or_default());
        checks.push(Check::new(
            figures[0],
            of(|memory| memory.resident),
            "MiB",
            None,
            Budget::Most(150.0),
        ));
        checks.push(Check::new(
            figures[1],
            of(|memory| memory.peak),
            "MiB",
            None,
            Budget::None,
        ));
        let [listed, down, back] = memory.map(Memory::raw);
        raw.insert(
            name.to_owned(),
            json!({"afterList": listed, "withThousandDown": down, "afterRestore": back}),
        );
    }
    raw.insert("nodes".to_owned(), SHAPE.nodes.into());
    raw.insert("entries".to_owned(), (SHAPE.all_pools() * SHAPE.nodes).into());
    Ok(Row {
        checks,
        raw: raw.into(),
    })
}

/// Measures one leader: after the lists, with Nodes Down, and after they are restored.
async fn one(world: &mut World, role: &str, settings: &str) -> anyhow::Result<[Memory; 3]> {
    let azure = Azure::start(SHAPE).await?;
    let leader = Program::start(world, &azure, role, settings).await?;
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let listed = Memory::of(leader.id)?;
    let mut after = Vec::new();
    for tainted in [true, false] {
        forget_peak(leader.id)?;
        let expected = if tainted { TAINTED * SHAPE.all_pools() } else { 0 };
        world.taint(0..TAINTED, tainted).await?;
        leader
            .until("all are as they should be", |metrics| {
                count(metrics, "headgate_pool_actual_down") == expected
                    && count(metrics, "headgate_pool_desired_down") == expected
            })
            .await?;
        tokio::time::sleep(SETTLE_TIMEOUT).await;
        after.push(Memory::of(leader.id)?);
    }
    leader.stop().await;
    azure.stop().await;
    let [down, back] = after[..] else {
        anyhow::bail!("two times");
    };
    Ok([listed, down, back])
}
