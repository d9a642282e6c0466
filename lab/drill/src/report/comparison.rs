//! Results under different conditions side by side: for each strategy the share of new connections that failed, with its
//! interval. It is a table of Markdown, so that documentation can contain it as it is.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::at_most;
use super::first_answer;
use super::saved::SavedRun;
use crate::conditions::Conditions;
use crate::result::{Exposure, blackhole_bound, wilson};

/// Results that cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ComparisonError {
    /// Of some runs nobody knows under which conditions they were made.
    #[error("some results do not state their conditions; run the drill again")]
    NotStated,
    /// A comparison of conditions must not be one of versions.
    #[error("the results are of different commits, {0}; run all of them with one")]
    Commits(String),
}

/// Runs under the same conditions, but for their strategies and seeds.
struct Kind<'a> {
    conditions: Map<String, Value>,
    stated: &'a Conditions,
    scenario: &'a str,
    speed: f64,
    runs: Vec<&'a SavedRun>,
}

/// A row for each kind of conditions, named by what is different from the first kind; a column for each strategy.
///
/// # Errors
/// The runs are of different commits, or do not state their conditions.
pub fn comparison(runs: &[SavedRun]) -> Result<String, ComparisonError> {
    let kinds = kinds(runs)?;
    let commits: BTreeSet<_> = kinds
        .iter()
        .map(|kind| kind.stated.commit.as_deref().unwrap_or("not stated"))
        .collect();
    if commits.len() > 1 {
        let commits: Vec<_> = commits.into_iter().collect();
        return Err(ComparisonError::Commits(commits.join(", ")));
    }
    let mut strategies: Vec<&str> = Vec::new();
    for run in runs {
        if !strategies.contains(&run.strategy.as_str()) {
            strategies.push(&run.strategy);
        }
    }
    let mut text = format!(
        "| conditions | {} |\n|---|{}\n",
        strategies.join(" | "),
        "---|".repeat(strategies.len())
    );
    for kind in &kinds {
        let cells: Vec<_> = strategies.iter().map(|strategy| cell(kind, strategy)).collect();
        // Writing to a String does not fail.
        let _ = writeln!(text, "| {} | {} |", kind.label(&kinds[0]), cells.join(" | "));
    }
    if let Some(first) = kinds.first() {
        let _ = write!(text, "\n{}\n", base(first));
    }
    Ok(text)
}

fn kinds(runs: &[SavedRun]) -> Result<Vec<Kind<'_>>, ComparisonError> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    for run in runs {
        let stated = run.conditions.as_ref().ok_or(ComparisonError::NotStated)?;
        let Ok(Value::Object(conditions)) = serde_json::to_value(stated) else {
            return Err(ComparisonError::NotStated);
        };
        let is_same = |kind: &&mut Kind<'_>| {
            let same_speed = (kind.speed - run.speed).abs() < 1e-9;
            kind.scenario == run.scenario && same_speed && kind.conditions == conditions
        };
        match kinds.iter_mut().find(is_same) {
            Some(kind) => kind.runs.push(run),
            None => kinds.push(Kind {
                conditions,
                stated,
                scenario: &run.scenario,
                speed: run.speed,
                runs: vec![run],
            }),
        }
    }
    Ok(kinds)
}

impl Kind<'_> {
    /// What is different here.
    fn label(&self, first: &Kind<'_>) -> String {
        let mut different: Vec<_> = self
            .conditions
            .iter()
            .filter(|(name, value)| first.conditions.get(*name) != Some(value))
            .map(|(name, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("{} {value}", words(name))
            })
            .collect();
        if self.scenario != first.scenario {
            different.push(self.scenario.to_owned());
        }
        if (self.speed - first.speed).abs() > 1e-9 {
            different.push(format!("speed {}", self.speed));
        }
        if different.is_empty() {
            "as below".to_owned()
        } else {
            different.join(", ")
        }
    }
}

/// The words of a name such as `probeFailures`.
fn words(name: &str) -> String {
    let mut words = String::new();
    for character in name.chars() {
        if character.is_ascii_uppercase() {
            words.push(' ');
        }
        words.push(character.to_ascii_lowercase());
    }
    words
}

#[expect(clippy::cast_precision_loss, reason = "counts of connections are far below 2^52")]
fn cell(kind: &Kind<'_>, strategy: &str) -> String {
    let runs: Vec<_> = kind.runs.iter().filter(|run| run.strategy == strategy).collect();
    let sum = |value: fn(&SavedRun) -> usize| runs.iter().map(|run| value(run)).sum::<usize>();
    let (attempted, failed) = (sum(|run| run.attempted), sum(|run| run.failed));
    if attempted == 0 {
        return "–".to_owned();
    }
    let exposures: Vec<Exposure> = runs.iter().map(|run| run.exposure()).collect();
    if let Some(bound) = blackhole_bound(&exposures) {
        return format!("**0** of {attempted}: {}", at_most(bound));
    }
    let (low, high) = wilson(failed as f64, attempted as f64);
    format!(
        "{failed} of {attempted}: {:.2} % ({:.2} to {:.2})",
        failed as f64 / attempted as f64 * 100.0,
        low * 100.0,
        high * 100.0
    )
}

