//! What is known about the own Node: the state the rest of the agent reads, and how it moves on.
//!
//! Pure: each step takes the present report, what was seen, and the moment. A step never forgets a
//! verdict for want of news: only a newer observation of the Node replaces one.

use std::collections::BTreeMap;

use headgate_clock::Moment;
use jiff::Timestamp;

use super::remembered::Memory;
use super::signal::{Facts, Signal, signals};

/// Where the present knowledge comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The API server, in this process's life.
    Watch,
    /// The state file of an earlier process.
    Remembered,
    /// Nowhere: nothing is known, and the node counts as eligible.
    None,
}

impl Source {
    /// Its name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Remembered => "remembered",
            Self::None => "none",
        }
    }
}

/// Whether the API server has a Node of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Not asked successfully yet.
    Unknown,
    /// It is there.
    Present,
    /// It was never seen by this process, and is not there.
    Missing,
    /// It was there and is gone; its last state goes on.
    Deleted,
}

impl Presence {
    /// All values, for metrics.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Present, Self::Missing, Self::Deleted];

    /// Its name in metrics and `/statusz`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Present => "present",
            Self::Missing => "missing",
            Self::Deleted => "deleted",
        }
    }
}

/// Everything known about the own Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Where this knowledge comes from.
    pub source: Source,
    /// Whether the Node is there.
    pub presence: Presence,
    /// What the Node last said, if anything is known.
    pub facts: Option<Facts>,
    /// Signals in force, each since when.
    pub signals: BTreeMap<Signal, Timestamp>,
}

impl Report {
    /// The report at start: what an earlier process remembered, or nothing.
    #[must_use]
    pub fn initial(memory: Option<Memory>, taint_keys: &[String], now: Moment) -> Self {
        let empty = Self {
            source: Source::None,
            presence: Presence::Unknown,
            facts: None,
            signals: BTreeMap::new(),
        };
        let Some(memory) = memory else { return empty };
        let since = |signal: &Signal| memory.since.get(&signal.to_string()).copied().unwrap_or(now.wall);
        let signals = signals(&memory.facts, taint_keys)
            .into_iter()
            .map(|signal| (signal.clone(), since(&signal)));
        Self {
            source: Source::Remembered,
            signals: signals.collect(),
            facts: Some(memory.facts),
            ..empty
        }
    }

    /// The Node was seen.
    #[must_use]
    pub fn observed(&self, facts: Facts, taint_keys: &[String], now: Moment) -> Self {
        let same_node = self.facts.as_ref().is_some_and(|known| known.uid == facts.uid);
        let since = |signal: &Signal| {
            self.signals
                .get(signal)
                .filter(|_| same_node)
                .copied()
                .unwrap_or(now.wall)
        };
        let signals = signals(&facts, taint_keys)
            .into_iter()
            .map(|signal| (signal.clone(), since(&signal)))
            .collect();
        Self {
            source: Source::Watch,
            presence: Presence::Present,
            facts: Some(facts),
            signals,
        }
    }

    /// The API server has no such Node: what was known of one goes on.
    #[must_use]
    pub fn absent(&self) -> Self {
        let presence = match self.presence {
            Presence::Present | Presence::Deleted => Presence::Deleted,
            Presence::Unknown | Presence::Missing => Presence::Missing,
        };
        Self {
            presence,
            ..self.clone()
        }
    }

