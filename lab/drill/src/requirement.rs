//! What a drill may be required to show: strategies that lose nothing.

use crate::report::name;
use crate::result::RunResult;
use crate::strategy::Strategy;

/// What of these strategies' runs is against the requirement that they lose nothing, a line for each run: a new
/// connection failed, or an established one was lost before a machine was gone. A run without connections shows nothing.
#[must_use]
pub fn violations(results: &[RunResult], strategies: &[Strategy]) -> Vec<String> {
    let missing = strategies
        .iter()
        .filter(|strategy| !results.iter().any(|run| run.strategy == **strategy))
        .map(|strategy| format!("{}: no run", name(strategy)));
    let lossy = results
        .iter()
        .filter(|run| strategies.contains(&run.strategy))
        .filter_map(|run| {
            let (new, established) = (run.failed, run.established_lost_before_node_gone);
            let what = if run.attempted == 0 || run.established == 0 {
                "no connections".to_owned()
            } else if new + established > 0 {
                format!("{new} new connections failed, {established} established ones were lost before a node was gone")
            } else {
                return None;
            };
            Some(format!("{}, seed {}: {what}", name(&run.strategy), run.seed))
        });
    missing.chain(lossy).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
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
        let gone = TimelineEvent {
            t: 10.0,
            event: Event::NodeGone,
            node: 0,
        };
        summarize(&identity, vec![attempt], &[connection], vec![gone])
    }

    #[test]
    fn losses_of_the_named_strategies_alone_are_violations() {
        let good = run(Strategy::AdminState, true, Some(11));
        let other = run(Strategy::KubeProxy, false, Some(3));
        let required = [Strategy::AdminState];
        assert!(violations(&[good.clone(), other.clone()], &required).is_empty());
        let bad = [
            run(Strategy::AdminState, false, None),
            run(Strategy::AdminState, true, Some(3)),
        ];
        let found = violations(&bad, &required);
        assert_eq!(
            found,
            [
                "admin-state, seed 7: 1 new connections failed, 0 established ones were lost before a node was gone",
                "admin-state, seed 7: 0 new connections failed, 1 established ones were lost before a node was gone",
            ]
        );
        assert_eq!(violations(&[other], &required), ["admin-state: no run"]);
        let mut empty = good;
        empty.established = 0;
        assert_eq!(violations(&[empty], &required), ["admin-state, seed 7: no connections"]);
    }
}
