//! Hostile clients: their cost in memory, the time until they are closed, and the latency of valid probes.

use std::time::Duration;

use serde_json::{Map, json};

use crate::flood::{Attack, FloodResult, flood};
use crate::measuring::figures::{float, mebibytes, millis};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::world::World;

/// The number of incomplete requests.
const HALF_SENT: usize = 10_000;
/// Clients of each other kind of attack.
const OTHERS: usize = 1_000;
/// A flood of half-sent requests lasts until all are closed, but so long at least and at most.
const HALF_SENT_TIME: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(1));
/// The same bounds for the other attacks.
const OTHERS_TIME: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));

pub(super) async fn half_sent(world: &mut World) -> anyhow::Result<Row> {
    let _split = world.split_cores().await?;
    let agent = flood(&world.agent, Attack::HalfSent, HALF_SENT, HALF_SENT_TIME)?;
    // The peer is measured for the same time, even if its connections stay open.
    let kube_proxy = flood(
        &world.kube_proxy,
        Attack::HalfSent,
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
    for attack in [Attack::Garbage, Attack::OversizedHeader, Attack::NeverReads] {
        let agent = flood(&world.agent, attack, OTHERS, OTHERS_TIME)?;
        let kube_proxy = flood(&world.kube_proxy, attack, OTHERS, (agent.lasted, agent.lasted))?;
        let both = json!({"headgate": agent.raw(), "kubeProxy": kube_proxy.raw()});
        raw.insert(attack.name().to_owned(), both);
        agents.push(agent);
        kube_proxies.push(kube_proxy);
    }
    let (agents, kube_proxies): (Vec<_>, Vec<_>) = (agents.iter().collect(), kube_proxies.iter().collect());
    let extra = |floods: &[&FloodResult]| floods.iter().map(|flood| flood.extra_memory).max().unwrap_or_default();
    let memory = mebibytes(extra(&agents));
    let beside = PeerComparison::one("kube-proxy", memory, mebibytes(extra(&kube_proxies)));
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

fn beside_memory(agent: &FloodResult, kube_proxy: &FloodResult) -> (f64, PeerComparison) {
    let (agent, kube_proxy) = (mebibytes(agent.extra_memory), mebibytes(kube_proxy.extra_memory));
    (agent, PeerComparison::one("kube-proxy", agent, kube_proxy))
}

/// The slowest p99 of good probes beside any of the floods.
fn good_probes(agent: &[&FloodResult], kube_proxy: &[&FloodResult]) -> Check {
    let slowest = |floods: &[&FloodResult]| floods.iter().map(|flood| flood.p99()).max_by_key(|(_, time)| *time);
    let [(name, agent), (_, kube_proxy)] = [slowest(agent), slowest(kube_proxy)].map(Option::unwrap_or_default);
    let (agent, kube_proxy) = (millis(agent), millis(kube_proxy));
    let beside = PeerComparison::one("kube-proxy", agent, kube_proxy);
    Check::new(
        format!("good probes {name}"),
        agent,
        "ms",
        Some(beside),
        Budget::Most(5.0),
    )
}

/// Good probes that got no good answer.
fn failed_probes(agent: &[&FloodResult], kube_proxy: &[&FloodResult]) -> Check {
    let failed = |floods: &[&FloodResult]| floods.iter().map(|flood| flood.failed_probes).sum::<usize>();
    let float = |count: usize| float(u64::try_from(count).unwrap_or(u64::MAX));
    let (agent, kube_proxy) = (float(failed(agent)), float(failed(kube_proxy)));
    let beside = PeerComparison {
        peer_name: "kube-proxy",
        peer: kube_proxy,
        ratio: if agent <= kube_proxy { 0.0 } else { 1.0 },
    };
    Check::new("good probes failed", agent, "probes", Some(beside), Budget::Most(0.0))
}
