//! From the PATCH of a taint until `Down` was read back, while a tick writes the pools of many Local Services in the same load
//! balancer, and without any. The tainted node is in a pool of its own. ARM takes 20 ms for each answer; a write that is
//! under way when the taint comes is completed first, because ARM carries out one operation on a load balancer at a time. So the
//! taint comes at another moment of an update in each trial, the first one right after an update has begun.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::local_services::{LocalShape, delete};
use crate::measuring::figures::{millis, quantile, rounded};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::program::{Program, count};
use crate::world::World;

const TRIALS: usize = 10;
const SHAPE: LocalShape = LocalShape {
    services: 100,
    load_balancers: 1,
    entries: 10,
    slices: 1,
    nodes: 20,
    others: 2 * TRIALS,
};
const ANSWER_DELAY: Duration = Duration::from_millis(20);
/// One write under way: a read and a PUT, and their processing.
const ONE_WRITE: f64 = 100.0;
/// The longest wait for it: the PUT, its operation, which is polled after 100 ms, and the read, 20 ms for each answer.
const LONGEST_WRITE: f64 = 160.0;
/// From one trial to the next, the taint comes so much later after the beginning of an update.
const PHASE_STEP: Duration = Duration::from_millis(16);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(SHAPE.all_nodes()).await?;
    let uids = SHAPE.create(&world.client).await?;
    let azure = SHAPE.start_azure(&uids).await?;
    let leader = Program::start(world, &azure, "controller", "").await?;
    azure.answer_later(ANSWER_DELAY).await?;
    let (mut without, mut during, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for trial in 0..TRIALS {
        without.push(taint(world, &leader, 2 * trial).await?);
        world.lock_free().await?;
        let before = count(&leader.metrics().await?, "headgate_local_pools_updates_total");
        SHAPE
            .move_endpoints(&world.client, 0..SHAPE.services, trial + 1)
            .await?;
        let has_begun = |metrics: &str| count(metrics, "headgate_local_pools_updates_total") > before;
        leader.until("a tick has begun", has_begun).await?;
        tokio::time::sleep(PHASE_STEP * u32::try_from(trial)?).await;
        during.push(taint(world, &leader, 2 * trial + 1).await?);
        let done = count(&leader.metrics().await?, "headgate_local_pools_updates_total");
        left.push(before + SHAPE.services - done.min(before + SHAPE.services));
        let all = before + SHAPE.services;
        let is_done = |metrics: &str| count(metrics, "headgate_local_pools_updates_total") >= all;
        leader.until("the tick is done", is_done).await?;
    }
    leader.stop().await;
    azure.stop().await;
    world.taint(SHAPE.nodes..SHAPE.all_nodes(), false).await?;
    delete(&world.client).await?;
    let check = |per_mille, budget| {
        let [(name, value), (_, peer)] = [&during, &without].map(|times| quantile(times, per_mille));
        let [value, peer] = [value, peer].map(millis);
        Check::new(
            format!("taint to Down during a tick: {name}"),
            value,
            "ms",
            Some(PeerComparison::one("no tick", value, peer)),
            budget,
        )
    };
    Ok(Row {
        checks: vec![
            check(500, Budget::PeerWithin(ONE_WRITE)),
            check(990, Budget::PeerWithin(LONGEST_WRITE)),
        ],
        raw: json!({"trials": TRIALS, "duringMilliseconds": all_millis(&during), "withoutMilliseconds": all_millis(&without), "pools": SHAPE.services, "updatesLeftWhenDown": left,
            "millisecondsOfEachAnswer": rounded(millis(ANSWER_DELAY))}),
    })
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
