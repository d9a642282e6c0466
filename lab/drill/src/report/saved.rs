//! Results as `headgate-lab drill -o json` prints them, read back for a report.
//!
//! Scenarios, strategies and events are plain names here, and fields that an older version did not print are optional: a
//! report can be made of any version's results. [`parse`] rejects what no drill prints.

use crate::report::at_most;
use crate::result::{RunResult, blackhole_bound, time_from_signal};
use crate::spread::Spread;

/// No scenario is longer, in seconds; it bounds the work for a plot.
const MAX_SECONDS: f64 = 1e6;
/// More runs than any drill has.
const MAX_RUNS: usize = 10_000;
/// More connections than any run has.
const MAX_CONNECTIONS: usize = 1_000_000_000;

/// One run of any version.
pub type SavedRun = RunResult<String, String, String>;

/// Results cannot be used for a report.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// They are not the JSON of a drill.
    #[error("this is not the output of `headgate-lab drill -o json`: {0}")]
    Json(#[from] serde_json::Error),
    /// There is nothing to report.
    #[error("the results contain no run")]
    NoRuns,
    /// No drill prints this many.
    #[error("the results contain {0} runs; at most {MAX_RUNS} are allowed")]
    TooMany(usize),
    /// A time that no scenario has.
    #[error("a run of the strategy {strategy:?} contains the time {seconds}; allowed: 0 to {MAX_SECONDS} seconds")]
    Time {
        /// The strategy of the run.
        strategy: String,
        /// The time that is out of range.
        seconds: f64,
    },
    /// Counts that do not fit together.
    #[error(
        "in a run of the strategy {strategy:?}, {lost} of {all} {what} were lost; allowed: not more than there were, and at most \
         {MAX_CONNECTIONS}"
    )]
    Counts {
        /// The strategy of the run.
        strategy: String,
        /// What was lost.
        what: &'static str,
        /// How many were lost.
        lost: usize,
        /// How many there were.
        all: usize,
    },
}

/// Reads the JSON array of a drill, or several of them one after another.
///
/// # Errors
/// It is not such an array, or it contains nothing or times that no drill has.
pub fn parse(text: &str) -> Result<Vec<SavedRun>, SavedError> {
    let arrays = serde_json::Deserializer::from_str(text).into_iter::<Vec<SavedRun>>();
    let runs = arrays.collect::<Result<Vec<_>, _>>()?.concat();
    check(runs)
}

/// The same of results that were not printed.
///
/// # Errors
/// There are none.
pub fn from_results(results: &[RunResult]) -> Result<Vec<SavedRun>, SavedError> {
    check(serde_json::from_value(serde_json::to_value(results)?)?)
}

fn check(runs: Vec<SavedRun>) -> Result<Vec<SavedRun>, SavedError> {
    if runs.is_empty() {
        return Err(SavedError::NoRuns);
    }
    if runs.len() > MAX_RUNS {
        return Err(SavedError::TooMany(runs.len()));
    }
    for run in &runs {
        run.check_counts()?;
        let times = run.timeline.iter().map(|event| event.t);
        let seconds = run.per_second.iter().map(|second| f64::from(second.t));
        let lost = run.established_lost_at.iter().copied();
        if let Some(seconds) = times
            .chain(seconds)
            .chain(lost)
            .find(|time| !(0.0..=MAX_SECONDS).contains(time))
        {
            return Err(SavedError::Time {
                strategy: run.strategy.clone(),
                seconds,
            });
        }
    }
    Ok(runs)
}

/// All runs of one scenario, by strategy.
#[derive(Clone, Debug)]
pub(super) struct ScenarioRuns<'a, C = String, T = String, E = String> {
    pub(super) scenario: &'a C,
    pub(super) strategies: Vec<StrategyRuns<'a, C, T, E>>,
}

/// All runs of one strategy in one scenario; at least one.
#[derive(Clone, Debug)]
pub(super) struct StrategyRuns<'a, C = String, T = String, E = String> {
    pub(super) strategy: &'a T,
    pub(super) first: &'a RunResult<C, T, E>,
    pub(super) runs: Vec<&'a RunResult<C, T, E>>,
}

/// Groups runs in the order in which scenarios and strategies first appear.
pub(super) fn group<C: PartialEq, T: PartialEq, E>(runs: &[RunResult<C, T, E>]) -> Vec<ScenarioRuns<'_, C, T, E>> {
    let mut scenarios: Vec<ScenarioRuns<'_, C, T, E>> = Vec::new();
    for run in runs {
        let place = scenarios.iter().position(|known| *known.scenario == run.scenario);
        let place = place.unwrap_or_else(|| {
            scenarios.push(ScenarioRuns {
                scenario: &run.scenario,
                strategies: Vec::new(),
            });
            scenarios.len() - 1
        });
        let strategies = &mut scenarios[place].strategies;
        match strategies.iter_mut().find(|known| *known.strategy == run.strategy) {
            Some(known) => known.runs.push(run),
            None => strategies.push(StrategyRuns {
                strategy: &run.strategy,
                first: run,
                runs: vec![run],
            }),
        }
    }
    scenarios
}

