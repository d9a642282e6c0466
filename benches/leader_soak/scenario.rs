//! The course of the soak: rounds of disturbances, each with a checkpoint at its end.

use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::azure::Azure;
use crate::checkpoint::{self, Checkpoint};
use crate::cloud_controller_manager::{Rounds, StandIn};
use crate::measuring::output::say;
use crate::program::{Program, count, sum};
use crate::signals::Signals;
use crate::soaking::{Sample, sample, tasks};
use crate::world::World;

/// Between two changes of a signal.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(400);
/// Between two faults of ARM.
const FAULT_INTERVAL: Duration = Duration::from_secs(15);
/// Of disturbances before a checkpoint.
const MAX_ROUND: Duration = Duration::from_mins(2);
/// Rounds of a short soak.
const MIN_ROUNDS: u32 = 3;
/// Of the API server. Longer than the leader's Lease, so the term ends.
const OUTAGE: Duration = Duration::from_secs(25);
/// Rounds from one outage to the next. The first round has one, so that the baseline has the memory of two terms.
const OUTAGE_EVERY: usize = 3;
/// At the end of a long soak, until the ledger is empty.
const LAST_TAIL: Duration = Duration::from_mins(8);
/// A shorter soak does not wait for that.
const LEAST_WITH_TAIL: Duration = Duration::from_mins(30);

/// What happened.
#[derive(Debug)]
pub(crate) struct SoakResult {
    pub(crate) checkpoints: Vec<Checkpoint>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) failed_scrapes: usize,
    pub(crate) counts: Counts,
    /// The start times of the leader's tasks, at the beginning and at the end.
    pub(crate) tasks: [Value; 2],
    /// Entries of the ledger at the end; `None` if the soak was too short to wait for that.
    pub(crate) last_ledger_entries: Option<usize>,
}

/// How much was done.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Counts {
    pub(crate) signal_changes: u64,
    pub(crate) faults: u64,
    pub(crate) outages: u64,
    pub(crate) manager_rounds: u64,
    pub(crate) failed_manager_rounds: u64,
    pub(crate) puts: usize,
    pub(crate) signals_to_down: usize,
}

/// Faults of ARM for the leader's requests. Each is limited, so that the next one comes to its turn.
fn faults() -> Vec<Value> {
    let rule = |method: &str, times: u32, action: Value| json!({"match": {"method": method, "caller": "^headgate"}, "times": times, "action": action});
    vec![
        rule("GET", 6, json!({"answer": {"status": 503}})),
        rule("PUT", 2, json!({"cut": "after"})),
        rule("GET", 2, json!({"stall": "3s"})),
        rule(
            "PUT",
            1,
            json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 5}}),
        ),
        rule("PUT", 2, json!({"operation": "cancel", "effect": "lost"})),
        rule("GET", 2, json!({"cut": "before"})),
        rule("PUT", 2, json!({"answer": {"code": "AnotherOperationInProgress"}})),
        rule("GET", 1, json!({"answer": {"status": 200, "text": "<html>"}})),
        rule(
            "PUT",
            1,
            json!({"operation": "fail", "effect": "lost",
            "error": {"code": "InternalServerError", "message": "An error occurred.", "details": []}}),
        ),
        rule("PUT", 1, json!({"answer": {"code": "PreconditionFailed"}})),
        rule(
            "GET",
            1,
            json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 3}}),
        ),
        rule("PUT", 1, json!({"operation": "succeed", "effect": "lost"})),
    ]
}

