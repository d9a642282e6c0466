//! Whether kube-proxy keeps its rules current: upstream's state machine, with one part for each IP family. Pure.
//!
//! The rules are those of upstream's `ProxyHealthServer`. The timeout of a part starts with its *oldest* pending
//! change. A part without a pending change is healthy, however old its last update. A part is unhealthy exactly at
//! the timeout. A part that was never updated does not count. One unhealthy part makes the whole unhealthy. headgate
//! adds one rule: a part that is marked as failing counts at once.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_core::clock::Moment;
use jiff::Timestamp;
use tokio::time::Instant;

use headgate_core::service::IpFamily;

/// What has a health of its own: each IP family, or kube-proxy as a whole if it names no families (before 1.33).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyPart {
    /// kube-proxy without distinction of families.
    Whole,
    /// kube-proxy's rules for one IP family.
    Family(IpFamily),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartState {
    last_updated: Option<Timestamp>,
    oldest_pending: Option<Instant>,
    is_failing: bool,
}

/// What is known of kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyStatus {
    timeout: Duration,
    parts: BTreeMap<ProxyPart, PartState>,
}

/// The health of kube-proxy at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHealth {
    /// Whether every part is healthy.
    pub healthy: bool,
    /// The time of the newest update of any part.
    pub last_updated: Option<Timestamp>,
    /// The health of each IP family; empty if kube-proxy names no families.
    pub families: BTreeMap<IpFamily, FamilyHealth>,
}

/// The health of kube-proxy's rules for one IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyHealth {
    /// The time of the last update.
    pub last_updated: Option<Timestamp>,
    /// Whether the family is neither failing nor late.
    pub healthy: bool,
}

