//! Since when a Node has each of its signals, whether it counts, and since when the Node has none. Pure.
//!
//! A signal counts at once, unless its matcher says how long it must last. The end of all of them counts [`DEBOUNCE`] later, so that no
//! traffic arrives between one taint and the next, and [`RESTORE_INTERVAL`] after the one before: a signal that flaps costs no more
//! writes of load balancers. Agents answer for one node and do not wait for either.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::signal::Signal;
use crate::clock::Moment;

/// How long a Node must be without a signal.
pub const DEBOUNCE: Duration = Duration::from_secs(1);
/// From one end of a Node's signals that counts to the next.
const RESTORE_INTERVAL: Duration = Duration::from_secs(30);
/// How long an ended signal period is kept. Its end is written and reported by then.
pub const ENDED_PERIOD_TTL: Duration = Duration::from_mins(10);

/// The signals of one Node over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalPeriods {
    /// Of the Node; a Node created again under the same name inherits nothing.
    uid: String,
    period: Option<SignalPeriod>,
    /// The signals that must last before they count.
    pending: BTreeMap<Signal, PendingSignal>,
}

/// From a Node's first signal that counts to [`ENDED_PERIOD_TTL`] after its last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalPeriod {
    /// The signals that are present, or those that were last; each with its first observation.
    pub signals: BTreeMap<Signal, Timestamp>,
    /// When the first signal counted.
    pub since: Moment,
    /// The observer's generation when the period last started or ended.
    pub generation: u64,
    /// When the last signal was gone.
    pub ended_at: Option<Instant>,
    /// When an earlier end counted.
    restored_at: Option<Instant>,
}

/// A signal that does not count yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingSignal {
    /// The first observation of what the signal follows from.
    pub since: Timestamp,
    /// When it counts.
    pub counts_at: Instant,
}

/// What happened to a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeriodChange {
    /// The Node has a signal that counts, and had none before.
    Started,
    /// The Node has no signal that counts any more.
    Ended,
}

impl SignalPeriod {
    /// When the end counts.
    #[must_use]
    pub fn restores_at(&self) -> Option<Instant> {
        let debounced = self.ended_at? + DEBOUNCE;
        Some(
            self.restored_at
                .map_or(debounced, |at| debounced.max(at + RESTORE_INTERVAL)),
        )
    }

    /// The names of the signals.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        self.signals.keys().map(ToString::to_string).collect()
    }
}

impl SignalPeriods {
    /// Adopts the signals that were detected in the Node, each with how long it must last. One that counted before goes on counting.
    /// `known_since` is since when a signal is known to count from elsewhere.
    pub fn observe(
        &mut self,
        uid: &str,
        detected: &BTreeMap<Signal, Duration>,
        known_since: impl Fn(&Signal) -> Option<Timestamp>,
        generation: u64,
        now: Moment,
    ) -> Option<PeriodChange> {
        if self.uid != uid {
            *self = Self {
                uid: uid.to_owned(),
                ..Self::default()
            };
        }
        let before = std::mem::take(&mut self.pending);
        let mut counting = BTreeMap::new();
        for (signal, after) in detected {
            let first = before.get(signal).copied().unwrap_or_else(|| PendingSignal {
                since: now.wall,
                counts_at: now.mono + *after,
            });
            let since = self.present().get(signal).copied().or_else(|| known_since(signal));
            match since.or((first.counts_at <= now.mono).then_some(first.since)) {
                Some(since) => drop(counting.insert(signal.clone(), since)),
                None => drop(self.pending.insert(signal.clone(), first)),
            }
        }
        self.set_counting(counting, generation, now)
    }

    /// Makes the signals count that have lasted long enough.
    pub fn advance(&mut self, generation: u64, now: Moment) -> Option<PeriodChange> {
        if self.next_pending().is_none_or(|at| at > now.mono) {
            return None;
        }
        let pending = std::mem::take(&mut self.pending).into_iter();
        let (due, pending): (BTreeMap<_, _>, _) = pending.partition(|(_, pending)| pending.counts_at <= now.mono);
        self.pending = pending;
        let mut counting = self.present().clone();
        counting.extend(due.into_iter().map(|(signal, pending)| (signal, pending.since)));
        self.set_counting(counting, generation, now)
    }

