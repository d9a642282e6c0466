//! Detects that another actor keeps making a Node schedulable while a maintenance keeps it cordoned (NM-10).
//!
//! The history is in memory: after a change of leader the counting starts anew, which delays an event and loses nothing else.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use headgate_core::node::Node;
use jiff::Timestamp;

use crate::plan::action::{Action, Change, NodeChange};

/// So many reverts within [`WINDOW`] are a race: one or two are an operator who did not know of the maintenance.
const REVERTS: usize = 3;

/// How long a revert counts.
const WINDOW: Duration = Duration::from_mins(10);

/// The times at which Nodes were made schedulable again.
#[derive(Clone, Debug, Default)]
pub struct CordonRaceDetector {
    reverts: BTreeMap<String, VecDeque<Timestamp>>,
}

/// A Node whose cordon is reverted again and again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CordonRace {
    /// The `metadata.name` of the Node.
    pub node: String,
    /// How many times it was made schedulable within the last ten minutes.
    pub reverts: usize,
}

/// Whether an action repeats a cordon that another actor reverted: the Node has the annotation already.
pub(crate) fn is_revert(action: &Action, node: &Node) -> bool {
    let NodeChange {
        unschedulable,
        remembered,
        ..
    } = match action {
        Action::UpdateNode { node: name, change } if *name == node.name => change,
        _ => return false,
    };
    *unschedulable == Some(true) && *remembered != Some(Change::Remove) && node.was_unschedulable.is_some()
}

impl CordonRaceDetector {
    /// Records one revert. Gives a race at every third one within ten minutes, so that events stay few.
    pub fn record(&mut self, node: &str, now: Timestamp) -> Option<CordonRace> {
        let times = self.reverts.entry(node.to_owned()).or_default();
        let is_old = |time: &Timestamp| now.duration_since(*time).unsigned_abs() > WINDOW;
        while times.front().is_some_and(is_old) {
            times.pop_front();
        }
        times.push_back(now);
        if times.len() < REVERTS {
            return None;
        }
        let race = CordonRace {
            node: node.to_owned(),
            reverts: times.len(),
        };
        times.clear();
        Some(race)
    }

    /// Forgets Nodes that no maintenance keeps cordoned any more.
    pub fn retain(&mut self, is_cordoned: impl Fn(&str) -> bool) {
        self.reverts.retain(|node, _| is_cordoned(node));
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    #[test]
    fn three_reverts_in_ten_minutes_are_a_race() {
        let mut detector = CordonRaceDetector::default();
        let mut races = |minutes: &[i64]| -> Vec<bool> {
            minutes
                .iter()
                .map(|minute| detector.record("one", at(*minute)).is_some())
                .collect()
        };
        assert_eq!(races(&[0, 5, 10]), [false, false, true]);
        assert_eq!(
            races(&[11, 12, 13]),
            [false, false, true],
            "the next event after three more"
        );
        assert_eq!(
            races(&[20, 29, 31, 32]),
            [false, false, false, true],
            "the first one is too old"
        );
    }

    #[test]
    fn nodes_are_counted_apart_and_forgotten() {
        let mut detector = CordonRaceDetector::default();
        for node in ["one", "two", "one", "two"] {
            assert_eq!(detector.record(node, at(0)), None);
        }
        detector.retain(|node| node == "two");
        assert_eq!(detector.record("one", at(1)), None);
        let race = CordonRace {
            node: "two".to_owned(),
            reverts: 3,
        };
        assert_eq!(detector.record("two", at(1)), Some(race));
    }

    #[test]
    fn only_a_repeated_cordon_is_a_revert() {
        let cordon = |remembered| Action::UpdateNode {
            node: "one".to_owned(),
            change: NodeChange {
                unschedulable: Some(true),
                remembered,
                ..NodeChange::default()
            },
        };
        let node = |name: &str, before| Node {
            name: name.to_owned(),
            was_unschedulable: before,
            ..Node::default()
        };
        assert!(is_revert(&cordon(None), &node("one", Some(false))));
        assert!(
            is_revert(&cordon(Some(Change::Set(false))), &node("one", Some(true))),
            "over another cordon, which is forgotten"
        );
        assert!(
            !is_revert(&cordon(Some(Change::Set(false))), &node("one", None)),
            "the first cordon"
        );
        assert!(
            !is_revert(&cordon(Some(Change::Remove)), &node("one", Some(true))),
            "the end over another cordon"
        );
        assert!(!is_revert(&cordon(None), &node("two", Some(false))));
        let other = Action::UpdateNode {
            node: "one".to_owned(),
            change: NodeChange {
                keep_from_scale_down: Some(true),
                ..NodeChange::default()
            },
        };
        assert!(!is_revert(&other, &node("one", Some(false))), "the cordon is there");
    }
}