/// The conditions of the first row in a sentence.
fn base(kind: &Kind<'_>) -> String {
    let stated = kind.stated;
    let mut counts: Vec<_> = kind.runs.iter().map(|run| run.strategy.as_str()).collect();
    let runs = counts.len();
    counts.sort_unstable();
    counts.dedup();
    format!(
        "Scenario {} on {} nodes at speed {}, {} runs of each strategy: delay {} s; probes every {} s, {} failures in a row take a \
         node out{}; an operation of ARM takes {} s and takes effect {} s later; commit {}. Intervals are Wilson's at 95 %; \
         connections of one run are not independent of each other.",
        kind.scenario,
        stated.nodes,
        kind.speed,
        runs / counts.len().max(1),
        stated.delete_delay_seconds,
        stated.probe_interval_seconds,
        stated.probe_failures,
        first_answer(&stated.probe_rule),
        stated.operation_seconds,
        stated.propagation_seconds,
        stated.commit.as_deref().unwrap_or("not stated"),
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::report::saved::tests::runs;

    fn stated(operation: f64, commit: &str) -> Conditions {
        Conditions {
            nodes: 4,
            operation_seconds: operation,
            commit: Some(commit.to_owned()),
            ..Conditions::default()
        }
    }

    #[test]
    fn conditions_are_rows_named_by_what_is_different() {
        let mut all = Vec::new();
        for operation in [1.0, 5.0] {
            for mut run in runs() {
                run.conditions = Some(stated(operation, "abc"));
                all.push(run);
            }
        }
        let text = comparison(&all).unwrap();
        for expected in [
            "| conditions | none | admin-state |",
            "| as below | 30 of 800: 3.75 % (2.64 to 5.30) | **0** of 400: black hole at most 1.20 s a run at 95 % |",
            "| operation seconds 5.0 | 30 of 800",
            "commit abc",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert_eq!(words("probeRule"), "probe rule");
    }

    #[test]
    fn whatever_is_different_names_its_row() {
        let with = |change: &dyn Fn(&mut SavedRun)| {
            let mut runs = runs();
            for run in &mut runs {
                run.conditions = Some(stated(1.0, "abc"));
                change(run);
            }
            runs
        };
        let all = [
            with(&|_| {}),
            with(&|run| run.seed += 10),
            with(&|run| run.speed = 5.0),
            with(&|run| run.scenario = "mass".to_owned()),
            with(&|run| {
                run.strategy = "headgate".to_owned();
                run.speed = 5.0;
                run.conditions = Some(Conditions {
                    probers: 2,
                    power_off: "reset".to_owned(),
                    ..stated(5.0, "abc")
                });
            }),
        ];
        expect![[r"
            | conditions | none | admin-state | headgate |
            |---|---|---|---|
            | as below | 60 of 1600: 3.75 % (2.92 to 4.80) | **0** of 800: black hole at most 0.60 s a run at 95 % | – |
            | speed 5 | 30 of 800: 3.75 % (2.64 to 5.30) | **0** of 400: black hole at most 1.20 s a run at 95 % | – |
            | mass | 30 of 800: 3.75 % (2.64 to 5.30) | **0** of 400: black hole at most 1.20 s a run at 95 % | – |
            | operation seconds 5.0, power off reset, probers 2, speed 5 | – | – | 30 of 1200: 2.50 % (1.76 to 3.55) |

            Scenario scale-down on 4 nodes at speed 10, 3 runs of each strategy: delay 0 s; probes every 0 s, 0 failures in a row take a node out; an operation of ARM takes 1 s and takes effect 0 s later; commit abc. Intervals are Wilson's at 95 %; connections of one run are not independent of each other.
        "]].assert_eq(&comparison(&all.concat()).unwrap());
    }

    #[test]
    fn results_of_different_commits_are_rejected() {
        let mut runs = runs();
        assert_eq!(comparison(&runs), Err(ComparisonError::NotStated));
        for run in &mut runs {
            run.conditions = Some(stated(1.0, "abc"));
        }
        runs[1].conditions = Some(stated(1.0, "def"));
        assert_eq!(comparison(&runs), Err(ComparisonError::Commits("abc, def".to_owned())));
    }
}
