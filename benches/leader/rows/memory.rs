//! A leader's memory with 5,000 Nodes in 4 load balancers of 5,000 entries: after everything was listed, and after 1,000
//! Nodes went Down and came back. One only leads; one answers for a Node too and keeps 2,000 Services.

use std::time::Duration;

use anyhow::Context as _;
use futures::{TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Map, Value, json};

use crate::azure::Azure;
use crate::documents::{LEADERS_NODE, Shape, node_name};
use crate::figures::{mebibytes, rounded};
use crate::memory::{Memory, forget_peak};
use crate::program::{Program, count};
use crate::report::{Budget, Check, Row};
use crate::world::World;

const SHAPE: Shape = Shape {
    load_balancers: 4,
    pools: 1,
    nodes: 5000,
};
const TAINTED: usize = 1000;
const SERVICES: usize = 2000;
const ENDPOINTS: usize = 10;
/// Requests to the API server at once.
const AT_ONCE: usize = 16;
/// A list of load balancers every 15 s is among what is measured.
const SETTLING: Duration = Duration::from_secs(20);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(SHAPE.nodes).await?;
    let mut checks = Vec::new();
    let mut raw = Map::new();
    let alone = one(world, "controller", "").await?;
    services(world).await?;
    let with_services = one(world, "all", "serviceHealth: path\n").await?;
    for (name, memory, figures) in [
        (
            "withServices",
            with_services,
            ["5,000 Nodes, 2,000 Services: resident", "the same: peak"],
        ),
        (
            "controller",
            alone,
            ["5,000 Nodes, --role=controller: resident", "the same: peak"],
        ),
    ] {
        let of = |field: fn(&Memory) -> u64| mebibytes(memory.iter().map(field).max().unwrap_or_default());
        checks.push(Check::new(
            figures[0],
            of(|memory| memory.resident),
            "MiB",
            None,
            Budget::Most(150.0),
        ));
        checks.push(Check::new(
            figures[1],
            of(|memory| memory.peak),
            "MiB",
            None,
            Budget::None,
        ));
        let [listed, down, back] = memory.map(shown);
        raw.insert(
            name.to_owned(),
            json!({"afterList": listed, "withThousandDown": down, "afterRestore": back}),
        );
    }
    raw.insert("nodes".to_owned(), SHAPE.nodes.into());
    raw.insert("entries".to_owned(), (SHAPE.all_pools() * SHAPE.nodes).into());
    Ok(Row {
        checks,
        raw: raw.into(),
    })
}

/// One leader: after the lists, with Nodes Down, and after they came back.
async fn one(world: &mut World, role: &str, settings: &str) -> anyhow::Result<[Memory; 3]> {
    let azure = Azure::start(SHAPE).await?;
    let leader = Program::start(world, &azure, role, settings).await?;
    tokio::time::sleep(SETTLING).await;
    let listed = Memory::of(leader.id)?;
    let mut after = Vec::new();
    for tainted in [true, false] {
        forget_peak(leader.id)?;
        let expected = if tainted { TAINTED * SHAPE.all_pools() } else { 0 };
        world.taint(0..TAINTED, tainted).await?;
        leader
            .until("all are as they should be", |metrics| {
                count(metrics, "headgate_pool_actual_down") == expected
                    && count(metrics, "headgate_pool_desired_down") == expected
            })
            .await?;
        tokio::time::sleep(SETTLING).await;
        after.push(Memory::of(leader.id)?);
    }
    leader.stop().await;
    azure.stop().await;
    let [down, back] = after[..] else {
        anyhow::bail!("two times");
    };
    Ok([listed, down, back])
}

fn shown(memory: Memory) -> Value {
    json!({
        "residentMiB": rounded(mebibytes(memory.resident)),
        "anonymousMiB": rounded(mebibytes(memory.anonymous)),
        "peakMiB": rounded(mebibytes(memory.peak)),
    })
}

/// Services as the agent's benchmark of them has: each with ten endpoints, one of them on this leader's Node.
async fn services(world: &World) -> anyhow::Result<()> {
    let services = Api::<Service>::default_namespaced(world.client.clone());
    let slices = Api::<EndpointSlice>::default_namespaced(world.client.clone());
    stream::iter((0..SERVICES).map(anyhow::Ok))
        .try_for_each_concurrent(AT_ONCE, async |number| {
            let endpoints: Vec<Value> = (0..ENDPOINTS)
                .map(|place| {
                    let node = if place == 0 {
                        LEADERS_NODE.to_owned()
                    } else {
                        node_name(place)
                    };
                    json!({"addresses": [format!("10.{}.{}.{}", 64 + number / 250, number % 250, place + 1)],
                        "nodeName": node, "conditions": {"ready": true, "serving": true, "terminating": false}})
                })
                .collect();
            let slice = json!({"metadata": {"name": format!("web-{number}-1"),
                    "labels": {"kubernetes.io/service-name": format!("web-{number}")}},
                "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 80, "protocol": "TCP"}]});
            slices
                .create(&PostParams::default(), &serde_json::from_value(slice)?)
                .await?;
            let service = json!({"metadata": {"name": format!("web-{number}")}, "spec": {"type": "LoadBalancer",
                "externalTrafficPolicy": "Local", "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}]}});
            services
                .create(&PostParams::default(), &serde_json::from_value(service)?)
                .await?;
            Ok(())
        })
        .await
        .context("making Services")
}
