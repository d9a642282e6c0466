//! Rolling updates beside the [budget](headgate_budget): what they lost, and what the closed forms compute for them.

use headgate_budget::{Inputs, budget};

use super::Options;
use crate::result::{Event, RunResult};
use crate::scenario::Scenario;
use crate::spread::Spread;
use crate::strategy::Strategy;

/// All rolls of one strategy. Times are of the scenario, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roll {
    /// What was done about it.
    pub strategy: Strategy,
    /// From the first Pod's deletion until the last one is replaced.
    pub seconds: Spread,
    /// The share of new connections that failed meanwhile.
    pub failed_share: Spread,
    /// See [`RunResult::blackhole_seconds`].
    pub blackhole_seconds: Spread,
    /// What the closed form expects of it.
    pub expected_seconds: f64,
    /// The post's worst case: each Pod's node is lost until probes notice and for the drain time after it, together at least as
    /// long as the Pod terminates.
    pub worst_seconds: f64,
    /// The share of new connections that is lost so long.
    pub worst_share: f64,
}

impl Options {
    /// A row for each strategy, in a rolling update.
    pub fn rolls(&self, results: &[RunResult]) -> Vec<Roll> {
        let strategies = self.strategies().into_iter();
        let rolling = strategies.filter(|_| self.scenario == Scenario::RollingUpdate);
        rolling.filter_map(|strategy| self.roll(strategy, results)).collect()
    }

    fn roll(&self, strategy: Strategy, results: &[RunResult]) -> Option<Roll> {
        let plan = strategy.plan(self.scenario, &self.pods());
        let (serving, terminating) = (plan.serves_new(), plan.shutdown.serving());
        let nodes = u32::try_from(self.nodes).ok()?;
        let computed = budget(&Inputs {
            probe: self.probe(),
            drain: terminating.saturating_sub(self.probe().longest_detection_by_threshold()),
            pods: nodes,
            nodes,
            delete_delay: self.delete_delay,
            serving,
            restart: terminating.saturating_sub(serving) + self.restart,
        });
        let computed = computed.ok()?;
        let runs: Vec<_> = results.iter().filter(|run| run.strategy == strategy).collect();
        let measured: Option<Vec<_>> = runs.iter().map(|run| measured(run)).collect();
        let (seconds, shares): (Vec<_>, Vec<_>) = measured?.into_iter().unzip();
        let blackholes: Vec<_> = runs.iter().map(|run| run.blackhole_seconds).collect();
        Some(Roll {
            strategy,
            seconds: Spread::new(&seconds),
            failed_share: Spread::new(&shares),
            blackhole_seconds: Spread::new(&blackholes),
            expected_seconds: computed.expected_loss_seconds_per_pod * f64::from(nodes),
            worst_seconds: computed.blackhole_seconds_total,
            worst_share: computed.error_share,
        })
    }
}

