//! How many writes ARM gets for tainted Nodes: one for each pool, whatever the number of Nodes.
//!
//! For "at once", another writer holds the ARM Lease while they are tainted, as cloud-controller-manager does.
//! With a free Lease the first Node of many is written before the last is tainted: that is shown beside it.

use anyhow::ensure;
use serde_json::json;

use crate::azure::Azure;
use crate::documents::{Members, Shape};
use crate::measuring::figures::float;
use crate::measuring::report::{Budget, Check, Row};
use crate::program::{Program, count};
use crate::world::World;

const NODES: usize = 1000;
/// The number of tainted Nodes, and the name of their row.
const COUNTS: [(usize, &str); 4] = [
    (1, "PUTs a pool, 1 Node"),
    (10, "PUTs a pool, 10 Nodes"),
    (100, "PUTs a pool, 100 Nodes"),
    (NODES, "PUTs a pool, 1,000 Nodes"),
];

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(NODES).await?;
    let mut most = [0.0_f64; COUNTS.len()];
    let (mut raw, mut free) = (Vec::new(), Vec::new());
    for (load_balancers, pools) in [(1, 1), (1, 2), (2, 2)] {
        let shape = Shape {
            members: Members::Addresses,
            load_balancers,
            pools,
            nodes: NODES,
        };
        let azure = Azure::start(shape).await?;
        let leader = Program::start(world, &azure, "controller", "").await?;
        for (place, (tainted, _)) in COUNTS.into_iter().enumerate() {
            let [puts, restored] = story(world, &azure, &leader, tainted, true).await?;
            let all = shape.all_pools();
            most[place] = most[place].max(float(puts as u64) / float(all as u64));
            raw.push(json!({"nodes": tainted, "pools": all, "puts": puts, "putsToRestore": restored}));
        }
        let [puts, restored] = story(world, &azure, &leader, NODES, false).await?;
        free.push(json!({"nodes": NODES, "pools": shape.all_pools(), "puts": puts, "putsToRestore": restored}));
        leader.stop().await;
        azure.stop().await;
    }
    let checks = COUNTS.iter().zip(most);
    Ok(Row {
        checks: checks
            .map(|((_, figure), most)| Check::new(*figure, most, "PUTs", None, Budget::Most(1.0)))
            .collect(),
        raw: json!({"atOnce": raw, "oneAfterTheOther": free}),
    })
}

/// Taints this number of Nodes and removes the taints; returns the PUTs of each half.
async fn story(
    world: &World,
    azure: &Azure,
    leader: &Program,
    tainted: usize,
    at_once: bool,
) -> anyhow::Result<[usize; 2]> {
    let mut puts = [0; 2];
    for (puts, down) in puts.iter_mut().zip([true, false]) {
        let expected = if down { tainted * azure.shape.all_pools() } else { 0 };
        let before = azure.now().await?;
        if at_once {
            world.take_lock().await?;
        }
        world.taint(0..tainted, down).await?;
        if at_once {
            leader
                .until("all are seen", |metrics| {
                    count(metrics, "headgate_pool_desired_down") == expected
                })
                .await?;
            ensure!(
                azure.since(before).await?.puts == 0,
                "written although another writer holds the Lease"
            );
            if !down {
                // The end of a signal counts after the debounce.
                let pending = tainted * azure.shape.all_pools();
                leader
                    .until("all are to be restored", |metrics| {
                        count(metrics, "headgate_admin_state_queue_depth") == pending
                    })
                    .await?;
            }
            world.release_lock().await?;
        }
        leader
            .until("all are as they should be", |metrics| {
                count(metrics, "headgate_pool_actual_down") == expected
                    && count(metrics, "headgate_pool_desired_down") == expected
                    && count(metrics, "headgate_admin_state_queue_depth") == 0
            })
            .await?;
        *puts = azure.since(before).await?.puts;
        world.lock_free().await?;
    }
    Ok(puts)
}
