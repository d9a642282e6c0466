//! One client and one large pool: a GET, and a PUT of the same document with one admin state changed.
//!
//! For comparison, the work that every server of JSON documents has, done in this process: for a GET it serializes the
//! document, for a PUT it parses the request's body and serializes the response's.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::azure_emulator::client::OperationOutcome;
use crate::fixture::{Fixture, load_balancer_path, pool_path};
use crate::measuring::figures::{float, millis, percentile, rounded};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};

const ADDRESSES: usize = 5000;
const ROUNDS: usize = 200;
/// Rounds before the measurement.
const WARM_UP: usize = 10;

#[derive(Default)]
struct Times {
    get: Vec<Duration>,
    get_floor: Vec<Duration>,
    get_load_balancer: Vec<Duration>,
    put: Vec<Duration>,
    put_floor: Vec<Duration>,
}

pub(super) async fn measure(fixture: &Fixture) -> anyhow::Result<Row> {
    fixture.create("large", 1, ADDRESSES).await?;
    let mut client = fixture.client().await?;
    let (pool, load_balancer) = (pool_path("large-0"), load_balancer_path("large-0"));
    let mut times = Times::default();
    let (mut answered, mut sent) = (0, 0);
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            times = Times::default();
        }
        let sent_at = Instant::now();
        let shown = client.send("GET", &pool, b"").await?.body;
        times.get.push(sent_at.elapsed());
        answered = shown.len();
        let mut document: Value = serde_json::from_slice(shown)?;

        let sent_at = Instant::now();
        black_box(serde_json::to_vec(&document)?);
        times.get_floor.push(sent_at.elapsed());

        let state = document.pointer_mut("/properties/loadBalancerBackendAddresses/7/properties");
        state.context("an address")?["adminState"] = ["Up", "Down"][round % 2].into();
        let text = document.to_string();
        sent = text.len();
        let sent_at = Instant::now();
        let written = client.send("PUT", &pool, text.as_bytes()).await?;
        times.put.push(sent_at.elapsed());
        let operation = written.operation.context("an operation")?;
        let answer: Value = serde_json::from_slice(written.body)?;

        let sent_at = Instant::now();
        black_box(serde_json::from_str::<Value>(&text)?);
        black_box(serde_json::to_vec(&answer)?);
        times.put_floor.push(sent_at.elapsed());

        let outcome = client.wait_for_operation(&operation).await?;
        ensure!(
            outcome == OperationOutcome::Succeeded,
            "a write was superseded without another writer"
        );
        let sent_at = Instant::now();
        client.send("GET", &load_balancer, b"").await?;
        times.get_load_balancer.push(sent_at.elapsed());
    }
    let kibibytes = |bytes: usize| float(bytes as u64) / 1024.0;
    let at = |times: &[Duration], per_mille| millis(percentile(times, per_mille));
    let beside = |times: &[Duration], floor: &[Duration], per_mille| {
        let (value, peer) = (at(times, per_mille), at(floor, per_mille));
        (value, Some(PeerComparison::one("serde_json", value, peer)))
    };
    let check = |figure, (value, beside), unit| Check::new(figure, value, unit, beside, Budget::None);
    Ok(Row {
        checks: vec![
            check("GET, p50", beside(&times.get, &times.get_floor, 500), "ms"),
            check("GET, p99", beside(&times.get, &times.get_floor, 990), "ms"),
            check("GET, answered", (kibibytes(answered), None), "KiB"),
            check("PUT, p50", beside(&times.put, &times.put_floor, 500), "ms"),
            check("PUT, p99", beside(&times.put, &times.put_floor, 990), "ms"),
            check("PUT, sent", (kibibytes(sent), None), "KiB"),
        ],
        raw: json!({
            "addresses": ADDRESSES,
            "rounds": ROUNDS,
            "getLoadBalancerP50Milliseconds": rounded(at(&times.get_load_balancer, 500)),
        }),
    })
}