/// How long a run's roll took, and the share of new connections that failed in that time; none if no Pod was replaced.
fn measured(run: &RunResult) -> Option<(f64, f64)> {
    let times = |wanted: Event| {
        let found = run.timeline.iter().filter(move |found| found.event == wanted);
        found.map(|found| found.t)
    };
    let begin = times(Event::Signal).reduce(f64::min)?;
    let end = times(Event::PodReady).reduce(f64::max)?;
    let during = run.attempts.iter();
    let during = during.filter(|attempt| (begin..end).contains(&attempt.at.as_secs_f64()));
    let failed = during.clone().filter(|attempt| !attempt.succeeded).count();
    #[expect(clippy::cast_precision_loss, reason = "counts of connections are far below 2^52")]
    let share = failed as f64 / during.count().max(1) as f64;
    Some((end - begin, share))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_budget::probe::ProbeRule;

    use super::super::options::tests::options;
    use super::*;
    use crate::result::{Attempt, RunIdentity, TimelineEvent, summarize};

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The post's nodes and drain time, with Azure's probes.
    fn post(strategies: &[Strategy], shutdown: u64) -> Options {
        Options {
            scenario: Scenario::RollingUpdate,
            strategy: strategies.to_vec(),
            nodes: 6,
            pre_stop: seconds(305),
            shutdown: seconds(shutdown),
            ..options()
        }
    }

    /// A connection a second, of which every sixth fails between two times; the roll is from 10 s to 70 s.
    fn run(strategy: Strategy, failing: std::ops::Range<u64>) -> RunResult {
        let identity = RunIdentity {
            scenario: Scenario::RollingUpdate,
            strategy,
            seed: 1,
            speed: 1.0,
            nodes: 6,
            longest_lag: Duration::ZERO,
        };
        let attempts = (0..=120).map(|second| Attempt {
            at: seconds(second),
            succeeded: !failing.contains(&second) || second % 6 > 0,
        });
        let event = |t: f64, event: Event| TimelineEvent { t, event, node: 0 };
        let timeline = vec![
            event(10.0, Event::Signal),
            event(30.0, Event::PodReady),
            event(40.0, Event::Signal),
            event(70.0, Event::PodReady),
        ];
        summarize(&identity, attempts.collect(), &[], timeline)
    }

    #[test]
    fn the_share_is_that_of_the_roll_alone() {
        let options = post(&[Strategy::None], 5);
        let rolls = options.rolls(&[run(Strategy::None, 0..60), run(Strategy::None, 0..0)]);
        let [roll] = rolls[..] else { panic!("{rolls:?}") };
        assert!((roll.seconds.min - 60.0).abs() < 1e-9, "{roll:?}");
        // At 12, 18 and so on to 54.
        assert!((roll.failed_share.max - 8.0 / 60.0).abs() < 1e-9, "{roll:?}");
        assert!(roll.failed_share.min.abs() < 1e-9, "{roll:?}");
        let other = Options {
            scenario: Scenario::ScaleDown,
            ..options
        };
        assert!(other.rolls(&[run(Strategy::None, 0..60)]).is_empty());
    }

    #[test]
    fn each_strategy_has_its_closed_form() {
        let strategies = [
            Strategy::None,
            Strategy::KubeProxy,
            Strategy::PreStopSleep,
            Strategy::HealthcheckFail,
            Strategy::PodIp,
        ];
        let runs = strategies.map(|strategy| run(strategy, 0..0));
        let of = |options: &Options| -> Vec<_> {
            let rolls = options.rolls(&runs);
            rolls
                .iter()
                .map(|roll| (roll.expected_seconds, roll.worst_seconds))
                .collect()
        };
        // 2.5 s until probes notice; a Pod that serves for 5 s outlasts them. 5 s of serving are no drain; 310 s are 10 s and 300 s.
        assert_eq!(
            of(&post(&strategies, 5)),
            [(15.0, 60.0), (0.0, 60.0), (0.0, 1860.0), (0.0, 1860.0), (0.0, 1860.0)]
        );
        let mut by_threshold = post(&strategies, 5);
        by_threshold.probe_rule = Some(ProbeRule::Threshold);
        assert_eq!(
            of(&by_threshold),
            [(45.0, 60.0), (15.0, 60.0), (0.0, 1860.0), (15.0, 1860.0), (0.0, 1860.0)]
        );
        // Probes that do not notice before the next Pod is ready: as much is lost as the post counts.
        let mut blind = post(&[Strategy::None], 310);
        (blind.restart, blind.probe_threshold) = (Duration::ZERO, Some(63));
        blind.probe_rule = Some(ProbeRule::Threshold);
        let rolls = blind.rolls(&[run(Strategy::None, 0..0)]);
        assert!((rolls[0].expected_seconds - 1860.0).abs() < 1e-9, "{rolls:?}");
        assert!((rolls[0].worst_share - 1.0 / 6.0).abs() < 1e-9, "{rolls:?}");
    }
}
