//! From the PATCH of a taint being sent until `Down` was read back in every pool, as the leader's metrics say, which are
//! looked at every 5 ms. Each row names how long an operation takes, a setting of the emulator, and how long an answer takes,
//! a fault of the emulator. The Lease is free, and nobody else writes. Without headgate's leader, a load balancer
//! that probes `/healthz` every 5 s needs that long at most: the first 503 counts.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::azure::Azure;
use crate::documents::Shape;
use crate::measuring::figures::{float, quantile, rounded};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::program::{Program, count, sum};
use crate::world::World;

/// Nodes tainted one after the other, in each set-up with the same times.
const TRIALS: usize = 10;
const NODES: usize = ARM_TIMES.len() * TRIALS;
/// Until the next probe of `/healthz`.
const PROBING: f64 = 5.0;

/// What ARM takes.
#[derive(Clone, Copy, Debug)]
struct ArmTimes {
    /// An operation.
    operation: Duration,
    /// Each answer.
    call: Duration,
}

/// Each set-up has these times one after the other.
const ARM_TIMES: [ArmTimes; 4] = [
    ArmTimes::of(0, 0),
    ArmTimes::of(0, 100),
    ArmTimes::of(1, 0),
    ArmTimes::of(5, 0),
];

impl ArmTimes {
    const fn of(operation_seconds: u64, call_millis: u64) -> Self {
        Self {
            operation: Duration::from_secs(operation_seconds),
            call: Duration::from_millis(call_millis),
        }
    }

    fn name(self) -> String {
        format!(
            "operations of {} s, {} ms a call",
            self.operation.as_secs(),
            self.call.as_millis()
        )
    }
}

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(NODES).await?;
    let (mut checks, mut raw) = (Vec::new(), Vec::new());
    for (load_balancers, pools) in [(1, 1), (2, 2)] {
        let shape = Shape {
            load_balancers,
            pools,
            nodes: NODES,
            ..Shape::LARGE
        };
        let azure = Azure::start(shape).await?;
        let leader = Program::start(world, &azure).await?;
        let mut next = 0;
        for arm in ARM_TIMES {
            azure.clear_faults().await?;
            if !arm.call.is_zero() {
                azure.answer_later(arm.call).await?;
            }
            azure.operations_take(arm.operation).await?;
            let before = own_time(&leader).await?;
            let mut times = Vec::new();
            for _ in 0..TRIALS {
                times.push(trial(world, &leader, next).await?);
                next += 1;
            }
            for per_mille in [500, 990] {
                let (name, time) = quantile(&times, per_mille);
                let beside = PeerComparison::one("a probe, at most", time.as_secs_f64(), PROBING);
                let figure = format!("{} pools, {}: {name}", shape.all_pools(), arm.name());
                checks.push(Check::new(figure, time.as_secs_f64(), "s", Some(beside), Budget::None));
            }
            let own = (own_time(&leader).await? - before) / float(TRIALS as u64);
            raw.push(json!({
                "pools": shape.all_pools(), "millisecondsOfEachCall": arm.call.as_millis(),
                "operationSeconds": arm.operation.as_secs(), "trials": TRIALS, "secondsFromSignalSeenMean": rounded(own),
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
