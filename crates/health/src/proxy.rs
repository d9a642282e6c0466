//! Whether the service proxy keeps up: kube-proxy's state machine, one part an IP family.
//!
//! Pure; time comes in. The rules are upstream's (`ProxyHealthServer`): the clock of a part starts at
//! its *oldest* unserved change, nothing pending is healthy however old the last update, exactly at the
//! timeout is unhealthy, a part that was never updated does not count, and one bad part makes the whole
//! bad. Added here: a part may be reported as failing, which counts at once.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_clock::Moment;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// An IP family, spelled as kube-proxy spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    IPv4,
    /// IPv6.
    IPv6,
}

/// What is kept apart: each family, or the proxy as a whole where it names none (kube-proxy before 1.33).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The proxy as a whole.
    Whole,
    /// One IP family.
    Family(Family),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartState {
    last_updated: Timestamp,
    oldest_pending: Option<Instant>,
    failing: bool,
}

/// The proxy's state, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyStatus {
    timeout: Duration,
    parts: BTreeMap<Part, PartState>,
}

/// The proxy's health at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHealth {
    /// Whether every part is healthy.
    pub healthy: bool,
    /// The newest update of any part.
    pub last_updated: Option<Timestamp>,
    /// Each family's last update and health; a proxy known only as a whole has none.
    pub families: BTreeMap<Family, (Timestamp, bool)>,
}

