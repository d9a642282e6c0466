//! A rolling update simulated probe by probe, to check the closed forms of the [budget](headgate_budget).

use std::time::Duration;

use headgate_budget::expected_loss;
use headgate_budget::probe::{ProbeRule, ProbeSettings, Provider};

use crate::probe::{ProbeResult, ProbeStatus, ProbeTracker};

/// How long new connections to one node are lost when its Pod is replaced, in seconds. The health check fails at time
/// zero and passes again once the new Pod is ready; probes come at `phase` and every interval after it.
fn lost_seconds(probe: &ProbeSettings, serving: Duration, restart: Duration, phase: Duration) -> f64 {
    let ready = serving + restart;
    let mut tracker = ProbeTracker::new(ProbeStatus::Up);
    let mut at = phase;
    let stopped = loop {
        if at >= ready {
            break ready;
        }
        if tracker.observe(ProbeResult::Refusal, probe).is_some() {
            break at;
        }
        at += probe.interval;
    };
    stopped.saturating_sub(serving).as_secs_f64()
}

/// Seeds, each a roll of [`NODES`] nodes.
const SEEDS: u64 = 60;
const NODES: u32 = 6;

/// The mean over all seeds and nodes, and three standard errors of it.
fn simulated(probe: &ProbeSettings, serving: Duration, restart: Duration) -> (f64, f64) {
    let mut losses = Vec::new();
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..NODES {
            let phase = probe.interval.mul_f64(random.f64());
            losses.push(lost_seconds(probe, serving, restart, phase));
        }
    }
    let count = f64::from(u32::try_from(losses.len()).unwrap());
    let mean = losses.iter().sum::<f64>() / count;
    let variance = losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, 3.0 * (variance / count).sqrt())
}

#[test]
fn simulation_and_closed_forms_agree_within_sampling_error() {
    let probe = |threshold: u32, interval: u64| ProbeSettings {
        interval: Duration::from_secs(interval),
        unhealthy_threshold: threshold,
        rule: ProbeRule::Threshold,
        ..Provider::Azure.probe()
    };
    let documented = ProbeSettings {
        rule: ProbeRule::FirstNon200,
        ..probe(3, 10)
    };
    for (probe, serving, restart) in [
        (probe(1, 10), 0, 20),
        (probe(2, 10), 0, 20),
        (probe(3, 8), 0, 20),
        (probe(2, 5), 0, 20),
        (probe(2, 10), 5, 20),
        (probe(2, 10), 15, 20),
        (probe(2, 10), 20, 20),
        (probe(3, 30), 30, 20),
        (probe(3, 30), 300, 20),
        (documented, 0, 20),
        (documented, 4, 20),
    ] {
        let [serving, restart] = [serving, restart].map(Duration::from_secs);
        let (mean, error) = simulated(&probe, serving, restart);
        let expected = expected_loss(&probe, serving, restart);
        assert!(
            (mean - expected).abs() <= error + 1e-9,
            "{probe:?}, served {serving:?}: simulated {mean} ± {error}, computed {expected}"
        );
    }
}
