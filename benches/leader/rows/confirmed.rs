//! From the PATCH of a taint being sent until `Down` was read back in every pool, as the leader's metrics say, which are
//! looked at every 5 ms. The emulator's operations end at once; how long ARM takes to answer is made by a fault. What a
//! load balancer needs without headgate's leader is two failed probes, 5 s apart.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::azure::Azure;
use crate::documents::{Members, Shape};
use crate::measuring::figures::{float, percentile, rounded};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::program::{Program, count, sum};
use crate::world::World;

/// Nodes tainted one after the other, in each set-up.
const TRIALS: usize = 25;
const NODES: usize = 4 * TRIALS;
/// Two probes, 5 s apart.
const PROBING: f64 = 10.0;

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(NODES).await?;
    let (mut checks, mut raw) = (Vec::new(), Vec::new());
    for (load_balancers, pools, figures) in [
        (
            1,
            1,
            [
                ["1 pool, 0 ms a call: p50", "1 pool, 0 ms: p99"],
                ["1 pool, 100 ms a call: p50", "1 pool, 100 ms: p99"],
            ],
        ),
        (
            2,
            2,
            [
                ["4 pools, 0 ms a call: p50", "4 pools, 0 ms: p99"],
                ["4 pools, 100 ms a call: p50", "4 pools, 100 ms: p99"],
            ],
        ),
    ] {
        let shape = Shape {
            members: Members::Addresses,
            load_balancers,
            pools,
            nodes: NODES,
        };
        let azure = Azure::start(shape).await?;
        let leader = Program::start(world, &azure, "controller", "").await?;
        let mut next = 0;
        for (delay, [p50, p99]) in [Duration::ZERO, Duration::from_millis(100)].into_iter().zip(figures) {
            if !delay.is_zero() {
                azure.answer_later(delay).await?;
            }
            let before = own_time(&leader).await?;
            let mut times = Vec::new();
            for _ in 0..TRIALS {
                times.push(trial(world, &leader, next).await?);
                next += 1;
            }
            for (figure, per_mille) in [(p50, 500), (p99, 990)] {
                let value = percentile(&times, per_mille).as_secs_f64();
                let beside = PeerComparison::one("2 probes", value, PROBING);
                checks.push(Check::new(figure, value, "s", Some(beside), Budget::None));
            }
            let own = (own_time(&leader).await? - before) / float(TRIALS as u64);
            raw.push(json!({
                "pools": shape.all_pools(), "millisecondsOfEachCall": delay.as_millis(), "trials": TRIALS,
                "secondsFromSignalSeenMean": rounded(own),
            }));
        }
        leader.stop().await;
        azure.stop().await;
        world.taint(0..NODES, false).await?;
    }
    Ok(Row {
        checks,
        raw: json!(raw),
    })
}

async fn trial(world: &World, leader: &Program, node: usize) -> anyhow::Result<Duration> {
    world.lock_free().await?;
    let patched = Instant::now();
    world.taint(node..node + 1, true).await?;
    leader
        .until("Down was read back", |metrics| {
            count(metrics, "headgate_admin_state_signal_to_down_seconds_count") > node
        })
        .await?;
    Ok(patched.elapsed())
}

/// All of the leader's own figures together.
async fn own_time(leader: &Program) -> anyhow::Result<f64> {
    Ok(sum(
        &leader.metrics().await?,
        "headgate_admin_state_signal_to_down_seconds_sum",
    ))
}
