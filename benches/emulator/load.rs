//! Clients that all ask at once, each on a connection of its own: GET of pools and load balancers, PUT of pools,
//! and how each write's operation ended.

use std::time::{Duration, Instant};

use futures::future::try_join_all;

use crate::azure_emulator::client::{Client, OperationOutcome};
use crate::measuring::cpu_time;
use crate::world::{World, load_balancer_path, pool, pool_path};

/// Clients at once.
pub(crate) const CLIENTS: usize = 100;
/// Load balancers whose pools they write.
pub(crate) const LOAD_BALANCERS: usize = 20;
/// Addresses of each.
pub(crate) const ADDRESSES: usize = 50;

/// What the clients met.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) gets: Vec<Duration>,
    pub(crate) puts: Vec<Duration>,
    /// Questions about operations.
    pub(crate) polls: u64,
    pub(crate) succeeded: u64,
    pub(crate) superseded: u64,
    pub(crate) took: Duration,
    /// The part of its core that the emulator used, and that the clients did.
    pub(crate) emulator_busy: f64,
    pub(crate) clients_busy: f64,
}

impl Tally {
    pub(crate) fn requests(&self) -> u64 {
        (self.gets.len() + self.puts.len()) as u64 + self.polls
    }

    fn take(&mut self, other: Self) {
        self.gets.extend(other.gets);
        self.puts.extend(other.puts);
        self.polls += other.polls;
        self.succeeded += other.succeeded;
        self.superseded += other.superseded;
    }

    fn ended(&mut self, ending: OperationOutcome) {
        match ending {
            OperationOutcome::Succeeded => self.succeeded += 1,
            OperationOutcome::Superseded => self.superseded += 1,
        }
    }
}

/// What a client's load balancer is called.
pub(crate) const NAME: &str = "load";

/// At least this many requests, shared among the clients.
///
/// # Errors
/// When one is refused or not answered, or an operation ended in a way it should not.
pub(crate) async fn run(world: &World, requests: usize) -> anyhow::Result<Tally> {
    let used = || anyhow::Ok((cpu_time::process(world.id)?, cpu_time::thread()?));
    // Each turn has three requests and about one question.
    let turns = requests.div_ceil(CLIENTS * 4);
    let (started, before) = (Instant::now(), used()?);
    let tallies = try_join_all((0..CLIENTS).map(|number| client(world, number, turns))).await?;
    let (took, after) = (started.elapsed(), used()?);
    let mut all = Tally {
        took,
        emulator_busy: after.0.saturating_sub(before.0).div_duration_f64(took),
        clients_busy: after.1.saturating_sub(before.1).div_duration_f64(took),
        ..Tally::default()
    };
    for tally in tallies {
        all.take(tally);
    }
    Ok(all)
}

async fn client(world: &World, number: usize, turns: usize) -> anyhow::Result<Tally> {
    let mut client = world.client().await?;
    let mut tally = Tally::default();
    let mut operation: Option<String> = None;
    for turn in 0..turns {
        let name = format!("{NAME}-{}", (number + turn) % LOAD_BALANCERS);
        for path in [pool_path(&name), load_balancer_path(&name)] {
            let asked = Instant::now();
            client.send("GET", &path, b"").await?;
            tally.gets.push(asked.elapsed());
        }
        if let Some(last) = &operation {
            // Asked about until it has ended, so that none is left out.
            tally.polls += 1;
            let Some(ending) = client.outcome(last).await? else {
                continue;
            };
            tally.ended(ending);
        }
        operation = Some(put(&mut client, &name, number + turn, &mut tally).await?);
    }
    if let Some(last) = &operation {
        tally.polls += 1;
        let ending = client.wait_for_operation(last).await?;
        tally.ended(ending);
    }
    Ok(tally)
}

async fn put(client: &mut Client, name: &str, turn: usize, tally: &mut Tally) -> anyhow::Result<String> {
    let document = pool(ADDRESSES, turn).to_string();
    let asked = Instant::now();
    let written = client.send("PUT", &pool_path(name), document.as_bytes()).await?;
    tally.puts.push(asked.elapsed());
    written
        .operation
        .ok_or_else(|| anyhow::anyhow!("a PUT without an operation"))
}