    /// Whether the API server has answered once in this process's life.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.presence != Presence::Unknown
    }

    /// Whether nothing speaks against new connections. Nothing known means eligible: fail open.
    #[must_use]
    pub fn eligible(&self) -> bool {
        self.signals.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use headgate_clock::Clock;
    use proptest::prelude::*;

    use super::*;

    fn keys() -> Vec<String> {
        vec!["drain".to_owned()]
    }

    fn facts(uid: &str, taints: &[&str]) -> Facts {
        Facts {
            uid: uid.into(),
            taints: taints.iter().map(ToString::to_string).collect(),
            ..Facts::default()
        }
    }

    fn at(second: i64) -> Moment {
        Moment {
            wall: Timestamp::from_second(second).unwrap(),
            ..Clock::System.now()
        }
    }

    #[test]
    fn nothing_known_is_eligible() {
        let report = Report::initial(None, &keys(), at(1));
        assert!(report.eligible() && !report.synced());
        assert_eq!(report.source, Source::None);
        let report = report.absent();
        assert!(report.eligible() && report.synced());
        assert_eq!((report.source, report.presence), (Source::None, Presence::Missing));
    }

    #[test]
    fn a_signal_keeps_its_start_while_it_lasts_and_untaint_ends_it() {
        let report = Report::initial(None, &keys(), at(1)).observed(facts("u", &["drain"]), &keys(), at(2));
        let report = report.observed(facts("u", &["other", "drain"]), &keys(), at(3));
        assert_eq!(report.signals.values().next(), Some(&at(2).wall));
        let report = report.observed(facts("u", &["other"]), &keys(), at(4));
        assert!(report.eligible());
        let report = report.observed(facts("u", &["drain"]), &keys(), at(5));
        assert_eq!(report.signals.values().next(), Some(&at(5).wall));
    }

    #[test]
    fn a_deleted_node_keeps_its_last_verdict() {
        for taints in [&[][..], &["drain"][..]] {
            let seen = Report::initial(None, &keys(), at(1)).observed(facts("u", taints), &keys(), at(2));
            let gone = seen.absent();
            assert_eq!(gone.eligible(), seen.eligible());
            assert_eq!((gone.source, gone.presence), (Source::Watch, Presence::Deleted));
            assert_eq!(gone.absent(), gone);
        }
    }

    #[test]
    fn a_node_of_another_uid_starts_afresh() {
        let old = Report::initial(None, &keys(), at(1))
            .observed(facts("u", &["drain"]), &keys(), at(2))
            .absent();
        let new = old.observed(facts("v", &["drain"]), &keys(), at(9));
        assert_eq!(new.signals.values().next(), Some(&at(9).wall));
        assert!(old.observed(facts("v", &[]), &keys(), at(9)).eligible());
    }

    #[test]
    fn memory_goes_on_until_the_node_is_seen() {
        let seen = Report::initial(None, &keys(), at(1)).observed(facts("u", &["drain"]), &keys(), at(2));
        let memory = Memory::of("n", &seen, at(3)).unwrap();
        let report = Report::initial(Some(memory.clone()), &keys(), at(8));
        assert_eq!(report.source, Source::Remembered);
        assert_eq!(report.signals, seen.signals);
        assert_eq!(report.absent().signals, seen.signals);
        let report = report.observed(facts("u", &["drain"]), &keys(), at(9));
        assert_eq!(report.signals.values().next(), Some(&at(2).wall));
        assert!(
            Report::initial(Some(memory), &[], at(8)).eligible(),
            "the present settings decide, not the old ones"
        );
    }

    /// What a watch may bring: the Node with these taints and UID, or its absence.
    fn news() -> impl Strategy<Value = Option<(String, Vec<String>)>> {
        proptest::option::weighted(0.7, ("[uv]", proptest::collection::vec("drain|other", 0..3)))
    }

    proptest! {
        /// Whatever comes in whatever order: the verdict is that of the Node as last seen.
        #[test]
        fn the_verdict_is_that_of_the_last_observation(news in proptest::collection::vec(news(), 0..20)) {
            let mut report = Report::initial(None, &keys(), at(0));
            let mut last: Option<Vec<String>> = None;
            for (second, news) in (1..).zip(news) {
                report = match news {
                    None => report.absent(),
                    Some((uid, taints)) => {
                        last = Some(taints.clone());
                        report.observed(Facts { uid, taints, ..Facts::default() }, &keys(), at(second))
                    }
                };
                let drained = last.as_ref().is_some_and(|taints| taints.contains(&"drain".to_owned()));
                prop_assert_eq!(report.eligible(), !drained);
                prop_assert_eq!(report.source == Source::None, last.is_none());
                prop_assert!(report.synced());
                prop_assert!(report.signals.values().all(|since| *since <= at(second).wall));
                // A restart forgets nothing of it.
                let memory = Memory::of("n", &report, at(second));
                prop_assert_eq!(&Report::initial(memory, &keys(), at(second)).signals, &report.signals);
            }
        }
    }
}
