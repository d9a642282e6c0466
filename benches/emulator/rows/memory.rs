//! Memory over many requests. What is kept of the past (journal, operations) is full long before the end, so the last
//! figures must not be higher than those before.

use serde_json::json;

use crate::fixture::{Fixture, pool_path};
use crate::load::{self, ADDRESSES, LOAD_BALANCERS};
use crate::measuring::figures::mebibytes;
use crate::measuring::memory::{Memory, forget_peak};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};

/// The number of large pools, each in a load balancer of its own, and of their addresses.
const LARGE_POOLS: usize = 4;
const LARGE_POOL_ADDRESSES: usize = 5000;
/// Requests that fill the journal and the list of operations.
const FILL_REQUESTS: usize = 20_000;
/// Requests after that, in parts; the memory is read after each part.
const REQUESTS: usize = 100_000;
const PARTS: usize = 5;

pub(super) async fn measure(fixture: &Fixture) -> anyhow::Result<Row> {
    let start = fixture.memory()?;
    fixture.create("large", LARGE_POOLS, LARGE_POOL_ADDRESSES).await?;
    let large = fixture.memory()?;
    fixture.create(load::NAME_PREFIX, LOAD_BALANCERS, ADDRESSES).await?;
    load::run(fixture, FILL_REQUESTS).await?;
    let full = fixture.memory()?;
    forget_peak(fixture.id)?;
    let mut later = Vec::new();
    for _ in 0..PARTS {
        load::run(fixture, REQUESTS / PARTS).await?;
        later.push(fixture.memory()?);
    }
    let last = later.last().copied().unwrap_or(full);
    // Connections that have had a large response and stay open.
    let mut open = Vec::new();
    for number in 0..load::CLIENTS {
        let mut client = fixture.client().await?;
        let path = pool_path(&format!("large-{}", number % LARGE_POOLS));
        client.send("GET", &path, b"").await?;
        open.push(client);
    }
    let connected = fixture.memory()?;
    drop(open);
    let check = |figure, bytes, beside| Check::new(figure, mebibytes(bytes), "MiB", beside, Budget::None);
    let after = PeerComparison::one("when full", mebibytes(last.resident), mebibytes(full.resident));
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
