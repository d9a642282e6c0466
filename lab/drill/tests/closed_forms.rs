//! The data plane against the closed forms of the blackhole budget: what connections lose when a Pod goes away.
//!
//! One Pod of three ends, as before Kubernetes 1.26 and as after it, with probes of 5 s × 2 in a tenth of their time. Each seed
//! has its own phases of probes, its own hash and its own connections; over the seeds, the time from the Pod's end to the first
//! probe is uniform, as the closed forms assume. They know nothing of the time that this machine needs to change rules; it is
//! seen in the events of each run, and added.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "fixture/fixture.rs"]
mod fixture;

use std::io::Write as _;
use std::time::Duration;

use headgate_budget::expected_loss;
use headgate_drill::clients::ClientSettings;
use headgate_drill::control_plane::ControlPlane;
use headgate_drill::result::Event;
use headgate_drill::scenario::{Action, Scenario, Step, Timeline};
use headgate_drill::strategy::{PodTimes, Strategy};
use headgate_drill::world::phase::stratified;
use headgate_drill::world::{Recording, RunSettings, World};

use fixture::{NODES, probe, run_settings, runtime, world_settings};

/// Seeds of each case.
const SEEDS: usize = 60;
/// Worlds at once; each does its share of the seeds.
const WORLDS: usize = 4;
/// New connections a second in each world.
const RATE: f64 = 100.0;
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// The Pod begins to terminate.
const TERMINATED: Duration = Duration::from_millis(100);
/// After the longest detection.
const END: Duration = Duration::from_millis(1350);
/// A run in which clients started later than this says nothing about the load balancer; its seed runs again.
const LAG_LIMIT: Duration = Duration::from_millis(30);
/// How many late runs are repeated in one world. After that, a seed whose run is late has no sample.
const REPETITIONS: usize = 15;
/// Fewer samples of a case say too little.
const SAMPLES_MIN: usize = SEEDS / 2;
/// How far the mean loss may be off, in seconds: a fifth of an interval, and four or more standard errors of sixty samples. A noisier machine
/// makes it no larger.
const TOLERANCE: f64 = 0.1;

fn timeline(serving: Duration) -> Timeline {
    let step = |at, action| Step { at, node: 0, action };
    Timeline {
        steps: vec![
            step(TERMINATED, Action::TerminatePod),
            step(TERMINATED + serving, Action::EndPod),
        ],
        end: END,
    }
}

/// The time for which one node's connections were lost, by the connections that failed.
fn lost_seconds(recording: &Recording) -> f64 {
    let attempts = &recording.observations.attempts;
    let failed = attempts.iter().filter(|attempt| attempt.answered_by.is_none()).count();
    #[expect(clippy::cast_precision_loss, reason = "some hundred connections")]
    let (failed, nodes) = (failed as f64, NODES as f64);
    failed / RATE * nodes
}

/// One run, in seconds.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The time to the first probe that the run was asked for, as a share of the interval.
    phase: f64,
    /// What connections lost.
    lost: f64,
    /// From the Pod's deletion until its health check failed.
    until_failing: f64,
    /// From the Pod's deletion until the first probe that failed.
    until_probe: f64,
    /// From the probes' verdict until the load balancer's rules had changed.
    until_out: f64,
}

impl Sample {
    fn new(recording: &Recording, phase: f64) -> Self {
        let time = |event: Event| {
            let seen = recording
                .events
                .iter()
                .find(|seen| seen.event == event && seen.node == 0);
            seen.unwrap().at
        };
        Self {
            phase,
            lost: lost_seconds(recording),
            until_failing: (time(Event::Healthz503) - time(Event::Signal)).as_secs_f64(),
            until_probe: (time(Event::ProbeFailed) - time(Event::Signal)).as_secs_f64(),
            until_out: (time(Event::OutOfRotation) - time(Event::ProbeDown)).as_secs_f64(),
        }
    }
}

