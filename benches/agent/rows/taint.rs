//! Time from the API server's answer to a taint until `/healthz` answers 503: the agent and kube-proxy in the
//! same trial, polled alternately on keep-alive connections from that answer on.
//!
//! Polling adds half a round to both times on average, because the two
//! alternate in being polled first. A smaller difference between them is not significant.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::http::Prober;
use crate::measuring::figures::{millis, percentile, rounded};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::world::{World, settled};

/// The number of trials.
const TRIALS: u32 = 400;
/// Time within which a change must be visible.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum pause between two trials; pauses vary, so that no timer is in phase with them.
const PAUSE_MS: u32 = 7;
/// The only taint to which both react.
const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    let servers = [world.agent, world.kube_proxy];
    let mut probers = [
        Prober::connect(servers[0].healthz, false)?,
        Prober::connect(servers[1].healthz, false)?,
    ];
    let mut seen: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
    let mut rounds = Vec::new();
    for trial in 0..TRIALS {
        world
            .patch_node(&taints(&json!([{"key": TAINT, "effect": "NoSchedule"}])))
            .await?;
        let trial_seen = watch(&mut probers, usize::from(trial % 2 == 1), &mut rounds)?;
        for (seen, after) in seen.iter_mut().zip(trial_seen) {
            seen.push(after);
        }
        world.patch_node(&taints(&Value::Null)).await?;
        for server in servers {
            settled(server, 200).await?;
        }
        tokio::time::sleep(Duration::from_millis((trial % PAUSE_MS).into())).await;
    }

    let error = millis(percentile(&rounds, 500)) / 2.0;
    let check = |figure, per_mille| {
        let [agent, kube_proxy] = [0, 1].map(|index| millis(percentile(&seen[index], per_mille)));
        let beside = PeerComparison::one("kube-proxy", agent, kube_proxy);
        Check::new(figure, agent, "ms", Some(beside), Budget::PeerWithin(error))
    };
    let first = seen[0]
        .iter()
        .zip(&seen[1])
        .filter(|(agent, kube_proxy)| agent < kube_proxy)
        .count();
    let raw = |index: usize| {
        let at = |per_mille| rounded(millis(percentile(&seen[index], per_mille)));
        json!({"p50Ms": at(500), "p90Ms": at(900), "p99Ms": at(990), "maxMs": at(1000)})
    };
    Ok(Row {
        checks: vec![check("p99", 990), check("p50", 500)],
        raw: json!({
            "trials": TRIALS,
            "headgate": raw(0),
            "kubeProxy": raw(1),
            "trialsHeadgateFirst": first,
            "roundOfAskingMs": rounded(millis(percentile(&rounds, 500))),
        }),
    })
}

/// Polls both alternately until each has answered 503; returns the times.
fn watch(probers: &mut [Prober; 2], first: usize, rounds: &mut Vec<Duration>) -> anyhow::Result<[Duration; 2]> {
    let start = Instant::now();
    let mut seen = [None, None];
    loop {
        let round = Instant::now();
        for index in [first, 1 - first] {
            // Both are polled to the end, so that neither gets faster when the other is done.
            let status = ask(&mut probers[index])?;
            if status == 503 && seen[index].is_none() {
                seen[index] = Some(start.elapsed());
            }
        }
        rounds.push(round.elapsed());
        if let [Some(agent), Some(kube_proxy)] = seen {
            return Ok([agent, kube_proxy]);
        }
        anyhow::ensure!(
            start.elapsed() < PATIENCE,
            "a taint was not seen within {} s: {seen:?}",
            PATIENCE.as_secs()
        );
    }
}

fn ask(prober: &mut Prober) -> anyhow::Result<u16> {
    let (status, ..) = prober.ask().context("a probe on a kept connection")?;
    Ok(status)
}

fn taints(taints: &Value) -> Value {
    json!({"spec": {"taints": taints}})
}
