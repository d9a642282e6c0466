//! Clients that do wrong: what they cost in memory, how long they stay, what good probes notice.

use std::time::Duration;

use serde_json::{Map, json};

use crate::flood::{Flooded, Manner, flood};
use crate::measuring::figures::{float, mebibytes, millis};
use crate::measuring::report::{Beside, Budget, Check, Row};
use crate::world::World;

/// Half-sent requests.
const HALF_SENT: usize = 10_000;
/// Clients of each other manner.
const OTHERS: usize = 1_000;
/// A flood of half-sent requests lasts until all are closed, but so long at least and at most.
const HALF_SENT_TIME: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(1));
/// The same for the other manners.
const OTHERS_TIME: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));

pub(super) async fn half_sent(world: &mut World) -> anyhow::Result<Row> {
    let _split = world.split_cores().await?;
    let agent = flood(&world.agent, Manner::HalfSent, HALF_SENT, HALF_SENT_TIME)?;
    // The peer is watched for as long, to the same end or not.
    let kube_proxy = flood(
        &world.kube_proxy,
        Manner::HalfSent,
        HALF_SENT,
        (agent.lasted, agent.lasted),
    )?;
    let memory = beside_memory(&agent, &kube_proxy);
    let closed = agent.all_closed_after.unwrap_or(Duration::MAX).as_secs_f64();
    Ok(Row {
        checks: vec![
            Check::new(
                "extra memory",
                memory.0,
                "MiB",
                Some(memory.1),
                Budget::ShareAtMost(0.2),
            ),
            Check::new("all closed after", closed, "s", None, Budget::Most(60.0)),
            good_probes(&[&agent], &[&kube_proxy]),
            failed_probes(&[&agent], &[&kube_proxy]),
        ],
        raw: json!({
            "connections": HALF_SENT,
            "headgate": agent.raw(),
            "kubeProxy": kube_proxy.raw(),
        }),
    })
}

pub(super) async fn clients(world: &mut World) -> anyhow::Result<Row> {
    let _split = world.split_cores().await?;
    let mut raw = Map::new();
    let (mut agents, mut kube_proxies) = (Vec::new(), Vec::new());
    for manner in [Manner::Garbage, Manner::OversizedHeader, Manner::NeverReads] {
        let agent = flood(&world.agent, manner, OTHERS, OTHERS_TIME)?;
        let kube_proxy = flood(&world.kube_proxy, manner, OTHERS, (agent.lasted, agent.lasted))?;
        let both = json!({"headgate": agent.raw(), "kubeProxy": kube_proxy.raw()});
        raw.insert(manner.name().to_owned(), both);
        agents.push(agent);
        kube_proxies.push(kube_proxy);
    }
    let (agents, kube_proxies): (Vec<_>, Vec<_>) = (agents.iter().collect(), kube_proxies.iter().collect());
    let extra = |floods: &[&Flooded]| floods.iter().map(|flood| flood.extra_memory).max().unwrap_or_default();
    let memory = mebibytes(extra(&agents));
    let beside = Beside::one("kube-proxy", memory, mebibytes(extra(&kube_proxies)));
    raw.insert("connectionsOfEach".to_owned(), OTHERS.into());
    Ok(Row {
        checks: vec![
            good_probes(&agents, &kube_proxies),
            failed_probes(&agents, &kube_proxies),
            Check::new("extra memory", memory, "MiB", Some(beside), Budget::Most(32.0)),
        ],
        raw: raw.into(),
    })
}

fn beside_memory(agent: &Flooded, kube_proxy: &Flooded) -> (f64, Beside) {
    let (agent, kube_proxy) = (mebibytes(agent.extra_memory), mebibytes(kube_proxy.extra_memory));
    (agent, Beside::one("kube-proxy", agent, kube_proxy))
}

/// The slowest p99 of good probes beside any of the floods.
fn good_probes(agent: &[&Flooded], kube_proxy: &[&Flooded]) -> Check {
    let p99 = |floods: &[&Flooded]| millis(floods.iter().map(|flood| flood.p99()).max().unwrap_or_default());
    let (agent, kube_proxy) = (p99(agent), p99(kube_proxy));
    let beside = Beside::one("kube-proxy", agent, kube_proxy);
    Check::new("good probes p99", agent, "ms", Some(beside), Budget::Most(5.0))
}

/// Good probes that got no good answer.
fn failed_probes(agent: &[&Flooded], kube_proxy: &[&Flooded]) -> Check {
    let failed = |floods: &[&Flooded]| floods.iter().map(|flood| flood.failed_probes).sum::<usize>();
    let float = |count: usize| float(u64::try_from(count).unwrap_or(u64::MAX));
    let (agent, kube_proxy) = (float(failed(agent)), float(failed(kube_proxy)));
    let beside = Beside {
        peer_name: "kube-proxy",
        peer: kube_proxy,
        ratio: if agent <= kube_proxy { 0.0 } else { 1.0 },
    };
    Check::new("good probes failed", agent, "probes", Some(beside), Budget::Most(0.0))
}
