//! Many clients at once; any refusal, and any operation that neither succeeds nor is superseded, fails the row.

use std::time::Duration;

use serde_json::json;

use crate::load::{self, ADDRESSES, CLIENTS, LOAD_BALANCERS};
use crate::measuring::figures::{float, millis, percentile, rounded};
use crate::measuring::report::{Budget, Check, Row};
use crate::world::World;

const WARM_UP: usize = 4_000;
const REQUESTS: usize = 40_000;

pub(super) async fn measure(world: &World) -> anyhow::Result<Row> {
    world.create(load::NAME, LOAD_BALANCERS, ADDRESSES).await?;
    // Until it is dropped.
    let _split = world.split()?;
    load::run(world, WARM_UP).await?;
    let tally = load::run(world, REQUESTS).await?;
    let rate = float(tally.requests()) / tally.took.as_secs_f64();
    let at = |times: &[Duration], per_mille| millis(percentile(times, per_mille));
    let check = |figure, value, unit| Check::new(figure, value, unit, None, Budget::None);
    Ok(Row {
        checks: vec![
            check("requests, one core", rate, "per s"),
            check("GET, p50", at(&tally.gets, 500), "ms"),
            check("GET, p99", at(&tally.gets, 990), "ms"),
            check("PUT, p50", at(&tally.puts, 500), "ms"),
            check("PUT, p99", at(&tally.puts, 990), "ms"),
        ],
        raw: json!({
            "clients": CLIENTS,
            "loadBalancers": LOAD_BALANCERS,
            "addressesInEach": ADDRESSES,
            "requests": tally.requests(),
            "operationsSucceeded": tally.succeeded,
            "operationsSuperseded": tally.superseded,
            "emulatorBusy": rounded(tally.emulator_busy),
            "clientsBusy": rounded(tally.clients_busy),
        }),
    })
}
