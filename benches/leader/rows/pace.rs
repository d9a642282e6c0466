//! From the bytes of a Node's event to the request for the ARM Lease, and from the answer to that to the first request
//! for a load balancer: all that headgate itself takes between a signal and ARM. What the API server takes for the
//! Lease is between the two, and is not counted.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tokio::time::sleep;

use crate::azure::Azure;
use crate::documents::{Members, Shape};
use crate::instrumented_leader::InstrumentedLeader;
use crate::measuring::figures::{millis, percentile, rounded};
use crate::measuring::report::{Budget, Check, Row};
use crate::program::count;
use crate::world::World;

/// Nodes tainted one after the other.
const TRIALS: usize = 200;
/// Nodes that are tainted before all taints are removed.
const WAVE: usize = 10;
/// Time without a request to ARM after which a wave has ended.
const QUIET: Duration = Duration::from_millis(150);

pub(super) async fn small(world: &mut World) -> anyhow::Result<Row> {
    measure(
        world,
        Shape {
            members: Members::Addresses,
            load_balancers: 2,
            pools: 1,
            nodes: WAVE + TRIALS,
        },
    )
    .await
}

pub(super) async fn large(world: &mut World) -> anyhow::Result<Row> {
    measure(
        world,
        Shape {
            members: Members::Addresses,
            load_balancers: 4,
            pools: 1,
            nodes: 5000,
        },
    )
    .await
}

async fn measure(world: &mut World, shape: Shape) -> anyhow::Result<Row> {
    world.nodes(shape.nodes).await?;
    let azure = Azure::start(shape).await?;
    let leader = InstrumentedLeader::start(world, &azure).await?;
    let (mut decided, mut sent, mut together, mut lease) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
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
            decided.push(asked - signal);
            sent.push(arm - held);
            together.push((asked - signal) + (arm - held));
            lease.push(held - asked);
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
    let check = |figure, times: &[Duration], per_mille, budget| {
        Check::new(figure, millis(percentile(times, per_mille)), "ms", None, budget)
    };
    Ok(Row {
        checks: vec![
            check("together, p99", &together, 990, Budget::Most(5.0)),
            check("together, p50", &together, 500, Budget::None),
            check("signal read → decided, p50", &decided, 500, Budget::None),
            check("signal read → decided, p99", &decided, 990, Budget::None),
            check("Lease had → ARM asked, p50", &sent, 500, Budget::None),
            check("Lease had → ARM asked, p99", &sent, 990, Budget::None),
        ],
        raw: json!({
            "trials": TRIALS, "nodes": shape.nodes, "pools": shape.all_pools(),
            "leaseAtTheApiServerMilliseconds": {
                "p50": rounded(millis(percentile(&lease, 500))), "p99": rounded(millis(percentile(&lease, 990)))},
        }),
    })
}

/// Waits until there are no more requests to ARM.
async fn quiet(leader: &InstrumentedLeader) {
    while leader.seen().last.is_some_and(|last| last.elapsed() < QUIET) {
        sleep(QUIET).await;
    }
}
