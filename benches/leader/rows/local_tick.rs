//! One tick over 2,000 Local Services. As pure calls on one thread: each has five pools of 100 entries, so a million entries are
//! compared. As a whole, with the release program: each has one pool of 100 entries in one of five load balancers, and 100
//! of them move; each PUT is planned from a read of its load balancer, which is most of the bytes.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant as WallInstant};

use anyhow::{Context as _, ensure};
use headgate_azure::ResourceGroupId;
use headgate_controller::local_pools::objects::{Endpoint, EndpointSlice, Node};
use headgate_controller::local_pools::{MemberEdit, Updater, UpdaterSettings, base_name, merge};
use headgate_controller::pool::{LoadBalancerView, NodeMatcher, Observation, PoolEntry, PoolView, Rule};
use headgate_core::service::NamespacedName;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::local_slices::{service, uid};
use crate::azure_emulator::{node_address, node_name};
use crate::local_services::{LocalShape, delete, load_balancer_name, service_name};
use crate::measuring::cpu_time;
use crate::measuring::figures::{float, mebibytes, millis, rounded};
use crate::measuring::report::{Budget, Check, Row};
use crate::program::{Program, count};
use crate::world::World;

const SHAPE: LocalShape = LocalShape {
    services: 2000,
    load_balancers: 5,
    entries: 100,
    slices: 1,
    nodes: 200,
    others: 0,
};
/// Interval between two reads of the metrics, and the time for all updates.
const LOOK: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_mins(5);
/// Services that move, in the run of the whole program.
const MOVED: usize = 100;

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    let pure = decide()?;
    let whole = run(world).await?;
    let pools = SHAPE.services * SHAPE.load_balancers;
    let time = |figure, time: Duration| Check::new(figure, millis(time), "ms", None, Budget::None);
    let bytes = |figure, count: u64| Check::new(figure, mebibytes(count), "MiB", None, Budget::None);
    Ok(Row {
        checks: vec![
            Check::new(
                "PUTs, 100 Services moved",
                float(whole.puts),
                "",
                None,
                Budget::Most(float(MOVED as u64)),
            ),
            time("processor time of the program, 100 moved", whole.cpu),
            Check::new("seconds, 100 moved", whole.seconds, "s", None, Budget::None),
            bytes("sent to ARM, 100 moved", whole.sent),
            bytes("received from ARM, 100 moved", whole.received),
            time("a tick over 10,000 pools, none differs", pure.idle),
            time("a tick after one slice changed", pure.one),
            time("a tick after all Services moved", pure.all),
            time("merging and encoding 10,000 pools", pure.merged),
            bytes("bodies of 10,000 pools", pure.bytes),
        ],
        raw: json!({"services": SHAPE.services, "pools": pools, "entries": pools * SHAPE.entries,
            "requestsToArm": whole.requests, "moved": MOVED}),
    })
}

/// Processor time of the decisions.
#[derive(Debug, Default)]
struct Decisions {
    idle: Duration,
    one: Duration,
    all: Duration,
    merged: Duration,
    bytes: u64,
}

fn spend<T>(on: &mut Duration, work: impl FnOnce() -> T) -> anyhow::Result<T> {
    let before = cpu_time::thread()?;
    let done = work();
    *on += cpu_time::thread()?.saturating_sub(before);
    Ok(done)
}

fn decide() -> anyhow::Result<Decisions> {
    let mut updater = Updater::new(UpdaterSettings::default());
    for number in 0..SHAPE.nodes {
        updater.apply_node(Node {
            name: node_name(number),
            internal_addresses: vec![node_address(number).parse()?],
            ..Node::default()
        });
    }
    for number in 0..SHAPE.services {
        updater.apply_service(&service(number).into());
        updater.apply_slice(&slice(number, 0));
    }
    updater.retain_nodes(&(0..SHAPE.nodes).map(node_name).collect());
    let names = |name: fn(usize) -> String| (0..SHAPE.services).map(move |number| named(&name(number)));
    updater.retain_services(&names(service_name).collect());
    updater.retain_slices(&names(slice_name).collect());
    let load_balancers: anyhow::Result<Vec<_>> = (0..SHAPE.load_balancers).map(load_balancer).collect();
    updater.observe(load_balancers?);

    let (mut decisions, mut now) = (Decisions::default(), Instant::now());
    let mut tick = |updater: &mut Updater, on: &mut Duration| {
        now += Duration::from_secs(30);
        spend(on, || {
            updater.begin_tick(now);
            updater.compare_some(now, usize::MAX);
            updater.is_tick_eligible(now)
        })
    };
    ensure!(!tick(&mut updater, &mut decisions.idle)?, "a pool differs");
    updater.apply_slice(&slice(0, 1));
    ensure!(tick(&mut updater, &mut decisions.one)?, "nothing is due");
    ensure!(updater.queue().len() == SHAPE.load_balancers, "others differ, too");
    for number in 0..SHAPE.services {
        updater.apply_slice(&slice(number, 1));
    }
    ensure!(tick(&mut updater, &mut decisions.all)?, "nothing is due");
    updater.drain(Instant::now());
    let pools: Vec<_> = updater.due().all_pools().cloned().collect();
    ensure!(
        pools.len() == SHAPE.services * SHAPE.load_balancers,
        "not every pool is due"
    );
    let nodes = updater.nodes();
    for pool in pools {
        let number = pool.pool().rsplit('-').next().and_then(|number| number.parse().ok());
        let mut document = document(number.context("the number of a Service")?);
        let batch = updater.take_batch(&pool).context("a batch")?;
        let body = spend(&mut decisions.merged, || {
            let desired = batch.desired_members();
            let edit = MemberEdit {
                desired: &desired,
                nodes: &nodes,
                virtual_network: None,
            };
            let merged = merge(&mut document, &edit);
            (merged.is_changed(), document.to_string())
        })?;
        ensure!(body.0, "a pool without a change");
        decisions.bytes += body.1.len() as u64;
        black_box(body);
    }
    Ok(decisions)
}