    fn set_counting(
        &mut self,
        signals: BTreeMap<Signal, Timestamp>,
        generation: u64,
        now: Moment,
    ) -> Option<PeriodChange> {
        let Some(period) = &mut self.period else {
            if signals.is_empty() {
                return None;
            }
            self.period = Some(SignalPeriod {
                signals,
                since: now,
                generation,
                ended_at: None,
                restored_at: None,
            });
            return Some(PeriodChange::Started);
        };
        match (signals.is_empty(), period.ended_at) {
            (true, Some(_)) => None,
            (true, None) => {
                period.ended_at = Some(now.mono);
                period.generation = generation;
                Some(PeriodChange::Ended)
            }
            (false, ended_at) => {
                let restored_at = period.restores_at().filter(|at| *at <= now.mono);
                period.restored_at = restored_at.or(period.restored_at);
                period.signals = signals;
                period.ended_at = None;
                ended_at.map(|_| {
                    period.generation = generation;
                    PeriodChange::Started
                })
            }
        }
    }

    /// Forgets a period that ended [`ENDED_PERIOD_TTL`] ago.
    pub fn drop_ended(&mut self, now: Instant) {
        self.period
            .take_if(|period| period.ended_at.is_some_and(|at| at + ENDED_PERIOD_TTL <= now));
    }

