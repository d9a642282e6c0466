//! A leader's memory with 5,000 Nodes in 4 load balancers, 50 of them under maintenance with 30 pods each, and without any.

use std::time::Duration;

use serde_json::json;

use crate::azure::Azure;
use crate::documents::Shape;
use crate::maintained_nodes::MaintainedNodes;
use crate::measuring::figures::mebibytes;
use crate::measuring::memory::{Memory, forget_peak};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::program::Program;
use crate::world::World;

const SHAPE: Shape = Shape::LARGE;
const MAINTAINED: MaintainedNodes = MaintainedNodes {
    maintenances: 5,
    nodes_each: 20,
    step: 10,
    pods_each: 30,
};
/// For lists of load balancers, one every 15 s.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(SHAPE.nodes).await?;
    MaintainedNodes::create_kinds(&world.client).await?;
    MAINTAINED.create_pods(&world.client).await?;
    let azure = Azure::start(SHAPE).await?;
    let leader = Program::start(world, &azure, "controller", "maintenance: {enabled: true}\n").await?;
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let without = Memory::of(leader.id)?;
    forget_peak(leader.id)?;
    // In its drain window a node is out and still has all its pods.
    MAINTAINED
        .create_maintenances(&world.client, &json!({"connectionsDrainSeconds": 3600}))
        .await?;
    let is_out = |maintenance: &headgate_maintenance::api::NodeMaintenance| {
        let mut conditions = maintenance.status.iter().flat_map(|status| &status.conditions);
        conditions.any(|condition| condition.type_ == "LoadBalancerOut" && condition.status == "True")
    };
    MAINTAINED.until(&world.client, "all are out", is_out).await?;
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let with = Memory::of(leader.id)?;
    MAINTAINED.end(&world.client).await?;
    leader.stop().await;
    azure.stop().await;
    let check = |figure, of: fn(&Memory) -> u64, budget| {
        let value = mebibytes(of(&with));
        let beside = PeerComparison::one("no maintenance", value, mebibytes(of(&without)));
        Check::new(figure, value, "MiB", Some(beside), budget)
    };
    Ok(Row {
        checks: vec![
            check(
                "5,000 Nodes, 50 under maintenance: resident",
                |memory| memory.resident,
                Budget::Most(150.0),
            ),
            check("the same: peak", |memory| memory.peak, Budget::None),
        ],
        raw: json!({"nodes": SHAPE.nodes, "maintained": MAINTAINED.nodes(),
            "pods": MAINTAINED.nodes() * MAINTAINED.pods_each, "without": without.raw(), "with": with.raw()}),
    })
}
