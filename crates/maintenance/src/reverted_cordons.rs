//! Counts reverts of cordons, by which it is seen that another actor keeps making a Node schedulable while a maintenance keeps it cordoned (NM-10).
//!
//! The history is in memory: after a change of leader the counting starts anew, which delays an event and loses nothing else.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

/// So many reverts within [`WINDOW`] are a race: one or two are an operator who did not know of the maintenance.
const REVERTS: usize = 3;

/// How long a revert counts.
const WINDOW: Duration = Duration::from_mins(10);

/// The times at which Nodes were made schedulable again.
#[derive(Clone, Debug, Default)]
pub(crate) struct RevertedCordons {
    reverts: BTreeMap<String, VecDeque<Timestamp>>,
}

impl RevertedCordons {
    /// Records one revert. Gives the number of reverts at every third one within ten minutes, so that events stay few.
    pub(crate) fn record(&mut self, node: &str, now: Timestamp) -> Option<usize> {
        let times = self.reverts.entry(node.to_owned()).or_default();
        let is_old = |time: &Timestamp| now.duration_since(*time).unsigned_abs() > WINDOW;
        while times.front().is_some_and(is_old) {
            times.pop_front();
        }
        times.push_back(now);
        let reverts = times.len();
        if reverts < REVERTS {
            return None;
        }
        times.clear();
        Some(reverts)
    }

    /// Forgets Nodes that no maintenance keeps cordoned any more.
    pub(crate) fn retain(&mut self, is_cordoned: impl Fn(&str) -> bool) {
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
        let mut reverted = RevertedCordons::default();
        let mut races = |minutes: &[i64]| -> Vec<bool> {
            minutes
                .iter()
                .map(|minute| reverted.record("one", at(*minute)).is_some())
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
        let mut reverted = RevertedCordons::default();
        for node in ["one", "two", "one", "two"] {
            assert_eq!(reverted.record(node, at(0)), None);
        }
        reverted.retain(|node| node == "two");
        assert_eq!(reverted.record("one", at(1)), None);
        assert_eq!(reverted.record("two", at(1)), Some(3));
    }
}