impl ProxyStatus {
    /// Nothing known yet, which is healthy.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            parts: BTreeMap::new(),
        }
    }

    /// `part` wants an update; the first such call since its last update starts the clock.
    pub fn queued(&mut self, part: Part, now: Moment) {
        if let Some(state) = self.parts.get_mut(&part) {
            state.oldest_pending.get_or_insert(now.mono);
        }
    }

    /// Every known part wants an update.
    pub fn all_queued(&mut self, now: Moment) {
        for part in self.parts() {
            self.queued(part, now);
        }
    }

    /// `part` was brought up to date at `at`.
    pub fn updated(&mut self, part: Part, at: Timestamp) {
        self.parts.insert(
            part,
            PartState {
                last_updated: at,
                oldest_pending: None,
                failing: false,
            },
        );
    }

    /// `part` says of itself that it is unhealthy; its last update was at `last_updated`, if that is known.
    pub fn failing(&mut self, part: Part, last_updated: Option<Timestamp>) {
        let known = self.parts.get(&part).map(|state| state.last_updated);
        let last_updated = last_updated.or(known).unwrap_or(Timestamp::UNIX_EPOCH);
        self.parts.insert(
            part,
            PartState {
                last_updated,
                oldest_pending: None,
                failing: true,
            },
        );
    }

    /// Forgets every part not in `parts`.
    pub fn retain(&mut self, parts: &[Part]) {
        self.parts.retain(|part, _| parts.contains(part));
    }

    /// The parts that are known.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        self.parts.keys().copied().collect()
    }

    /// The proxy's health at `now`.
    #[must_use]
    pub fn health(&self, now: Moment) -> ProxyHealth {
        let healthy = |state: &PartState| {
            let late = |since: Instant| now.mono.saturating_duration_since(since) >= self.timeout;
            !state.failing && !state.oldest_pending.is_some_and(late)
        };
        let families = self.parts.iter().filter_map(|(part, state)| match part {
            Part::Family(family) => Some((*family, (state.last_updated, healthy(state)))),
            Part::Whole => None,
        });
        ProxyHealth {
            healthy: self.parts.values().all(healthy),
            last_updated: self.parts.values().map(|state| state.last_updated).max(),
            families: families.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const V4: Part = Part::Family(Family::IPv4);
    const V6: Part = Part::Family(Family::IPv6);

    /// A moment some seconds after a common start.
    fn at(start: Instant, seconds: u64) -> Moment {
        let wall = Timestamp::from_second(1_000_000 + i64::try_from(seconds).unwrap()).unwrap();
        Moment {
            wall,
            mono: start + Duration::from_secs(seconds),
        }
    }

    #[test]
    fn nothing_known_is_healthy() {
        let start = Instant::now();
        let health = ProxyStatus::new(TIMEOUT).health(at(start, 100));
        assert_eq!(
            health,
            ProxyHealth {
                healthy: true,
                last_updated: None,
                families: BTreeMap::new()
            }
        );
    }

    #[test]
    fn pending_before_the_first_update_does_not_count() {
        let start = Instant::now();
        let mut status = ProxyStatus::new(TIMEOUT);
        status.queued(V4, at(start, 0));
        assert!(status.health(at(start, 10_000)).healthy);
        assert!(status.health(at(start, 10_000)).families.is_empty());
    }

    #[test]
    fn exactly_the_timeout_is_unhealthy() {
        let start = Instant::now();
        let mut status = ProxyStatus::new(TIMEOUT);
        status.updated(V4, at(start, 0).wall);
        status.queued(V4, at(start, 5));
        let just_before = Moment {
            mono: start + Duration::from_millis(14_999),
            ..at(start, 14)
        };
        assert!(status.health(just_before).healthy);
        assert!(!status.health(at(start, 15)).healthy);
    }

    #[test]
    fn the_oldest_pending_change_is_the_clock() {
        let start = Instant::now();
        let mut status = ProxyStatus::new(TIMEOUT);
        status.updated(V4, at(start, 0).wall);
        status.queued(V4, at(start, 1));
        status.queued(V4, at(start, 9));
        assert!(!status.health(at(start, 11)).healthy);
        status.updated(V4, at(start, 11).wall);
        assert!(
            status.health(at(start, 10_000)).healthy,
            "nothing pending is healthy for ever"
        );
    }

    #[test]
    fn one_late_family_is_the_whole() {
        let start = Instant::now();
        let mut status = ProxyStatus::new(TIMEOUT);
        status.updated(V4, at(start, 0).wall);
        status.updated(V6, at(start, 0).wall);
        status.queued(V6, at(start, 0));
        status.updated(V4, at(start, 20).wall);
        let health = status.health(at(start, 20));
        assert!(!health.healthy);
        assert_eq!(health.last_updated, Some(at(start, 20).wall));
        assert_eq!(health.families[&Family::IPv4], (at(start, 20).wall, true));
        assert_eq!(health.families[&Family::IPv6], (at(start, 0).wall, false));
    }

    #[test]
    fn a_reported_failure_counts_at_once_and_ends_with_an_update() {
        let start = Instant::now();
        let mut status = ProxyStatus::new(TIMEOUT);
        status.failing(Part::Whole, None);
        assert!(!status.health(at(start, 0)).healthy);
        assert!(status.health(at(start, 0)).families.is_empty());
        status.updated(Part::Whole, at(start, 1).wall);
        assert!(status.health(at(start, 1)).healthy);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Queued(bool),
        Updated(bool),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<bool>().prop_map(Step::Queued),
            any::<bool>().prop_map(Step::Updated),
            (0..15_u64).prop_map(Step::Wait)
        ]
    }

    proptest! {
        /// Against the rule in words: a family counts once it was updated, and is late when something has been
        /// queued, without an update since, for the timeout or longer.
        #[test]
        fn any_history_gives_what_the_rule_says(steps in proptest::collection::vec(step(), 0..40)) {
            let start = Instant::now();
            let mut status = ProxyStatus::new(TIMEOUT);
            let mut history: Vec<(u64, bool, bool)> = Vec::new();
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Wait(seconds) => now += seconds,
                    Step::Queued(v4) => {
                        status.queued(if v4 { V4 } else { V6 }, at(start, now));
                        history.push((now, v4, false));
                    }
                    Step::Updated(v4) => {
                        status.updated(if v4 { V4 } else { V6 }, at(start, now).wall);
                        history.push((now, v4, true));
                    }
                }
                let good = [true, false].into_iter().all(|family| {
                    let of_family: Vec<_> = history.iter().filter(|(_, v4, _)| *v4 == family).collect();
                    let Some(updated) = of_family.iter().rposition(|(_, _, updated)| *updated) else { return true };
                    of_family.get(updated + 1).is_none_or(|(queued, ..)| now - queued < TIMEOUT.as_secs())
                });
                prop_assert_eq!(status.health(at(start, now)).healthy, good);
            }
        }
    }
}