/// What some of the seeds give, each in one run of the same world.
fn samples(serving: Duration, seeds: std::ops::Range<usize>) -> Vec<Sample> {
    let times = PodTimes {
        pre_stop: Duration::ZERO,
        process: serving,
        connection_lifetime: Duration::from_secs(1),
    };
    // Before 1.26 a terminating Pod gets nothing, however long it serves.
    let strategy = if serving.is_zero() {
        Strategy::None
    } else {
        Strategy::KubeProxy
    };
    let phases = stratified(0, SEEDS);
    let settings = world_settings(strategy.plan(Scenario::RollingUpdate, &times), probe(PROBE_INTERVAL));
    runtime().block_on(async {
        let mut world = World::start(settings).await.unwrap();
        let (mut samples, mut index, mut repeated) = (Vec::new(), 0, 0);
        for seed in seeds {
            loop {
                let mut run = RunSettings {
                    index,
                    seed: seed as u64,
                    phase: phases[seed],
                    ..run_settings()
                };
                run.clients = ClientSettings {
                    rate: RATE,
                    long_lived: 0,
                    seed: seed as u64,
                    ..run.clients
                };
                index += 1;
                let recording = world
                    .run(&timeline(serving), &run, &mut ControlPlane::none(NODES))
                    .await
                    .unwrap();
                world.restore().await.unwrap();
                if recording.observations.longest_lag <= LAG_LIMIT {
                    samples.push(Sample::new(&recording, phases[seed]));
                    break;
                }
                if repeated == REPETITIONS {
                    break;
                }
                repeated += 1;
            }
        }
        samples
    })
}

/// The samples of all seeds.
fn all_samples(serving: Duration) -> Vec<Sample> {
    let share = SEEDS / WORLDS;
    let worlds: Vec<_> = (0..WORLDS)
        .map(|world| std::thread::spawn(move || samples(serving, world * share..(world + 1) * share)))
        .collect();
    worlds.into_iter().flat_map(|world| world.join().unwrap()).collect()
}

/// The mean of a value, and its standard error.
fn mean(samples: &[Sample], value: fn(&Sample) -> f64) -> (f64, f64) {
    let values: Vec<_> = samples.iter().map(value).collect();
    #[expect(clippy::cast_precision_loss, reason = "sixty")]
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

/// The largest distance between the distribution of the first probe after the signal and that of the phases asked for, which
/// are uniform over the seeds.
fn distance_from_phases(samples: &[Sample]) -> f64 {
    let phases: Vec<_> = samples.iter().map(|sample| sample.phase).collect();
    let seconds = samples.iter().map(|sample| sample.until_probe);
    let shares: Vec<_> = seconds.map(|until| until / PROBE_INTERVAL.as_secs_f64()).collect();
    let up_to = |values: &[f64], bound: f64| values.iter().filter(|value| **value <= bound).count();
    let distance = |bound: &f64| up_to(&shares, *bound).abs_diff(up_to(&phases, *bound));
    let longest = shares.iter().chain(&phases).map(distance).max().unwrap();
    #[expect(clippy::cast_precision_loss, reason = "sixty")]
    let share = longest as f64 / samples.len() as f64;
    share
}

fn agrees(serving: Duration) {
    let samples = all_samples(serving);
    assert!(
        samples.len() >= SAMPLES_MIN,
        "the machine is too busy: {} of {SEEDS} runs began in time",
        samples.len()
    );
    let (lost, error) = mean(&samples, |sample| sample.lost);
    let (until_failing, _) = mean(&samples, |sample| sample.until_failing);
    let (until_out, _) = mean(&samples, |sample| sample.until_out);
    // A health check that fails late leaves the Pod less time to serve. One that fails as the connections do changes nothing.
    let served = serving.saturating_sub(Duration::from_secs_f64(until_failing));
    let computed = expected_loss(&probe(PROBE_INTERVAL), served, Duration::from_mins(1)) + until_out;
    let text = format!(
        "{} ms served, {} runs: measured {lost:.4} ± {error:.4} s, computed {computed:.4} s; health check after {until_failing:.4} s, rules \
         after {until_out:.4} s",
        serving.as_millis(),
        samples.len()
    );
    let _ = writeln!(std::io::stderr(), "{text}");
    assert!((lost - computed).abs() <= TOLERANCE, "{text}");
    // A machine that is busy finds the failure some milliseconds late. Runs that begin at once after the rotation have 0.33 here.
    let distance = distance_from_phases(&samples);
    assert!(
        distance < 0.1,
        "the first probes come {distance} off the times asked for: {samples:?}"
    );
}

#[test]
#[ignore = "needs network namespaces"]
fn connections_lose_what_the_closed_form_says() {
    // Before 1.26, and with terminating endpoints: one after the other, for the sake of the machine.
    agrees(Duration::ZERO);
    agrees(Duration::from_millis(600));
}