impl ScenarioRuns<'_> {
    /// When the last thing happens that a plot shows, in seconds; at least 1.
    pub(super) fn end(&self) -> f64 {
        let runs = self.strategies.iter().flat_map(|strategy| &strategy.runs);
        let times = runs.flat_map(|run| {
            let seconds = run.per_second.iter().map(|second| f64::from(second.t) + 1.0);
            seconds.chain(run.timeline.iter().map(|event| event.t))
        });
        times.fold(1.0, f64::max)
    }
}

impl<C, T, E> StrategyRuns<'_, C, T, E> {
    /// Mean and range of a value over the runs.
    pub(super) fn spread(&self, value: impl Fn(&RunResult<C, T, E>) -> f64) -> Spread {
        Spread::new(&self.runs.iter().map(|run| value(run)).collect::<Vec<_>>())
    }

    /// All new connections of the runs, and those that failed.
    pub(super) fn connections(&self) -> (usize, usize) {
        let sum = |value: fn(&RunResult<C, T, E>) -> usize| self.runs.iter().map(|run| value(run)).sum();
        (sum(|run| run.attempted), sum(|run| run.failed))
    }

    /// What it says that no connection failed; none if one did, or the results do not state the number of nodes.
    pub(super) fn bound(&self) -> Option<String> {
        let exposures: Vec<_> = self.runs.iter().map(|run| run.exposure()).collect();
        blackhole_bound(&exposures).map(at_most)
    }

    /// From a node's signal until an event on it, of the slowest node; over the runs that have one.
    pub(super) fn after_signal<N: ?Sized>(&self, signal: &N, event: &N) -> Option<Spread>
    where
        E: PartialEq<N>,
    {
        let times = self
            .runs
            .iter()
            .filter_map(|run| time_from_signal(&run.timeline, signal, event));
        let times: Vec<_> = times.collect();
        (!times.is_empty()).then(|| Spread::new(&times))
    }
}

impl SavedRun {
    fn check_counts(&self) -> Result<(), SavedError> {
        let seconds = self.per_second.iter();
        let seconds = seconds.map(|second| {
            (
                "new connections of one second",
                second.failed as usize,
                second.attempted as usize,
            )
        });
        let totals = [
            ("new connections", self.failed, self.attempted),
            ("established connections", self.established_lost, self.established),
            (
                "established connections through a leaving node",
                self.established_at_signal.unwrap_or_default(),
                self.established,
            ),
            (
                "established connections before a node was gone",
                self.established_lost_before_node_gone,
                self.established,
            ),
        ];
        let wrong = totals
            .into_iter()
            .chain(seconds)
            .find(|(_, lost, all)| lost > all || *all > MAX_CONNECTIONS);
        wrong.map_or(Ok(()), |(what, lost, all)| {
            Err(SavedError::Counts {
                strategy: self.strategy.clone(),
                what,
                lost,
                all,
            })
        })
    }

