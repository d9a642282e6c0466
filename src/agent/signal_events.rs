//! Which events an agent records about the signals of its own Node. Pure.
//!
//! Invariants: at most one event a minute about each signal, and one about their end. What changes within the minute is reported at its end,
//! if it is still so. What the first look shows is reported by none, because an earlier process did. A notice of Azure that stands then is
//! reported again, because its document is read a moment later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// Between two events about the same signal, or about the end of all.
const MIN_INTERVAL: Duration = Duration::from_mins(1);

/// A change that is worth an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignalChange {
    /// The Node has these signals, which no event has reported yet.
    Signalled(Vec<String>),
    /// The Node has no signal any more.
    Ended,
}

/// What the events have reported.
#[derive(Debug, Default)]
pub(super) struct SignalEvents {
    /// The signals that an event reported and that have not ended; `None` before the first look.
    reported: Option<BTreeSet<String>>,
    /// The last event about each signal, for [`MIN_INTERVAL`].
    signalled_at: BTreeMap<String, Instant>,
    /// The last event about the end of all.
    ended_at: Option<Instant>,
    /// Whether the last event says that the Node has signals.
    is_signalled: bool,
}

impl SignalEvents {
    /// The change to report now that the Node has the signals `present`.
    pub(super) fn next(&mut self, present: &BTreeSet<String>, now: Instant) -> Option<SignalChange> {
        let Some(reported) = &mut self.reported else {
            self.is_signalled = !present.is_empty();
            self.reported = Some(present.clone());
            return None;
        };
        reported.retain(|signal| present.contains(signal));
        self.signalled_at.retain(|_, at| now < *at + MIN_INTERVAL);
        let new = present.difference(reported);
        let due: Vec<String> = new
            .filter(|signal| !self.signalled_at.contains_key(*signal))
            .cloned()
            .collect();
        if !due.is_empty() {
            reported.extend(due.iter().cloned());
            self.signalled_at.extend(due.iter().map(|signal| (signal.clone(), now)));
            self.is_signalled = true;
            return Some(SignalChange::Signalled(due));
        }
        let is_end_due = self.ended_at.is_none_or(|at| now >= at + MIN_INTERVAL);
        if !present.is_empty() || !self.is_signalled || !is_end_due {
            return None;
        }
        (self.is_signalled, self.ended_at) = (false, Some(now));
        Some(SignalChange::Ended)
    }

    /// When something is to be reported without another change.
    pub(super) fn next_deadline(&self, present: &BTreeSet<String>) -> Option<Instant> {
        let reported = self.reported.as_ref()?;
        let waiting = present.difference(reported);
        let signalled = waiting.filter_map(|signal| self.signalled_at.get(signal)).min();
        let ended = self.ended_at.filter(|_| present.is_empty() && self.is_signalled);
        let earliest = signalled.copied().into_iter().chain(ended).min();
        earliest.map(|at| at + MIN_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(signals: &str) -> BTreeSet<String> {
        signals.split_whitespace().map(str::to_owned).collect()
    }

    /// What is reported when the Node has these signals from these seconds on, with the second: signals, or `-` for their end.
    fn reported(changes: &[(u64, &str)]) -> Vec<(u64, String)> {
        let start = Instant::now();
        let (mut events, mut reported, mut present) = (SignalEvents::default(), Vec::new(), BTreeSet::new());
        for second in 0..300 {
            let change = changes.iter().find(|(at, _)| *at == second);
            let now = start + Duration::from_secs(second);
            let is_due = events.next_deadline(&present).is_some_and(|deadline| deadline <= now);
            if let Some((_, signals)) = change {
                present = set(signals);
            } else if !is_due {
                continue;
            }
            match events.next(&present, now) {
                Some(SignalChange::Signalled(signals)) => reported.push((second, signals.join(" "))),
                Some(SignalChange::Ended) => reported.push((second, "-".to_owned())),
                None => {}
            }
            assert_eq!(events.next(&present, now), None, "once");
        }
        reported
    }

    #[test]
    fn events_report_each_signal_and_the_end_of_all_at_most_once_a_minute() {
        for (changes, expected) in [
            (&[(0, ""), (5, "a"), (9, "")][..], &[(5, "a"), (9, "-")][..]),
            // Known at the start; its end is news.
            (&[(0, "a"), (9, "")], &[(9, "-")]),
            (&[(0, ""), (5, "a b"), (6, "b"), (7, "")], &[(5, "a b"), (7, "-")]),
            (&[(0, ""), (5, "a"), (6, "a b"), (7, "a")], &[(5, "a"), (6, "b")]),
            // It flaps: what lasts is reported at the end of the minute.
            (
                &[(0, ""), (5, "a"), (6, ""), (7, "a"), (8, ""), (9, "a")],
                &[(5, "a"), (6, "-"), (65, "a")],
            ),
            (
                &[(0, ""), (5, "a"), (6, ""), (7, "b"), (8, "")],
                &[(5, "a"), (6, "-"), (7, "b"), (66, "-")],
            ),
            (&[(0, ""), (5, "a"), (6, ""), (7, "a"), (60, "")], &[(5, "a"), (6, "-")]),
        ] {
            let expected: Vec<_> = expected.iter().map(|(at, what)| (*at, (*what).to_owned())).collect();
            assert_eq!(reported(changes), expected, "{changes:?}");
        }
    }

    #[test]
    fn a_signal_that_flaps_every_second_gets_one_event_a_minute() {
        let changes: Vec<(u64, &str)> = (0..300).map(|at| (at, if at % 2 == 0 { "" } else { "a" })).collect();
        let reported = reported(&changes);
        for what in ["a", "-"] {
            let times: Vec<u64> = reported
                .iter()
                .filter(|(_, found)| found == what)
                .map(|(at, _)| *at)
                .collect();
            assert!(
                times.windows(2).all(|pair| pair[1] - pair[0] >= 60),
                "{what}: {times:?}"
            );
            assert!((4..=5).contains(&times.len()), "{what}: {times:?}");
        }
    }
}
