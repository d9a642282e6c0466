//! From the bytes of a Node's event to the request for the ARM Lease, and from the answer to that to the first request
//! for a load balancer: all that headgate itself takes between a signal and ARM. What the API server takes for the
//! Lease is between the two, and is not counted. Five runs together have the samples of a p99.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tokio::time::sleep;

use crate::azure::Azure;
use crate::documents::Shape;
use crate::instrumented_leader::InstrumentedLeader;
use crate::measuring::figures::{millis, percentile, quantile, rounded};
use crate::measuring::report::{Budget, Check, Row};
use crate::program::count;
use crate::world::World;

/// Nodes tainted one after the other.
const TRIALS: usize = 60;
/// Nodes that are tainted before all taints are removed.
const WAVE: usize = 10;
/// Time without a request to ARM after which a wave has ended.
const QUIET: Duration = Duration::from_millis(150);

pub(super) async fn small(world: &mut World) -> anyhow::Result<Row> {
    let shape = Shape {
        load_balancers: 2,
        nodes: WAVE + TRIALS,
        ..Shape::LARGE
    };
    measure(world, shape).await
}

pub(super) async fn large(world: &mut World) -> anyhow::Result<Row> {
    measure(world, Shape::LARGE).await
}

async fn measure(world: &mut World, shape: Shape) -> anyhow::Result<Row> {
    let Times {
        decided,
        sent,
        together,
        lease,
    } = run(world, shape).await?;
    let check = |figure, times: &[Duration], per_mille, budget| {
        let (name, time) = quantile(times, per_mille);
        Check::new(format!("{figure}, {name}"), millis(time), "ms", None, budget)
    };
    Ok(Row {
        checks: vec![
            check("together", &together, 990, Budget::Most(5.0)),
            check("together", &together, 500, Budget::None),
            check("signal read → decided", &decided, 500, Budget::None),
            check("signal read → decided", &decided, 990, Budget::None),
            check("Lease had → ARM asked", &sent, 500, Budget::None),
            check("Lease had → ARM asked", &sent, 990, Budget::None),
        ],
        raw: json!({
            "trials": TRIALS, "nodes": shape.nodes, "pools": shape.all_pools(),
            "leaseAtTheApiServerMilliseconds": {
                "p50": rounded(millis(percentile(&lease, 500))), "max": rounded(millis(percentile(&lease, 1000)))},
        }),
    })
}

/// The times of all trials.
#[derive(Debug, Default)]
struct Times {
    decided: Vec<Duration>,
    sent: Vec<Duration>,
    together: Vec<Duration>,
    lease: Vec<Duration>,
}

async fn run(world: &mut World, shape: Shape) -> anyhow::Result<Times> {
    world.nodes(shape.nodes).await?;
    let azure = Azure::start(shape).await?;
    let leader = InstrumentedLeader::start(world, &azure).await?;
    let mut times = Times::default();
    // The first wave creates the shared Lease and is not counted.
    for trial in 0..WAVE + TRIALS {
        leader.forget();
        world.taint(trial..trial + 1, true).await?;
        // The leader gets no other work meanwhile.
        sleep(QUIET).await;
        leader
            .until("one more Node is Down", |metrics| {
                count(metrics, "headgate_admin_state_signal_to_down_seconds_count") > trial
            })
            .await?;
        quiet(&leader).await;
        if trial >= WAVE {
            let seen = leader.seen();
            let (signal, asked) = (
                seen.signal.context("a signal")?,
                seen.asked.context("the Lease asked for")?,
            );
            let (held, arm) = (seen.held.context("the Lease held")?, seen.arm.context("ARM asked")?);
            times.decided.push(asked - signal);
            times.sent.push(arm - held);
            times.together.push((asked - signal) + (arm - held));
            times.lease.push(held - asked);
        }
        if (trial + 1) % WAVE == 0 {
            // Limits the number of tainted Nodes.
            world.taint(trial + 1 - WAVE..trial + 1, false).await?;
            leader
                .until("all are free again", |metrics| {
                    count(metrics, "headgate_pool_actual_down") == 0
                        && count(metrics, "headgate_pool_desired_down") == 0
                })
                .await?;
            quiet(&leader).await;
        }
    }
    leader.stop()?;
    azure.stop().await;
    Ok(times)
}

/// Waits until there are no more requests to ARM.
async fn quiet(leader: &InstrumentedLeader) {
    while leader.seen().last.is_some_and(|last| last.elapsed() < QUIET) {
        sleep(QUIET).await;
    }
}
