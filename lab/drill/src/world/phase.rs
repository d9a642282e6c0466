//! When the load balancer probes which node, and at which phase of its probes a run's first signal comes.
//!
//! A run starts when the last node has got into rotation. Without more, that time depends on the probes' phases, and the
//! first probe after a signal comes late on average. So each run waits for a phase that is given: over the runs of a
//! strategy it is uniform, with one run in each stratum, and the same in the runs of every strategy with the same seed.

use std::time::Duration;

use tokio::time::Instant;

/// The times of all probes.
#[derive(Clone, Debug)]
pub struct Schedule {
    origin: Instant,
    interval: Duration,
    /// Those of each node's probers, from the origin to the first probe, each less than the interval.
    phases: Vec<Vec<Duration>>,
}

impl Schedule {
    /// Random phases for this many nodes and probers, at least one of each.
    pub fn new(origin: Instant, interval: Duration, nodes: usize, probers: usize, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut phases = || (0..probers.max(1)).map(|_| interval.mul_f64(random.f64())).collect();
        Self {
            origin,
            interval,
            phases: (0..nodes.max(1)).map(|_| phases()).collect(),
        }
    }

    /// The first probe of each of a node's probers.
    pub fn first(&self, node: usize) -> Vec<Instant> {
        let phases = self.phases.get(node).into_iter().flatten();
        phases.map(|phase| self.origin + *phase).collect()
    }

    /// How long after `at` a signal has to come, so that the next probe of the node's first prober follows this share of the
    /// interval later.
    pub fn wait(&self, at: Instant, node: usize, share: f64) -> Duration {
        let interval = self.interval.as_secs_f64();
        let phase = self.phases.get(node).and_then(|phases| phases.first());
        let elapsed = at.saturating_duration_since(self.origin).as_secs_f64();
        let wait = phase.map_or(0.0, Duration::as_secs_f64) - elapsed - interval * share;
        Duration::from_secs_f64(wait.rem_euclid(interval))
    }
}

/// For each of several runs a share from 0 to 1: uniform, with one in each of as many equal strata, in random order.
pub fn stratified(seed: u64, runs: usize) -> Vec<f64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut strata: Vec<_> = (0..u32::try_from(runs).unwrap_or(u32::MAX)).collect();
    let count = f64::from(u32::try_from(strata.len()).unwrap_or(u32::MAX));
    random.shuffle(&mut strata);
    strata
        .into_iter()
        .map(|stratum| (f64::from(stratum) + random.f64()) / count)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    /// From a signal until the node's next probe, as a share of the interval, for a run that could signal at `ready`.
    fn first_probe(schedule: &Schedule, ready: Instant, share: f64) -> f64 {
        let signal = ready + schedule.wait(ready, 0, share);
        let mut probe = schedule.first(0)[0];
        while probe < signal {
            probe += INTERVAL;
        }
        (probe - signal).as_secs_f64() / INTERVAL.as_secs_f64()
    }

    /// The largest distance between the distribution of these values and the uniform one from 0 to 1.
    fn distance_from_uniform(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        let count = f64::from(u32::try_from(values.len()).unwrap());
        let distance = |(index, value): (u32, f64)| {
            let [below, above] = [index, index + 1].map(|number| f64::from(number) / count);
            (value - below).abs().max((above - value).abs())
        };
        (0..).zip(values).map(distance).fold(0.0, f64::max)
    }

    /// When a run could signal: each node has had its second probe, and the lead-in is one interval.
    fn ready(schedule: &Schedule, nodes: usize) -> Instant {
        let second = (0..nodes).map(|node| schedule.first(node)[0] + INTERVAL);
        second.max().unwrap() + INTERVAL
    }

    #[test]
    fn the_first_probe_after_a_signal_is_uniform_and_without_the_wait_it_is_not() {
        let origin = Instant::now();
        for nodes in [2, 4, 6] {
            let (mut waited, mut at_once) = (Vec::new(), Vec::new());
            for seed in 0..1000 {
                let schedule = Schedule::new(origin, INTERVAL, nodes, 1, seed);
                let ready = ready(&schedule, nodes);
                waited.push(first_probe(&schedule, ready, stratified(seed, 1)[0]));
                let since = (ready - schedule.first(0)[0]).as_secs_f64();
                at_once.push(1.0 - (since / INTERVAL.as_secs_f64()).rem_euclid(1.0));
            }
            // Kolmogorov's bound at 99 % is 1.63 / √1000.
            let [waited, at_once] = [waited, at_once].map(distance_from_uniform);
            assert!(waited < 0.052, "{nodes} nodes: {waited}");
            assert!(at_once > 0.1, "the bias that is removed, {nodes} nodes: {at_once}");
        }
    }

    #[test]
    fn of_twenty_runs_each_has_a_stratum_of_its_own() {
        let origin = Instant::now();
        for seed in 0..50 {
            let shares = stratified(seed, 20);
            let mut found: Vec<_> = (0..)
                .zip(&shares)
                .map(|(run, share)| {
                    let schedule = Schedule::new(origin, INTERVAL, 4, 1, seed + run);
                    let ready = ready(&schedule, 4) + Duration::from_millis(137 * run);
                    first_probe(&schedule, ready, *share)
                })
                .collect();
            assert!(
                shares
                    .iter()
                    .zip(&found)
                    .all(|(share, found)| (share - found).abs() < 1e-6)
            );
            found.sort_by(f64::total_cmp);
            for (stratum, share) in (0..).zip(found) {
                let [from, to] = [stratum, stratum + 1].map(|number| f64::from(number) / 20.0);
                assert!((from..to).contains(&share), "{share} in stratum {stratum}");
            }
        }
        assert_ne!(
            stratified(1, 20)[0].total_cmp(&stratified(2, 20)[0]),
            std::cmp::Ordering::Equal
        );
    }
}
