//! Memory while it goes on: what is kept of the past (journal, operations) is full long before the end, so the last
//! figures must be those before them.

use serde_json::json;

use crate::load::{self, ADDRESSES, LOAD_BALANCERS};
use crate::measuring::figures::mebibytes;
use crate::measuring::memory::{Memory, forget_peak};
use crate::measuring::report::{Beside, Budget, Check, Row};
use crate::world::{World, pool_path};

/// Load balancers with one large pool each.
const LARGE: (usize, usize) = (4, 5000);
/// Fills the journal and the operations.
const FILLING: usize = 20_000;
/// After that, in so many parts with a look at the memory after each.
const REQUESTS: usize = 100_000;
const PARTS: usize = 5;

pub(super) async fn measure(world: &World) -> anyhow::Result<Row> {
    let start = world.memory()?;
    world.create("large", LARGE.0, LARGE.1).await?;
    let large = world.memory()?;
    world.create(load::NAME, LOAD_BALANCERS, ADDRESSES).await?;
    load::run(world, FILLING).await?;
    let full = world.memory()?;
    forget_peak(world.id)?;
    let mut later = Vec::new();
    for _ in 0..PARTS {
        load::run(world, REQUESTS / PARTS).await?;
        later.push(world.memory()?);
    }
    let last = later.last().copied().unwrap_or(full);
    // Each has had a large answer and stays open.
    let mut open = Vec::new();
    for number in 0..load::CLIENTS {
        let mut client = world.client().await?;
        let path = pool_path(&format!("large-{}", number % LARGE.0));
        client.send("GET", &path, b"").await?;
        open.push(client);
    }
    let connected = world.memory()?;
    drop(open);
    let check = |figure, bytes, beside| Check::new(figure, mebibytes(bytes), "MiB", beside, Budget::None);
    let after = Beside::one("when full", mebibytes(last.resident), mebibytes(full.resident));
    Ok(Row {
        checks: vec![
            check("at the start", start.resident, None),
            check("4 pools of 5,000", large.resident, None),
            check("100 clients, journal full", full.resident, None),
            check("100,000 requests later", last.resident, Some(after)),
            check("100 open after a large answer", connected.resident, None),
            check("the most since it was full", connected.peak, None),
        ],
        raw: json!({
            "start": start.raw(),
            "largePools": large.raw(),
            "full": full.raw(),
            "connected": connected.raw(),
            "later": later.into_iter().map(Memory::raw).collect::<Vec<_>>(),
        }),
    })
}
