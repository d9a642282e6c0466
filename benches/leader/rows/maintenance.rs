//! 200 nodes with 30 pods each under 20 maintenances, each of which has nodes in common with two others: processor time of the
//! leader from their creation until all are drained, what it asked of the API server, and the time of one decision.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headgate_core::node::{NodeDetail, NodeObject, NodeReader, NodeTraffic};
use headgate_maintenance::plan::plan;
use headgate_maintenance::snapshot::{PodFacts, Snapshot};
use jiff::Timestamp;
use kube::Client;
use serde_json::json;

use crate::azure::Azure;
use crate::documents::{Members, Shape};
use crate::maintained_nodes::{MaintainedNodes, is_drained, list};
use crate::measuring::cpu_time;
use crate::measuring::figures::{float, millis, quantile, rounded};
use crate::measuring::report::{Budget, Check, Row};
use crate::program::Program;
use crate::world::World;

const MAINTAINED: MaintainedNodes = MaintainedNodes {
    maintenances: 20,
    nodes_each: 20,
    step: 10,
    pods_each: 30,
};
const SHAPE: Shape = Shape {
    members: Members::Addresses,
    load_balancers: 1,
    pools: 1,
    // One that is not drained, for the guard.
    nodes: 201,
};
const DECISIONS: usize = 100;

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    world.nodes(SHAPE.nodes).await?;
    MaintainedNodes::create_kinds(&world.client).await?;
    MAINTAINED.create_pods(&world.client).await?;
    let azure = Azure::start(SHAPE).await?;
    let leader = Program::start(world, &azure, "controller", "maintenance: {enabled: true}\n").await?;
    let requests_before = requests(&world.client).await?;
    let (before, start) = (cpu_time::process(leader.id)?, Instant::now());
    MAINTAINED
        .create_maintenances(&world.client, &json!({"connectionsDrainSeconds": 1}))
        .await?;
    let decisions = decisions(&world.client).await?;
    MAINTAINED.until(&world.client, "all are drained", is_drained).await?;
    let (used, took) = (cpu_time::process(leader.id)?.saturating_sub(before), start.elapsed());
    let asked = difference(&requests_before, &requests(&world.client).await?);
    MAINTAINED.end(&world.client).await?;
    leader.stop().await;
    azure.stop().await;
    let pods = MAINTAINED.nodes() * MAINTAINED.pods_each;
    let all: u64 = asked.values().sum();
    let decision = |per_mille| {
        let (name, time) = quantile(&decisions, per_mille);
        Check::new(
            format!("one decision, processor time: {name}"),
            millis(time),
            "ms",
            None,
            Budget::None,
        )
    };
    Ok(Row {
        checks: vec![
            Check::new(
                "6,000 pods of 200 nodes: processor time",
                used.as_secs_f64(),
                "s",
                None,
                Budget::None,
            ),
            Check::new(
                "the same: requests for each pod",
                float(all) / float(pods as u64),
                "",
                None,
                Budget::None,
            ),
            decision(500),
            decision(990),
        ],
        raw: json!({"pods": pods, "seconds": rounded(took.as_secs_f64()), "requests": asked}),
    })
}

/// Processor time of the decision about all that exists now, as if no pod had left yet and every node were out.
async fn decisions(client: &Client) -> anyhow::Result<Vec<Duration>> {
    let (maintenances, nodes, pods, evacuations) = list(client).await?;
    let now = Timestamp::now();
    let since = now;
    let nodes: Vec<NodeObject> = serde_json::from_value(serde_json::to_value(nodes)?)?;
    let reader = NodeReader {
        detail: NodeDetail::Maintenance,
        ..NodeReader::default()
    };
    let nodes: Vec<_> = nodes.into_iter().map(|node| Arc::new(reader.read(node))).collect();
    let snapshot = Snapshot {
        undecodable_maintenances: BTreeMap::new(),
        load_balancers: nodes
            .iter()
            .map(|node| (node.name.clone(), NodeTraffic::Out { since: Some(since) }))
            .collect(),
        maintenances,
        nodes,
        pods: pods.into_iter().map(PodFacts::from).collect(),
        evacuations,
        budgets: Vec::new(),
        max_concurrent_nodes: None,
        pauses_upgrades: false,
        machines: None,
        automatic: headgate_maintenance::automatic::AutomaticMaintenances::default(),
    };
    let mut times = Vec::new();
    for _ in 0..DECISIONS {
        let before = cpu_time::thread()?;
        drop(black_box(plan(black_box(&snapshot), now)));
        times.push(cpu_time::thread()?.saturating_sub(before));
    }
    Ok(times)
}

/// The requests that the API server has answered, by verb and resource. Reads of this program are among them: one list a second.
async fn requests(client: &Client) -> anyhow::Result<BTreeMap<String, u64>> {
    let request = hyper::Request::get("/metrics").body(Vec::new())?;
    let text = client.request_text(request).await?;
    let mut counts = BTreeMap::new();
    for line in text
        .lines()
        .filter_map(|line| line.strip_prefix("apiserver_request_total{"))
    {
        let Some((labels, value)) = line.split_once("} ") else {
            continue;
        };
        let label = |name: &str| {
            let value = labels.split_once(&format!("{name}=\""))?.1;
            value.split('"').next()
        };
        let resource = label("resource").unwrap_or_default();
        let subresource = label("subresource").filter(|name| !name.is_empty());
        let resource = subresource.map_or(resource.to_owned(), |name| format!("{resource}/{name}"));
        if ["nodemaintenances", "evacuations", "pods", "nodes", "events"]
            .iter()
            .any(|kind| resource.starts_with(kind))
        {
            let key = format!("{} {resource}", label("verb").unwrap_or_default());
            *counts.entry(key).or_default() += value.trim().parse::<u64>().unwrap_or_default();
        }
    }
    Ok(counts)
}

fn difference(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let new = |(key, count): (&String, &u64)| (key.clone(), count - before.get(key).copied().unwrap_or_default());
    after.iter().map(new).filter(|(_, count)| *count > 0).collect()
}