fn named(name: &str) -> NamespacedName {
    NamespacedName::new("default", name)
}

fn slice_name(number: usize) -> String {
    format!("{}-0", service_name(number))
}

fn slice(number: usize, moves: usize) -> EndpointSlice {
    let endpoint = |node| Endpoint {
        node_name: Some(node_name(node)),
        ready: Some(true),
    };
    EndpointSlice {
        name: named(&slice_name(number)),
        service: Some(service_name(number)),
        endpoints: SHAPE.nodes_of(number, moves).map(endpoint).collect(),
    }
}

/// A load balancer with a pool of every Service.
fn load_balancer(number: usize) -> anyhow::Result<Observation> {
    let id = ResourceGroupId::new("s", "rg")?.load_balancer(&load_balancer_name(number))?;
    let pool = |service: usize| -> anyhow::Result<Arc<PoolView>> {
        let entry = |node| -> anyhow::Result<PoolEntry> {
            Ok(PoolEntry {
                key: None,
                name: None,
                matcher: NodeMatcher::Address(node_address(node).parse()?),
                admin_state: None,
            })
        };
        let base = base_name(&uid(service)).context("a base name")?;
        Ok(Arc::new(PoolView {
            id: id.pool(&format!("default-{}", service_name(service)))?,
            entries: SHAPE.nodes_of(service, 0).map(entry).collect::<Result<_, _>>()?,
            interfaces: Vec::new(),
            rules: vec![Rule {
                name: format!("{base}-TCP-80"),
                probe: None,
            }],
        }))
    };
    let view = LoadBalancerView {
        pools: (0..SHAPE.services).map(pool).collect::<Result<_, _>>()?,
        ..LoadBalancerView::deleted(id.clone())
    };
    Ok(Observation {
        requested_at: Instant::now(),
        view: Arc::new(view),
    })
}

/// A pool's document before its Service moves.
fn document(service: usize) -> Value {
    let entry = |node| json!({"name": node_name(node), "properties": {"ipAddress": node_address(node)}});
    let entries: Vec<_> = SHAPE.nodes_of(service, 0).map(entry).collect();
    json!({"name": format!("default-{}", service_name(service)), "properties": {
        "loadBalancerBackendAddresses": entries, "virtualNetwork": {"id": "/network"}}})
}

/// What the program needs for the Services that move.
#[derive(Debug)]
struct Whole {
    cpu: Duration,
    seconds: f64,
    puts: u64,
    requests: usize,
    sent: u64,
    received: u64,
}

async fn run(world: &mut World) -> anyhow::Result<Whole> {
    world.nodes(SHAPE.all_nodes()).await?;
    let uids = SHAPE.create(&world.client).await?;
    let azure = SHAPE.start_azure(&uids).await?;
    let leader = Program::start(world, &azure, "controller", "").await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (journal, before, start) = (azure.now().await?, cpu_time::process(leader.id)?, WallInstant::now());
    SHAPE.move_endpoints(&world.client, 0..MOVED, 1).await?;
    let done = |metrics: &str| {
        count(metrics, "headgate_local_pools_updates_total") == MOVED
            && count(metrics, "headgate_local_pools_queue_depth") == 0
    };
    // Each read of the metrics of 2,000 pools costs the leader processor time, too.
    while !done(&leader.metrics().await?) {
        ensure!(start.elapsed() < PATIENCE, "the pools do not follow");
        tokio::time::sleep(LOOK).await;
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu = cpu_time::process(leader.id)?.saturating_sub(before);
    let traffic = azure.since(journal).await?;
    leader.stop().await;
    azure.stop().await;
    delete(&world.client).await?;
    Ok(Whole {
        cpu,
        seconds: rounded(seconds),
        puts: traffic.puts as u64,
        requests: traffic.requests,
        sent: traffic.sent,
        received: traffic.received,
    })
}