/// Runs for `length`.
pub(crate) async fn run(
    world: &mut World,
    azure: &Azure,
    leader: &Program,
    length: Duration,
) -> anyhow::Result<SoakResult> {
    let (stop, stopped) = watch::channel(false);
    let client = world.client.clone();
    let begun = Instant::now();
    let tail = if length >= LEAST_WITH_TAIL {
        LAST_TAIL
    } else {
        Duration::ZERO
    };
    let before = tasks(leader.address).await?;
    let journal = azure.now().await?;
    let sampling = sample(length, stopped, || leader.metrics(), sum);
    let course = async {
        let course = course(world, azure, leader, length.saturating_sub(tail)).await;
        stop.send_replace(true);
        course
    };
    let ((samples, failures), course) = tokio::join!(sampling, course);
    let (checkpoints, mut counts) = course?;
    let mut last_ledger_entries = None;
    if !tail.is_zero() {
        sleep(length.saturating_sub(begun.elapsed())).await;
        last_ledger_entries = Some(checkpoint::ledger_entries(&client).await?);
    }
    counts.puts = azure.since(journal).await?.puts;
    counts.signals_to_down = count(
        &leader.metrics().await?,
        "headgate_admin_state_signal_to_down_seconds_count",
    );
    Ok(SoakResult {
        checkpoints,
        samples,
        failed_scrapes: failures.len(),
        counts,
        tasks: [before, tasks(leader.address).await?],
        last_ledger_entries,
    })
}

async fn course(
    world: &mut World,
    azure: &Azure,
    leader: &Program,
    length: Duration,
) -> anyhow::Result<(Vec<Checkpoint>, Counts)> {
    let begun = Instant::now();
    let round = MAX_ROUND.min(length / (MIN_ROUNDS + 1));
    let client = world.client.clone();
    let mut signals = Signals::new(client.clone(), crate::SHAPE.nodes);
    let mut manager = StandIn::new();
    let mut faults = Faults::new();
    let (mut checkpoints, mut outages) = (Vec::new(), 0);
    for number in 1.. {
        if begun.elapsed() + round > length {
            break;
        }
        disturb(round, world, azure, &mut signals, &mut manager, &mut faults).await?;
        if number % OUTAGE_EVERY == 1 {
            world.outage(OUTAGE).await?;
            outages += 1;
        }
        azure.clear_faults().await?;
        let checkpoint = checkpoint::take(begun, &client, azure, &signals).await?;
        say(&format!("{} {checkpoint:?}", progress(begun, leader).await));
        checkpoints.push(checkpoint);
    }
    // At the end nothing has a signal.
    signals.clear().await?;
    checkpoints.push(checkpoint::take(begun, &client, azure, &signals).await?);
    let Rounds { done, failed } = manager.rounds;
    let counts = Counts {
        signal_changes: signals.changes,
        faults: faults.sent,
        outages,
        manager_rounds: done,
        failed_manager_rounds: failed,
        ..Counts::default()
    };
    Ok((checkpoints, counts))
}

/// Changes signals, injects faults and lets the stand-in work, for this time.
async fn disturb(
    length: Duration,
    world: &World,
    azure: &Azure,
    signals: &mut Signals,
    manager: &mut StandIn,
    faults: &mut Faults,
) -> anyhow::Result<()> {
    let (stop, stopped) = watch::channel(false);
    let until = Instant::now() + length;
    let managing = manager.run(world, azure, stopped);
    let disturbing = async {
        let mut fault_at = Instant::now();
        while Instant::now() < until {
            if Instant::now() >= fault_at {
                faults.send_next(azure).await?;
                fault_at = Instant::now() + FAULT_INTERVAL;
            }
            signals.change().await?;
            sleep(SIGNAL_INTERVAL).await;
        }
        stop.send_replace(true);
        anyhow::Ok(())
    };
    tokio::join!(managing, disturbing).1
}

/// The faults in their order.
struct Faults {
    rules: std::iter::Cycle<std::vec::IntoIter<Value>>,
    sent: u64,
}

impl Faults {
    fn new() -> Self {
        Self {
            rules: faults().into_iter().cycle(),
            sent: 0,
        }
    }

    async fn send_next(&mut self, azure: &Azure) -> anyhow::Result<()> {
        let rule = self.rules.next().context("a fault")?;
        azure.fault(&rule).await?;
        self.sent += 1;
        Ok(())
    }
}

async fn progress(begun: Instant, leader: &Program) -> String {
    let metrics = leader.metrics().await.unwrap_or_default();
    let mebibytes = sum(&metrics, "process_resident_memory_bytes") / 1024.0 / 1024.0;
    format!("{} s, {mebibytes:.1} MiB:", begun.elapsed().as_secs())
}