impl ProxyStatus {
    /// The status before the first answer, which is healthy.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            parts: BTreeMap::new(),
        }
    }

    /// The status at the start of a process, where kube-proxy has answered an earlier one: the next answer is pending from now on.
    pub fn answered_before(timeout: Duration, now: Moment) -> Self {
        let mut status = Self::new(timeout);
        status.mark_updated(ProxyPart::Whole, now.wall);
        status.mark_pending(ProxyPart::Whole, now);
        status
    }

    /// Whether there was an answer.
    pub fn is_known(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Marks a change of `part` as pending. The first call after an update starts the timeout.
    pub fn mark_pending(&mut self, part: ProxyPart, now: Moment) {
        if let Some(state) = self.parts.get_mut(&part) {
            state.oldest_pending.get_or_insert(now.mono);
        }
    }

    /// Marks a change of every known part as pending.
    pub fn mark_all_pending(&mut self, now: Moment) {
        for part in self.parts() {
            self.mark_pending(part, now);
        }
    }

    /// Marks `part` as updated at `at`.
    pub fn mark_updated(&mut self, part: ProxyPart, at: Timestamp) {
        self.parts.insert(
            part,
            PartState {
                last_updated: Some(at),
                oldest_pending: None,
                is_failing: false,
            },
        );
    }

    /// Marks `part` as unhealthy by its own report. `last_updated` is the time of its last update, if the report has
    /// one.
    pub fn mark_failing(&mut self, part: ProxyPart, last_updated: Option<Timestamp>) {
        let known = self.parts.get(&part).and_then(|state| state.last_updated);
        let last_updated = last_updated.or(known);
        self.parts.insert(
            part,
            PartState {
                last_updated,
                oldest_pending: None,
                is_failing: true,
            },
        );
    }

    /// Removes every part that is not in `parts`.
    pub fn retain(&mut self, parts: &[ProxyPart]) {
        self.parts.retain(|part, _| parts.contains(part));
    }

    /// The parts that were updated or failing at least once.
    pub fn parts(&self) -> Vec<ProxyPart> {
        self.parts.keys().copied().collect()
    }

    /// Evaluates the status at `now`.
    pub fn health(&self, now: Moment) -> ProxyHealth {
        let is_healthy = |state: &PartState| {
            let is_late = |since: Instant| now.mono.saturating_duration_since(since) >= self.timeout;
            !state.is_failing && !state.oldest_pending.is_some_and(is_late)
        };
        let families = self.parts.iter().filter_map(|(part, state)| match part {
            ProxyPart::Family(family) => {
                let health = FamilyHealth {
                    last_updated: state.last_updated,
                    healthy: is_healthy(state),
                };
                Some((*family, health))
            }
            ProxyPart::Whole => None,
        });
        ProxyHealth {
            healthy: self.parts.values().all(is_healthy),
            last_updated: self.parts.values().filter_map(|state| state.last_updated).max(),
            families: families.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const V4: ProxyPart = ProxyPart::Family(IpFamily::IPv4);
    const V6: ProxyPart = ProxyPart::Family(IpFamily::IPv6);

    /// A moment some seconds after a common start.
    fn at(start: Instant, seconds: u64) -> Moment {
        let wall = Timestamp::from_second(1_000_000 + i64::try_from(seconds).unwrap()).unwrap();
        Moment {
            wall,
            mono: start + Duration::from_secs(seconds),
        }
    }

    fn family(last_updated: Moment, healthy: bool) -> FamilyHealth {
        FamilyHealth {
            last_updated: Some(last_updated.wall),
            healthy,
        }
    }

    #[test]
    fn unknown_proxy_is_healthy() {
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
    fn what_answered_an_earlier_process_is_late_after_the_timeout() {
        let start = Instant::now();
        let mut status = ProxyStatus::answered_before(TIMEOUT, at(start, 0));
        status.mark_all_pending(at(start, 5));
        assert!(status.health(at(start, 9)).healthy);
        assert!(!status.health(at(start, 10)).healthy);
        status.mark_updated(ProxyPart::Whole, at(start, 11).wall);
        assert!(status.health(at(start, 11)).healthy);
    }

    #[test]
    fn one_late_family_makes_the_whole_unhealthy() {
        let start = Instant::now();
        let mut status = ProxyStatus::new(TIMEOUT);
        status.mark_updated(V4, at(start, 0).wall);
        status.mark_updated(V6, at(start, 0).wall);
        status.mark_pending(V6, at(start, 0));
        status.mark_updated(V4, at(start, 20).wall);
        let health = status.health(at(start, 20));
        assert!(!health.healthy);
        assert_eq!(health.last_updated, Some(at(start, 20).wall));
        assert_eq!(health.families[&IpFamily::IPv4], family(at(start, 20), true));
        assert_eq!(health.families[&IpFamily::IPv6], family(at(start, 0), false));
    }

    #[test]
    fn reported_failure_counts_at_once_and_ends_with_an_update() {
        let start = Instant::now();
        let mut status = ProxyStatus::new(TIMEOUT);
        status.mark_failing(ProxyPart::Whole, None);
        assert!(!status.health(at(start, 0)).healthy);
        assert!(status.health(at(start, 0)).families.is_empty());
        status.mark_updated(ProxyPart::Whole, at(start, 1).wall);
        assert!(status.health(at(start, 1)).healthy);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Pending(bool),
        Updated(bool),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<bool>().prop_map(Step::Pending),
            any::<bool>().prop_map(Step::Updated),
            (0..15_u64).prop_map(Step::Wait)
        ]
    }

    proptest! {
        /// Compares any history with the rule: a family counts from its first update on, and is late when a change
        /// has been pending for the timeout or longer.
        #[test]
        fn health_follows_the_rule_after_any_history(steps in proptest::collection::vec(step(), 0..40)) {
            let start = Instant::now();
            let mut status = ProxyStatus::new(TIMEOUT);
            let mut history: Vec<(u64, bool, bool)> = Vec::new();
            let mut now = 0;
            for step in steps {
                match step {
                    Step::Wait(seconds) => now += seconds,
                    Step::Pending(v4) => {
                        status.mark_pending(if v4 { V4 } else { V6 }, at(start, now));
                        history.push((now, v4, false));
                    }
                    Step::Updated(v4) => {
                        status.mark_updated(if v4 { V4 } else { V6 }, at(start, now).wall);
                        history.push((now, v4, true));
                    }
                }
                let healthy = [true, false].into_iter().all(|family| {
                    let of_family: Vec<_> = history.iter().filter(|(_, v4, _)| *v4 == family).collect();
                    let Some(updated) = of_family.iter().rposition(|(_, _, updated)| *updated) else { return true };
                    of_family.get(updated + 1).is_none_or(|(pending, ..)| now - pending < TIMEOUT.as_secs())
                });
                let known = [true, false].into_iter().filter(|of| history.iter().any(|(_, v4, updated)| v4 == of && *updated));
                let health = status.health(at(start, now));
                prop_assert_eq!((health.healthy, health.families.len()), (healthy, known.count()));
            }
        }
    }
}
