//! What a drill may be required to show: strategies that lose nothing and by what, and how soon their nodes are gone.

use std::time::Duration;

use crate::report::name;
use crate::result::{Event, RunResult};
use crate::strategy::{Mechanism, Strategy};

/// What strategies are required to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirement {
    /// They lose no new connection, and no established one before a machine is gone; one that waits for established
    /// connections loses none at all. One that is about a mechanism has its nodes out by that alone, before they are gone.
    pub without_loss: Vec<Strategy>,
    /// The longest time from the signal until the machine of each of them is gone, of the scenario.
    pub gone_within: Option<Duration>,
}

impl Requirement {
    /// What is against it, a line for each run. A run without connections shows nothing.
    pub fn violations(&self, results: &[RunResult]) -> Vec<String> {
        let missing = self
            .without_loss
            .iter()
            .filter(|strategy| !results.iter().any(|run| run.strategy == **strategy))
            .map(|strategy| format!("{}: no run", name(strategy)));
        let runs = results.iter().filter(|run| self.without_loss.contains(&run.strategy));
        let violated = runs.flat_map(|run| {
            let found = [loss(run), self.late(run)].into_iter().flatten();
            found
                .chain(other_mechanism(run))
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

/// The nodes that something else than the strategy's mechanism took out, or nothing before they were gone. Without a loss
/// that is luck.
fn other_mechanism(run: &RunResult) -> Vec<String> {
    let Some(mechanism) = run.strategy.mechanism() else {
        return Vec::new();
    };
    let wrong = |node: usize, gone: f64| {
        let of_node = run.timeline.iter().filter(|found| found.node == node);
        // What happened before its signal has nothing to do with it.
        let signal = of_node.clone().find(|found| found.event == Event::Signal)?.t;
        let first = |event: Event| of_node.clone().find(|found| found.event == event && found.t >= signal);
        let Some(out) = first(Event::OutOfRotation).filter(|out| out.t <= gone) else {
            return Some(format!("node {node} was in rotation until it was gone"));
        };
        let by = |event: Event| first(event).is_some_and(|found| found.t <= out.t);
        match mechanism {
            Mechanism::AdminState if by(Event::ProbeFailed) => {
                Some(format!("a probe of node {node} failed before it was out"))
            }
            Mechanism::AdminState if !by(Event::DownShown) => Some(format!("no admin state took node {node} out")),
            Mechanism::HealthAnswer if !by(Event::Healthz503) || !by(Event::ProbeDown) => {
                Some(format!("no health answer took node {node} out"))
            }
            Mechanism::AdminState | Mechanism::HealthAnswer => None,
        }
    };
    let gone = run.timeline.iter().filter(|event| event.event == Event::NodeGone);
    let mut nodes: Vec<_> = gone.map(|event| (event.node, event.t)).collect();
    nodes.dedup_by_key(|(node, _)| *node);
    nodes.into_iter().filter_map(|(node, gone)| wrong(node, gone)).collect()
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
        let timeline = vec![
            event(2.0, Event::Signal),
            event(3.0, Event::DownShown),
            event(3.1, Event::OutOfRotation),
            event(10.0, Event::NodeGone),
            event(12.0, Event::ProbeFailed),
        ];
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
    fn a_node_that_something_else_took_out_or_nothing_is_a_violation() {
        let mut run = run(Strategy::AdminState, true, None);
        let found = |run: &RunResult| violations(std::slice::from_ref(run), run.strategy);
        assert!(found(&run).is_empty());
        let mut probed = run.clone();
        probed.timeline[4].t = 3.0;
        assert_eq!(
            found(&probed),
            ["admin-state, seed 7: a probe of node 0 failed before it was out"]
        );
        let mut late = run.clone();
        late.timeline[2].t = 10.5;
        let in_rotation = "admin-state, seed 7: node 0 was in rotation until it was gone";
        assert_eq!(found(&late), [in_rotation]);
        late.timeline.remove(2);
        assert_eq!(found(&late), [in_rotation]);
        run.timeline.remove(1);
        assert_eq!(found(&run), ["admin-state, seed 7: no admin state took node 0 out"]);
        run.strategy = Strategy::Headgate;
        assert!(found(&run).is_empty(), "it is about no mechanism alone");
        run.strategy = Strategy::Healthz;
        assert_eq!(found(&run), ["healthz, seed 7: no health answer took node 0 out"]);
        for event in [Event::Healthz503, Event::ProbeDown] {
            run.timeline.push(TimelineEvent { t: 3.0, event, node: 0 });
        }
        assert!(found(&run).is_empty());
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
        held.timeline.retain(|event| event.event != Event::NodeGone);
        assert_eq!(within(8, &held), ["connections, seed 7: no node was gone"]);
        held.conditions = Some(Conditions {
            long_lived: 1,
            ..Conditions::default()
        });
        assert_eq!(within(8, &held)[0], "connections, seed 7: no connections");
    }
}