    /// Whether the Node has no signal, and had none lately.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.period.is_none() && self.pending.is_empty()
    }

    /// The UID of the Node.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The present period, or the last one.
    #[must_use]
    pub fn period(&self) -> Option<&SignalPeriod> {
        self.period.as_ref()
    }

    /// The signals that count, each with its first observation.
    #[must_use]
    pub fn present(&self) -> &BTreeMap<Signal, Timestamp> {
        static NONE: BTreeMap<Signal, Timestamp> = BTreeMap::new();
        let period = self.period.as_ref().filter(|period| period.ended_at.is_none());
        period.map_or(&NONE, |period| &period.signals)
    }

    /// The signals that must last before they count, and have not yet.
    #[must_use]
    pub fn pending(&self) -> &BTreeMap<Signal, PendingSignal> {
        &self.pending
    }

    /// When the next signal counts without another observation.
    #[must_use]
    pub fn next_pending(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.counts_at).min()
    }

    /// All times at which something changes without another observation.
    pub fn deadlines(&self) -> impl Iterator<Item = Instant> {
        let period = self.period.as_ref();
        let restores_at = period.and_then(SignalPeriod::restores_at);
        let expires_at = period.and_then(|period| Some(period.ended_at? + ENDED_PERIOD_TTL));
        [restores_at, expires_at, self.next_pending()].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The signals of a Node, and the time.
    struct Observer {
        periods: SignalPeriods,
        start: Moment,
        generation: u64,
    }

    impl Observer {
        fn new() -> Self {
            let start = Moment {
                wall: Timestamp::UNIX_EPOCH,
                mono: Instant::now(),
            };
            Self {
                periods: SignalPeriods::default(),
                start,
                generation: 0,
            }
        }

        fn at(&self, seconds: u32) -> Moment {
            Moment {
                wall: self.start.wall + SignedDuration::from_secs(seconds.into()),
                mono: self.start.mono + SECOND * seconds,
            }
        }

        /// Observes the Node with these signals, each with how long it must last.
        fn observe(&mut self, seconds: u32, uid: &str, signals: &[(Signal, u32)]) -> Option<PeriodChange> {
            self.generation += 1;
            let detected = signals.iter().map(|(signal, after)| (signal.clone(), SECOND * *after));
            let (detected, now) = (detected.collect(), self.at(seconds));
            self.periods.observe(uid, &detected, |_| None, self.generation, now)
        }

        fn restores_at(&self) -> Option<Duration> {
            let period = self.periods.period().unwrap();
            period.restores_at().map(|at| at - self.start.mono)
        }
    }

    #[test]
    fn a_signal_that_must_last_counts_from_its_first_observation() {
        let mut node = Observer::new();
        let cordon = [(Signal::Unschedulable, 10)];
        assert_eq!(node.observe(0, "u", &cordon), None);
        assert!(!node.periods.is_empty() && node.periods.present().is_empty());
        assert_eq!(node.observe(5, "u", &cordon), None, "it does not begin again");
        let deadlines: Vec<_> = node.periods.deadlines().collect();
        assert_eq!(deadlines, [node.at(10).mono]);
        assert_eq!(node.periods.advance(7, node.at(9)), None);
        assert_eq!(node.periods.advance(7, node.at(10)), Some(PeriodChange::Started));
        assert_eq!(node.periods.present()[&Signal::Unschedulable], node.start.wall);
        assert!(node.periods.pending().is_empty() && node.periods.next_pending().is_none());
        let period = node.periods.period().unwrap();
        assert_eq!((period.since, period.generation), (node.at(10), 7));
        assert_eq!(period.names(), BTreeSet::from([Signal::Unschedulable.to_string()]));
        // It ends before it counts.
        let mut node = Observer::new();
        node.observe(0, "u", &cordon);
        assert_eq!(node.observe(9, "u", &[]), None);
        assert!(node.periods.is_empty());
    }

    #[test]
    fn a_signal_that_counts_elsewhere_counts_at_once() {
        let mut node = Observer::new();
        let detected = BTreeMap::from([(Signal::Unschedulable, SECOND * 10)]);
        let (now, known) = (node.at(20), node.at(3).wall);
        let change = node.periods.observe("u", &detected, |_| Some(known), 1, now);
        assert_eq!(change, Some(PeriodChange::Started));
        assert_eq!(node.periods.present()[&Signal::Unschedulable], known);
    }

    #[test]
    fn the_end_counts_after_a_second_and_seldom_for_a_signal_that_flaps() {
        let mut node = Observer::new();
        let deletion = [(Signal::Deletion, 0)];
        assert_eq!(node.observe(0, "u", &deletion), Some(PeriodChange::Started));
        assert_eq!(node.restores_at(), None);
        // One more, and one less, is the same period.
        let both = [(Signal::Deletion, 0), (Signal::Shutdown, 0)];
        assert_eq!(node.observe(1, "u", &both), None);
        assert_eq!(node.observe(2, "u", &[]), Some(PeriodChange::Ended));
        assert_eq!(node.observe(2, "u", &[]), None);
        assert_eq!(node.restores_at(), Some(SECOND * 3));
        assert!(node.periods.present().is_empty());
        assert_eq!(node.periods.period().unwrap().signals.len(), 2, "what it had last");
        // Again after that end counted, at 3 s.
        for (from, to, restores_at) in [(5, 6, 33), (10, 11, 33), (40, 41, 63), (200, 201, 202)] {
            assert_eq!(
                node.observe(from, "u", &deletion),
                Some(PeriodChange::Started),
                "{from}"
            );
            assert_eq!(node.observe(to, "u", &[]), Some(PeriodChange::Ended), "{from}");
            assert_eq!(node.restores_at(), Some(SECOND * restores_at), "{from}");
        }
    }

    #[test]
    fn an_ended_period_is_kept_for_a_while() {
        let mut node = Observer::new();
        node.observe(0, "u", &[(Signal::Deletion, 0)]);
        node.observe(1, "u", &[]);
        let deadlines: Vec<_> = node.periods.deadlines().map(|at| at - node.start.mono).collect();
        assert_eq!(deadlines, [SECOND * 2, SECOND + ENDED_PERIOD_TTL]);
        node.periods.drop_ended(node.at(600).mono);
        assert!(!node.periods.is_empty());
        node.periods.drop_ended(node.at(601).mono);
        assert!(node.periods.is_empty());
        // A Node of the same name inherits nothing.
        node.observe(700, "u", &[(Signal::Deletion, 0)]);
        assert_eq!(node.observe(701, "v", &[]), None);
        assert!(node.periods.is_empty() && node.periods.uid() == "v");
    }
}
