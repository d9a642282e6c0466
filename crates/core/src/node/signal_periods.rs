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
    /// The observer's generation when the period last started or ended, or was renewed.
    pub generation: u64,
    /// When the last signal was gone.
    pub ended_at: Option<Instant>,
    /// When an earlier end counted.
    restored_at: Option<Instant>,
}

/// A signal that does not count yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingSignal {
    /// The first observation of what the signal follows from, or its known beginning.
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
    pub fn restores_at(&self) -> Option<Instant> {
        let debounced = self.ended_at? + DEBOUNCE;
        Some(
            self.restored_at
                .map_or(debounced, |at| debounced.max(at + RESTORE_INTERVAL)),
        )
    }

    /// The names of the signals.
    pub fn names(&self) -> BTreeSet<String> {
        self.signals.keys().map(ToString::to_string).collect()
    }
}

impl SignalPeriods {
    /// Adopts the signals that were detected in the Node, each with how long it must last. One that counted before goes on counting.
    /// `known_since` is since when a signal is known to count from elsewhere, `began_at` when the cause of one began that is new here.
    pub fn observe(
        &mut self,
        uid: &str,
        detected: &BTreeMap<Signal, Duration>,
        known_since: impl Fn(&Signal) -> Option<Timestamp>,
        began_at: impl Fn(&Signal) -> Option<Timestamp>,
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
            let first = before.get(signal).copied().unwrap_or_else(|| {
                let since = began_at(signal).unwrap_or(now.wall).min(now.wall);
                let age = Duration::try_from(now.wall.duration_since(since)).unwrap_or_default();
                PendingSignal {
                    since,
                    counts_at: now.mono + after.saturating_sub(age),
                }
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

    /// What was decided before this generation says nothing of the period any more.
    pub fn renew(&mut self, generation: u64) {
        if let Some(period) = &mut self.period {
            period.generation = generation;
        }
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
                // Where the end counted, another period begins; what was read since the first says nothing of it.
                if let Some(restored_at) = period.restores_at().filter(|at| *at <= now.mono) {
                    period.restored_at = Some(restored_at);
                    period.since = now;
                }
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
    pub fn is_empty(&self) -> bool {
        self.period.is_none() && self.pending.is_empty()
    }

    /// The UID of the Node.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The present period, or the last one.
    pub fn period(&self) -> Option<&SignalPeriod> {
        self.period.as_ref()
    }

    /// The signals that count, each with its first observation.
    pub fn present(&self) -> &BTreeMap<Signal, Timestamp> {
        static NONE: BTreeMap<Signal, Timestamp> = BTreeMap::new();
        let period = self.period.as_ref().filter(|period| period.ended_at.is_none());
        period.map_or(&NONE, |period| &period.signals)
    }

    /// The signals that must last before they count, and have not yet.
    pub fn pending(&self) -> &BTreeMap<Signal, PendingSignal> {
        &self.pending
    }

    /// When the next signal counts without another observation.
    pub(crate) fn next_pending(&self) -> Option<Instant> {
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
    use super::*;
    use crate::clock::Clock;

    /// The signals of one Node over time, in seconds since the start.
    struct Observer {
        start: Moment,
        periods: SignalPeriods,
    }

    impl Observer {
        fn new() -> Self {
            Self {
                start: Clock::System.now(),
                periods: SignalPeriods::default(),
            }
        }

        fn at(&self, second: u64) -> Moment {
            let passed = Duration::from_secs(second);
            Moment {
                wall: self.start.wall + passed,
                mono: self.start.mono + passed,
            }
        }

        fn second(&self, at: Instant) -> u64 {
            at.duration_since(self.start.mono).as_secs()
        }

        /// Observes signals, each with how many seconds it must last. The generation is the second.
        fn observe(&mut self, second: u64, signals: &[(&str, u64)]) -> Option<PeriodChange> {
            let detected = signals
                .iter()
                .map(|(key, after)| (Signal::Taint((*key).to_owned()), Duration::from_secs(*after)));
            let now = self.at(second);
            self.periods
                .observe("u", &detected.collect(), |_| None, |_| None, second, now)
        }

        fn advance(&mut self, second: u64) -> Option<PeriodChange> {
            let now = self.at(second);
            self.periods.advance(second, now)
        }

        fn deadlines(&self) -> Vec<u64> {
            self.periods.deadlines().map(|at| self.second(at)).collect()
        }

        fn restores_at(&self) -> Option<u64> {
            let restores_at = self.periods.period()?.restores_at()?;
            Some(self.second(restores_at))
        }

        /// The signals that count, each with the second of its start.
        fn counting(&self) -> Vec<(&str, i64)> {
            let signals = self.periods.present().iter();
            let since = |since: &Timestamp| since.duration_since(self.start.wall).as_secs();
            signals.map(|(signal, at)| (signal.name(), since(at))).collect()
        }
    }

    #[test]
    fn a_period_starts_ends_and_is_forgotten() {
        let mut node = Observer::new();
        assert_eq!(node.observe(1, &[]), None);
        assert!(node.periods.is_empty());
        assert_eq!(node.observe(2, &[("a", 0)]), Some(PeriodChange::Started));
        assert_eq!(node.observe(3, &[("a", 0), ("b", 0)]), None);
        assert_eq!(node.counting(), [("a", 2), ("b", 3)]);
        let period = node.periods.period().unwrap();
        assert_eq!((node.second(period.since.mono), period.generation), (2, 2));
        assert_eq!(period.names(), ["a".to_owned(), "b".to_owned()].into());
        assert!(node.deadlines().is_empty() && !node.periods.is_empty());
        assert_eq!(node.observe(10, &[]), Some(PeriodChange::Ended));
        assert_eq!(node.observe(11, &[]), None);
        assert!(node.counting().is_empty());
        assert_eq!(node.periods.period().unwrap().generation, 10);
        assert_eq!(node.deadlines(), [11, 610]);
        for (second, is_forgotten) in [(609, false), (610, true)] {
            let now = node.at(second).mono;
            node.periods.drop_ended(now);
            assert_eq!(node.periods.is_empty(), is_forgotten, "{second}");
        }
        assert_eq!(node.periods.uid(), "u");
    }

    #[test]
    fn ends_of_a_signal_that_flaps_count_every_30_s_at_most() {
        let mut node = Observer::new();
        node.observe(0, &[("a", 0)]);
        for (ends, counts, begins, since) in [
            (10, 11, 20, 20),
            (21, 41, 30, 20),
            (31, 41, 41, 41),
            (42, 71, 150, 150),
            (200, 201, 210, 210),
        ] {
            assert_eq!(node.observe(ends, &[]), Some(PeriodChange::Ended));
            assert_eq!(node.restores_at(), Some(counts), "{ends}");
            assert_eq!(node.observe(begins, &[("a", 0)]), Some(PeriodChange::Started));
            let period = node.periods.period().unwrap();
            let found = (period.generation, node.second(period.since.mono));
            assert_eq!(found, (begins, since), "{ends}");
        }
    }

    #[test]
    fn a_signal_that_must_last_counts_later() {
        let mut node = Observer::new();
        assert_eq!(node.observe(0, &[("a", 10)]), None);
        assert!(!node.periods.is_empty() && node.periods.pending().len() == 1);
        assert_eq!(node.deadlines(), [10]);
        assert_eq!((node.advance(9), node.counting().len()), (None, 0));
        assert_eq!(node.advance(10), Some(PeriodChange::Started));
        assert_eq!((node.counting(), node.deadlines().len()), (vec![("a", 0)], 0));
        node.observe(20, &[("a", 10), ("b", 10), ("c", 30)]);
        assert_eq!(node.deadlines(), [30]);
        assert_eq!(node.advance(40), None, "the period had begun");
        assert_eq!(node.counting(), [("a", 0), ("b", 20)]);
        assert_eq!(node.periods.next_pending().map(|at| node.second(at)), Some(50));
        // Observed again in time, and for the first time too late.
        node.observe(50, &[("a", 10), ("c", 30)]);
        assert_eq!(node.counting(), [("a", 0), ("c", 20)]);
        let now = node.at(60);
        let since = |signal: &Signal| (signal.name() == "d").then_some(now.wall);
        let detected = ["d", "e"].map(|key| (Signal::Taint(key.to_owned()), Duration::from_secs(10)));
        node.periods.observe("u", &detected.into(), since, |_| None, 60, now);
        assert_eq!(node.counting(), [("d", 60)], "it is known to count from elsewhere");
    }
}
