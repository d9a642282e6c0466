//! Many concurrent clients. A refusal fails the row, and so does an operation that neither succeeds nor is superseded.

use std::time::Duration;

use serde_json::json;

use crate::fixture::Fixture;
use crate::load::{self, ADDRESSES, CLIENTS, LOAD_BALANCERS};
use crate::measuring::figures::{float, millis, percentile, rounded};
use crate::measuring::report::{Budget, Check, Row};

const WARM_UP: usize = 4_000;
const REQUESTS: usize = 40_000;

pub(super) async fn measure(fixture: &Fixture) -> anyhow::Result<Row> {
    fixture.create(load::NAME_PREFIX, LOAD_BALANCERS, ADDRESSES).await?;
    // In force until it is dropped.
    let _split = fixture.split()?;
    load::run(fixture, WARM_UP).await?;
    let result = load::run(fixture, REQUESTS).await?;
    let rate = float(result.requests()) / result.took.as_secs_f64();
    let at = |times: &[Duration], per_mille| millis(percentile(times, per_mille));
    let check = |figure, value, unit| Check::new(figure, value, unit, None, Budget::None);
    Ok(Row {
        checks: vec![
            check("requests, one core", rate, "per s"),
            check("GET, p50", at(&result.gets, 500), "ms"),
            check("GET, p99", at(&result.gets, 990), "ms"),
            check("PUT, p50", at(&result.puts, 500), "ms"),
            check("PUT, p99", at(&result.puts, 990), "ms"),
        ],
        raw: json!({
            "clients": CLIENTS,
            "loadBalancers": LOAD_BALANCERS,
            "addressesInEach": ADDRESSES,
            "requests": result.requests(),
            "operationsSucceeded": result.succeeded,
            "operationsSuperseded": result.superseded,
            "emulatorBusy": rounded(result.emulator_busy),
            "clientsBusy": rounded(result.clients_busy),
        }),
    })
}
