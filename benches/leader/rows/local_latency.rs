//! From the PATCH of a taint until `Down` was read back, while a tick writes the pools of many Local Services in the same load
//! balancer, and without any. The tainted node is in a pool of its own. ARM takes 20 ms for each answer, and its operations end at
//! once or after a second. The taint comes at another moment of an update in each trial, the first one right after an update has begun.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::local_services::{LocalShape, delete};
use crate::measuring::figures::{millis, percentile, rounded};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::program::{Program, count};
use crate::world::World;

/// For each time that an operation takes.
const TRIALS: usize = 20;
const SHAPE: LocalShape = LocalShape {
    services: 100,
    load_balancers: 1,
    entries: 10,
    slices: 1,
    nodes: 20,
    others: 4 * TRIALS,
};
const ANSWER_DELAY: Duration = Duration::from_millis(20);
const CASES: [Case; 2] = [
    Case {
        operation: Duration::ZERO,
        services: SHAPE.services,
        phase_step: Duration::from_millis(8),
        figures: [
            ("taint to Down during a tick: p50", 500, NOISE),
            ("taint to Down during a tick: p99", 990, NOISE),
        ],
    },
    Case {
        operation: Duration::from_secs(1),
        services: 4,
        phase_step: Duration::from_millis(60),
        figures: [
            ("the same, operations of 1 s: p50", 500, NOISE),
            ("the same, operations of 1 s: p99", 990, ONE_REPETITION),
        ],
    },
];
/// One answer of ARM: times differ by more from one run to the next.
const NOISE: f64 = 20.0;
/// If an operation ends between the read and the PUT of an admin state, its etag changes and ARM answers 412. Then both are repeated:
/// two answers of ARM, and their processing.
const ONE_REPETITION: f64 = 80.0;

/// Operations that take a certain time.
struct Case {
    operation: Duration,
    /// How many Services move.
    services: usize,
    /// From one trial to the next, the taint comes so much later after the beginning of an update.
    phase_step: Duration,
    /// The name of each, the percentile in tenths of a percent, and by how many milliseconds it may differ.
    figures: [(&'static str, usize, f64); 2],
}

/// The times of the trials of one case.
#[derive(Default)]
struct Times {
    without: Vec<Duration>,
    during: Vec<Duration>,
    /// Updates that were not done yet when `Down` was read back.
    left: Vec<u64>,
}

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(SHAPE.all_nodes()).await?;
    let uids = SHAPE.create(&world.client).await?;
    let azure = SHAPE.start_azure(&uids).await?;
    let leader = Program::start(world, &azure, "controller", "").await?;
    azure.answer_later(ANSWER_DELAY).await?;
    let (mut checks, mut raw) = (Vec::new(), Vec::new());
    for (number, case) in CASES.iter().enumerate() {
        azure.operations_take(case.operation).await?;
        let times = case.measure(world, &leader, number).await?;
        checks.extend(case.checks(&times));
        raw.push(json!({"trials": TRIALS, "millisecondsOfEachOperation": rounded(millis(case.operation)), "pools": case.services,
            "duringMilliseconds": all_millis(&times.during), "withoutMilliseconds": all_millis(&times.without),
            "updatesLeftWhenDown": times.left}));
    }
    let overtaken = count(&leader.metrics().await?, "headgate_local_pools_overtaken_total");
    leader.stop().await;
    azure.stop().await;
    world.taint(SHAPE.nodes..SHAPE.all_nodes(), false).await?;
    delete(&world.client).await?;
    Ok(Row {
        checks,
        raw: json!({"cases": raw, "updatesOvertaken": overtaken, "millisecondsOfEachAnswer": rounded(millis(ANSWER_DELAY))}),
    })
}

impl Case {
    async fn measure(&self, world: &World, leader: &Program, number: usize) -> anyhow::Result<Times> {
        let mut times = Times::default();
        for trial in 0..TRIALS {
            let taints = 2 * (number * TRIALS + trial);
            times.without.push(taint(world, leader, taints).await?);
            world.lock_free().await?;
            let before = count(&leader.metrics().await?, "headgate_local_pools_updates_total");
            let moves = number * TRIALS + trial + 1;
            SHAPE.move_endpoints(&world.client, 0..self.services, moves).await?;
            let has_begun = |metrics: &str| count(metrics, "headgate_local_pools_updates_total") > before;
            leader.until("a tick has begun", has_begun).await?;
            tokio::time::sleep(self.phase_step * u32::try_from(trial)?).await;
            times.during.push(taint(world, leader, taints + 1).await?);
            let all = before + self.services;
            let done = count(&leader.metrics().await?, "headgate_local_pools_updates_total");
            times.left.push(u64::try_from(all - done.min(all))?);
            let is_done = |metrics: &str| count(metrics, "headgate_local_pools_updates_total") >= all;
            leader.until("the tick is done", is_done).await?;
        }
        Ok(times)
    }

    fn checks(&self, times: &Times) -> Vec<Check> {
        let check = |(figure, per_mille, tolerance)| {
            let [value, peer] = [&times.during, &times.without].map(|times| millis(percentile(times, per_mille)));
            let peer = PeerComparison::one("no tick", value, peer);
            Check::new(figure, value, "ms", Some(peer), Budget::PeerWithin(tolerance))
        };
        self.figures.into_iter().map(check).collect()
    }
}

fn all_millis(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|time| rounded(millis(*time))).collect()
}

async fn taint(world: &World, leader: &Program, number: usize) -> anyhow::Result<Duration> {
    let node = SHAPE.nodes + number;
    let patched = Instant::now();
    world.taint(node..node + 1, true).await?;
    let is_down = |metrics: &str| count(metrics, "headgate_admin_state_signal_to_down_seconds_count") > number;
    leader.until("Down was read back", is_down).await?;
    Ok(patched.elapsed())
}
