//! What a drill may be required to show: strategies that lose nothing, and how soon their nodes are gone.

use std::time::Duration;

use crate::report::name;
use crate::result::RunResult;
use crate::strategy::Strategy;

/// What strategies are required to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirement {
    /// They lose no new connection, and no established one before a machine is gone; one that waits for established
    /// connections loses none at all.
    pub without_loss: Vec<Strategy>,
    /// The longest time from the signal until the machine of each of them is gone, of the scenario.
    pub gone_within: Option<Duration>,
}

impl Requirement {
    /// What is against it, a line for each run. A run without connections shows nothing.
    #[must_use]
    pub fn violations(&self, results: &[RunResult]) -> Vec<String> {
        let missing = self
            .without_loss
            .iter()
            .filter(|strategy| !results.iter().any(|run| run.strategy == **strategy))
            .map(|strategy| format!("{}: no run", name(strategy)));
        let runs = results.iter().filter(|run| self.without_loss.contains(&run.strategy));
        let violated = runs.flat_map(|run| {
            [loss(run), self.late(run)]
                .into_iter()
                .flatten()
                .map(|what| format!("{}, seed {}: {what}", name(&run.strategy), run.seed))
        });
        missing.chain(violated).collect()
    }

    fn late(&self, run: &RunResult) -> Option<String> {
        let bound = self.gone_within?.as_secs_f64();
        match run.node_gone_seconds() {
            None => Some("no node was gone".to_owned()),
            Some(gone) if gone > bound => {
                Some(format!("the node was gone {gone:.1} s after its signal, not {bound} s"))
            }
            Some(_) => None,
        }
    }
}

fn loss(run: &RunResult) -> Option<String> {
    let new = run.failed;
    let has_long_lived = run
        .conditions
        .as_ref()
        .is_none_or(|conditions| conditions.long_lived > 0);
    let (established, when) = if run.strategy.waits_for_connections() {
        (run.established_lost, "lost")
    } else {
        (run.established_lost_before_node_gone, "lost before a node was gone")
    };
    if run.attempted == 0 || has_long_lived && run.established == 0 {
        Some("no connections".to_owned())
    } else if new + established > 0 {
        Some(format!(
            "{new} new connections failed, {established} established ones were {when}"
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::Conditions;
    use crate::result::{Attempt, Connection, Event, RunIdentity, TimelineEvent, summarize};
    use crate::scenario::Scenario;

    /// A run with one new connection, and an established one that is lost at this time; the node goes at 10 s.
    fn run(strategy: Strategy, succeeded: bool, lost: Option<u64>) -> RunResult {
        let identity = RunIdentity {
            scenario: Scenario::ScaleDown,
            strategy,
            seed: 7,
            speed: 1.0,
            nodes: 2,
            longest_lag: Duration::ZERO,
        };
        let attempt = Attempt {
            at: Duration::from_secs(1),
            succeeded,
        };
        let connection = Connection {
            through: 0,
            opened: Duration::ZERO,
            ended: Duration::from_secs(lost.unwrap_or(20)),
            lost: lost.map(Duration::from_secs),
        };
        let event = |t: f64, event: Event| TimelineEvent { t, event, node: 0 };
        let timeline = vec![event(2.0, Event::Signal), event(10.0, Event::NodeGone)];
        summarize(&identity, vec![attempt], &[connection], timeline)
    }

    fn violations(results: &[RunResult], strategy: Strategy) -> Vec<String> {
        let requirement = Requirement {
            without_loss: vec![strategy],
            gone_within: None,
        };
        requirement.violations(results)
    }

    #[test]
    fn losses_of_the_named_strategies_alone_are_violations() {
        let good = run(Strategy::AdminState, true, Some(11));
        let other = run(Strategy::KubeProxy, false, Some(3));
        let required = Strategy::AdminState;
        assert!(violations(&[good.clone(), other.clone()], required).is_empty());
        let bad = [
            run(Strategy::AdminState, false, None),
            run(Strategy::AdminState, true, Some(3)),
        ];
        let found = violations(&bad, required);
        assert_eq!(
            found,
            [
                "admin-state, seed 7: 1 new connections failed, 0 established ones were lost before a node was gone",
                "admin-state, seed 7: 0 new connections failed, 1 established ones were lost before a node was gone",
            ]
        );
        assert_eq!(violations(&[other], required), ["admin-state: no run"]);
        let mut empty = good;
        empty.established = 0;
        assert_eq!(violations(&[empty], required), ["admin-state, seed 7: no connections"]);
    }

    #[test]
    fn a_strategy_that_waits_for_connections_loses_none_with_the_node_either() {
        let with_the_node = |strategy: Strategy| violations(&[run(strategy, true, Some(11))], strategy);
        assert!(with_the_node(Strategy::AdminState).is_empty());
        assert_eq!(
            with_the_node(Strategy::Connections),
            ["connections, seed 7: 0 new connections failed, 1 established ones were lost"]
        );
    }

    #[test]
    fn a_bound_on_the_time_until_the_node_is_gone_needs_no_long_lived_connections() {
        let mut held = run(Strategy::Connections, true, None);
        held.established = 0;
        held.conditions = Some(Conditions::default());
        let within = |seconds: u64, run: &RunResult| {
            let requirement = Requirement {
                without_loss: vec![Strategy::Connections],
                gone_within: Some(Duration::from_secs(seconds)),
            };
            requirement.violations(std::slice::from_ref(run))
        };
        assert!(within(8, &held).is_empty(), "from 2 s to 10 s");
        assert_eq!(
            within(7, &held),
            ["connections, seed 7: the node was gone 8.0 s after its signal, not 7 s"]
        );
        held.timeline.pop();
        assert_eq!(within(8, &held), ["connections, seed 7: no node was gone"]);
        held.conditions = Some(Conditions {
            long_lived: 1,
            ..Conditions::default()
        });
        assert_eq!(within(8, &held)[0], "connections, seed 7: no connections");
    }
}
