//! Concurrent clients, each with its own connection: GET of pools and load balancers, PUT of pools, and the outcome of
//! each write's operation.

use std::time::{Duration, Instant};

use futures::future::try_join_all;

use crate::azure_emulator::client::{Client, OperationOutcome};
use crate::fixture::{Fixture, load_balancer_path, pool, pool_path};
use crate::measuring::cpu_time;

/// The number of concurrent clients.
pub(crate) const CLIENTS: usize = 100;
/// Load balancers whose pools they write.
pub(crate) const LOAD_BALANCERS: usize = 20;
/// Addresses in each pool.
pub(crate) const ADDRESSES: usize = 50;

/// Latencies and counts of all clients.
#[derive(Debug, Default)]
pub(crate) struct LoadResult {
    pub(crate) gets: Vec<Duration>,
    pub(crate) puts: Vec<Duration>,
    /// The number of polls of operations.
    pub(crate) polls: u64,
    pub(crate) succeeded: u64,
    pub(crate) superseded: u64,
    pub(crate) took: Duration,
    /// CPU time as a share of the elapsed time: the emulator's, and that of the clients' thread.
    pub(crate) emulator_busy: f64,
    pub(crate) clients_busy: f64,
}

impl LoadResult {
    pub(crate) fn requests(&self) -> u64 {
        (self.gets.len() + self.puts.len()) as u64 + self.polls
    }

    fn add(&mut self, other: Self) {
        self.gets.extend(other.gets);
        self.puts.extend(other.puts);
        self.polls += other.polls;
        self.succeeded += other.succeeded;
        self.superseded += other.superseded;
    }

    fn count(&mut self, outcome: OperationOutcome) {
        match outcome {
            OperationOutcome::Succeeded => self.succeeded += 1,
            OperationOutcome::Superseded => self.superseded += 1,
        }
    }
}

/// Prefix of the load balancers' names.
pub(crate) const NAME_PREFIX: &str = "load";

/// Sends at least this many requests, distributed among the clients.
///
/// # Errors
/// A request is refused or not answered, or an operation neither succeeds nor is superseded.
pub(crate) async fn run(fixture: &Fixture, requests: usize) -> anyhow::Result<LoadResult> {
    let used = || anyhow::Ok((cpu_time::process(fixture.id)?, cpu_time::thread()?));
    // Each turn has three requests and about one poll.
    let turns = requests.div_ceil(CLIENTS * 4);
    let (started, before) = (Instant::now(), used()?);
    let results = try_join_all((0..CLIENTS).map(|number| client(fixture, number, turns))).await?;
    let (took, after) = (started.elapsed(), used()?);
    let mut all = LoadResult {
        took,
        emulator_busy: after.0.saturating_sub(before.0).div_duration_f64(took),
        clients_busy: after.1.saturating_sub(before.1).div_duration_f64(took),
        ..LoadResult::default()
    };
    for result in results {
        all.add(result);
    }
    Ok(all)
}

async fn client(fixture: &Fixture, number: usize, turns: usize) -> anyhow::Result<LoadResult> {
    let mut client = fixture.client().await?;
    let mut result = LoadResult::default();
    let mut operation: Option<String> = None;
    for turn in 0..turns {
        let name = format!("{NAME_PREFIX}-{}", (number + turn) % LOAD_BALANCERS);
        for path in [pool_path(&name), load_balancer_path(&name)] {
            let sent_at = Instant::now();
            client.send("GET", &path, b"").await?;
            result.gets.push(sent_at.elapsed());
        }
        if let Some(last) = &operation {
            // Polled until it has ended, so that every operation is counted.
            result.polls += 1;
            let Some(outcome) = client.outcome(last).await? else {
                continue;
            };
            result.count(outcome);
        }
        operation = Some(put(&mut client, &name, number + turn, &mut result).await?);
    }
    if let Some(last) = &operation {
        result.polls += 1;
        let outcome = client.wait_for_operation(last).await?;
        result.count(outcome);
    }
    Ok(result)
}

async fn put(client: &mut Client, name: &str, turn: usize, result: &mut LoadResult) -> anyhow::Result<String> {
    let document = pool(ADDRESSES, turn).to_string();
    let sent_at = Instant::now();
    let written = client.send("PUT", &pool_path(name), document.as_bytes()).await?;
    result.puts.push(sent_at.elapsed());
    written
        .operation
        .ok_or_else(|| anyhow::anyhow!("a PUT without an operation"))
}