    /// The time of the first event of this name.
    pub(super) fn first_event(&self, name: &str) -> Option<f64> {
        self.timeline
            .iter()
            .find(|event| event.event == name)
            .map(|event| event.t)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::conditions::Conditions;
    use crate::result::{Attempt, Connection, Event, RunIdentity, TimelineEvent, summarize};
    use crate::scenario::Scenario;
    use crate::strategy::Strategy;

    /// A run of 40 s with 10 connections each second; every sixth fails from second 10 on, for this many seconds.
    pub(in super::super) fn run(strategy: Strategy, seed: u64, lost_seconds: u32) -> RunResult {
        let identity = RunIdentity {
            scenario: Scenario::ScaleDown,
            strategy,
            seed,
            speed: 10.0,
            nodes: 6,
            longest_lag: Duration::from_millis(12),
        };
        let attempt = |index: u32| Attempt {
            at: Duration::from_millis(100) * index,
            succeeded: !((100..100 + lost_seconds * 10).contains(&index) && index.is_multiple_of(6)),
        };
        let life = |ended: u64, is_lost: bool| Connection {
            through: 0,
            opened: Duration::ZERO,
            ended: Duration::from_secs(ended),
            lost: is_lost.then_some(Duration::from_secs(ended)),
        };
        let connections = [life(8, true), life(12, true), life(12, true), life(30, false)];
        let event = |t: f64, event: Event| TimelineEvent { t, event, node: 0 };
        let timeline = vec![
            event(5.0, Event::Signal),
            event(5.2, Event::Healthz503),
            event(10.0, Event::NodeGone),
            event(10.0 + f64::from(lost_seconds), Event::OutOfRotation),
        ];
        summarize(&identity, (0..400).map(attempt).collect(), &connections, timeline)
    }

    /// Two strategies, of which one has two runs.
    pub(in super::super) fn runs() -> Vec<SavedRun> {
        let results = [
            run(Strategy::None, 1, 12),
            run(Strategy::None, 2, 6),
            run(Strategy::AdminState, 1, 0),
        ];
        from_results(&results).unwrap()
    }

    #[test]
    fn runs_are_grouped_by_scenario_and_strategy() {
        let runs = runs();
        let groups = group(&runs);
        assert_eq!((groups.len(), groups[0].scenario.as_str()), (1, "scale-down"));
        let strategies = groups[0].strategies.iter().map(|s| (s.strategy.as_str(), s.runs.len()));
        assert_eq!(strategies.collect::<Vec<_>>(), [("none", 2), ("admin-state", 1)]);
        assert!((groups[0].end() - 40.0).abs() < 1e-9);
        let out = groups[0].strategies[0].after_signal("signal", "outOfRotation").unwrap();
        assert!((out.mean - 14.0).abs() < 1e-9, "17 s and 11 s: {out:?}");
    }

    #[test]
    fn the_slowest_node_decides_and_each_from_its_own_signal() {
        let mut of_two = run(Strategy::None, 1, 12);
        let event = |t: f64, event: Event, node: usize| TimelineEvent { t, event, node };
        of_two.timeline = vec![
            event(3.0, Event::OutOfRotation, 1),
            event(5.0, Event::Signal, 0),
            event(6.0, Event::Signal, 1),
            event(9.0, Event::OutOfRotation, 1),
            event(10.0, Event::OutOfRotation, 0),
        ];
        let runs = from_results(&[of_two]).unwrap();
        let out = group(&runs)[0].strategies[0]
            .after_signal("signal", "outOfRotation")
            .unwrap();
        assert!((out.max - 5.0).abs() < 1e-9, "5 s and 3 s: {out:?}");
    }

    #[test]
    fn a_zero_is_said_with_what_it_bounds() {
        let mut runs = runs();
        assert_eq!(
            group(&runs)[0].strategies[1].bound(),
            None,
            "the number of nodes is not known"
        );
        for run in &mut runs {
            run.conditions = Some(Conditions {
                nodes: 4,
                ..Conditions::default()
            });
        }
        let groups = group(&runs);
        assert_eq!(groups[0].strategies[0].bound(), None, "some failed");
        // 400 connections in 41 seconds: a connection to each node every 0.4 s.
        assert_eq!(
            groups[0].strategies[1].bound().unwrap(),
            "black hole at most 1.20 s a run at 95 %"
        );
    }

    #[test]
    fn results_of_an_older_version_can_be_read() {
        let mut old = serde_json::to_value([run(Strategy::None, 1, 12)]).unwrap();
        let fields = old[0].as_object_mut().unwrap();
        for new in ["perSecond", "establishedLostAt", "establishedAtSignal", "conditions"] {
            assert!(fields.remove(new).is_some(), "{new}");
        }
        let runs = parse(&old.to_string()).unwrap();
        assert!(runs[0].per_second.is_empty() && runs[0].conditions.is_none());
        let twice = format!("{old}\n{old}");
        assert_eq!(parse(&twice).unwrap().len(), 2, "the output of two drills");
    }

    #[test]
    fn what_no_drill_prints_is_rejected() {
        let mut far = serde_json::to_value([run(Strategy::None, 1, 12)]).unwrap();
        far[0]["timeline"][0]["t"] = 1e9.into();
        let changed = |field: &str, value: usize| {
            let mut runs = serde_json::to_value([run(Strategy::None, 1, 12)]).unwrap();
            runs[0][field] = value.into();
            runs.to_string()
        };
        assert!(parse(&changed("attempted", MAX_CONNECTIONS)).is_ok());
        for (text, expected) in [
            ("[]".to_owned(), "no run"),
            ("{}".to_owned(), "not the output"),
            ("[{\"scenario\": \"spot\"}]".to_owned(), "missing field"),
            (far.to_string(), "contains the time 1000000000"),
            (changed("failed", 401), "401 of 400 new connections were lost"),
            (changed("attempted", usize::MAX), "at most 1000000000"),
            (
                changed("establishedLost", 5),
                "5 of 4 established connections were lost",
            ),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected} in {error}");
        }
    }
}
