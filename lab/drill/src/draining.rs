//! Established flows of a backend that gets no new ones: how each provider's load balancer ends them, and when.
//!
//! A backend gets no new flows because its probes fail, because a controller has deregistered it, or because its admin state
//! is `Down`. Azure ends flows in none of these cases. Defaults and their evidence are in lab/drill/README.md.

use std::time::Duration;

use headgate_budget::probe::Provider;

use crate::probe::ProbeStatus;

/// How a load balancer ends a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowEnd {
    /// Both sides get a RST at their next packet.
    Reset,
    /// Its packets are dropped.
    Drop,
}

/// Flows end after a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Since the cause.
    pub after: Duration,
    /// How they end.
    pub how: FlowEnd,
}

/// What happens after a backend was deregistered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deregistration {
    /// Until it gets no new flows.
    pub new_flows_stop: Duration,
    /// When its established flows end; none if they go on until they end by themselves.
    pub established: Option<Ending>,
}

/// What a load balancer does with flows of backends that go away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainRules {
    /// Flows of a backend whose probes fail; none if they go on.
    pub unhealthy: Option<Ending>,
    /// None if no controller of the provider deregisters a node at an autoscaler's signal.
    pub deregistration: Option<Deregistration>,
    /// Flows of a backend whose admin state `Down` has taken effect; none if they go on.
    pub admin_down: Option<Ending>,
}

impl DrainRules {
    /// What the provider's load balancer does by default.
    pub const fn of(provider: Provider) -> Self {
        match provider {
            Provider::Azure => Self {
                unhealthy: None,
                deregistration: None,
                admin_down: None,
            },
            Provider::AwsCluster | Provider::AwsLocal => Self {
                unhealthy: Some(Ending {
                    after: Duration::ZERO,
                    how: FlowEnd::Reset,
                }),
                deregistration: Some(Deregistration {
                    new_flows_stop: Duration::from_mins(2),
                    established: None,
                }),
                admin_down: None,
            },
            Provider::Gcp => Self {
                unhealthy: None,
                deregistration: Some(Deregistration {
                    new_flows_stop: Duration::ZERO,
                    established: Some(Ending {
                        after: Duration::from_secs(30),
                        how: FlowEnd::Drop,
                    }),
                }),
                admin_down: None,
            },
        }
    }

    /// The same with other times.
    #[must_use]
    pub fn map(self, time: impl Fn(Duration) -> Duration) -> Self {
        let ending = |ending: Ending| Ending {
            after: time(ending.after),
            ..ending
        };
        Self {
            unhealthy: self.unhealthy.map(ending),
            deregistration: self.deregistration.map(|rule| Deregistration {
                new_flows_stop: time(rule.new_flows_stop),
                established: rule.established.map(ending),
            }),
            admin_down: self.admin_down.map(ending),
        }
    }
}

/// Since when a backend has a reason to get no new flows.
#[derive(Clone, Copy, Debug, Default)]
struct Causes {
    unhealthy: Option<Duration>,
    deregistered: Option<Duration>,
    admin_down: Option<Duration>,
}

/// The backends of a load balancer that go away.
#[derive(Clone, Debug)]
pub struct Drains {
    rules: DrainRules,
    causes: Vec<Causes>,
}

impl Drains {
    /// This many backends, all registered and healthy.
    pub fn new(rules: DrainRules, backends: usize) -> Self {
        Self {
            rules,
            causes: vec![Causes::default(); backends],
        }
    }

    /// Probes have changed the status of a backend.
    pub fn probed(&mut self, index: usize, status: ProbeStatus, now: Duration) {
        if let Some(causes) = self.causes.get_mut(index) {
            causes.unhealthy = (status == ProbeStatus::Down).then_some(now);
        }
    }

    /// A controller deregisters a backend.
    pub(crate) fn deregister(&mut self, index: usize, now: Duration) {
        if let Some(causes) = self.causes.get_mut(index) {
            causes.deregistered.get_or_insert(now);
        }
    }

    /// What the admin state of a backend in effect says.
    pub(crate) fn set_admin_down(&mut self, index: usize, is_down: bool, now: Duration) {
        if let Some(causes) = self.causes.get_mut(index) {
            causes.admin_down = is_down.then(|| causes.admin_down.unwrap_or(now));
        }
    }

    /// Whether a deregistration leaves the backend its new flows.
    pub(crate) fn is_registered(&self, index: usize, now: Duration) -> bool {
        let stop = self.rules.deregistration.map(|rule| rule.new_flows_stop);
        let since = self.causes.get(index).and_then(|causes| causes.deregistered);
        !matches!((since, stop), (Some(since), Some(stop)) if since + stop <= now)
    }

    /// The backends whose established flows have ended by now, and how.
    pub fn ended(&self, now: Duration) -> Vec<(usize, FlowEnd)> {
        let ended = |(index, causes): (usize, &Causes)| {
            let first = self.endings(causes).filter(|(at, _)| *at <= now).min();
            first.map(|(_, how)| (index, how))
        };
        self.causes.iter().enumerate().filter_map(ended).collect()
    }

    /// The next time after now at which something of this changes.
    pub fn next(&self, now: Duration) -> Option<Duration> {
        let stop = self.rules.deregistration.map(|rule| rule.new_flows_stop);
        let times = self.causes.iter().flat_map(|causes| {
            let stops = causes.deregistered.zip(stop).map(|(since, stop)| since + stop);
            self.endings(causes).map(|(at, _)| at).chain(stops)
        });
        times.filter(|at| *at > now).min()
    }

    fn endings(&self, causes: &Causes) -> impl Iterator<Item = (Duration, FlowEnd)> {
        let established = self.rules.deregistration.and_then(|rule| rule.established);
        let pairs = [
            causes.unhealthy.zip(self.rules.unhealthy),
            causes.deregistered.zip(established),
            causes.admin_down.zip(self.rules.admin_down),
        ];
        pairs
            .into_iter()
            .flatten()
            .map(|(since, ending)| (since + ending.after, ending.how))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn azure_ends_no_flow_and_deregisters_nothing() {
        let mut drains = Drains::new(DrainRules::of(Provider::Azure), 2);
        drains.probed(0, ProbeStatus::Down, seconds(1));
        drains.deregister(1, seconds(1));
        assert!(drains.ended(seconds(1000)).is_empty());
        assert!(drains.is_registered(1, seconds(1000)));
        assert_eq!(drains.next(seconds(1)), None);
    }

    #[test]
    fn an_admin_state_down_resets_flows_where_it_is_told_to() {
        let rules = DrainRules {
            admin_down: Some(Ending {
                after: Duration::ZERO,
                how: FlowEnd::Reset,
            }),
            ..DrainRules::of(Provider::Azure)
        };
        let mut drains = Drains::new(rules, 2);
        drains.set_admin_down(1, true, seconds(3));
        drains.set_admin_down(1, true, seconds(4));
        drains.set_admin_down(0, false, seconds(4));
        assert_eq!(drains.ended(seconds(4)), [(1, FlowEnd::Reset)]);
        drains.set_admin_down(1, false, seconds(5));
        assert!(drains.ended(seconds(5)).is_empty());
    }

    #[test]
    fn aws_resets_flows_of_unhealthy_targets_and_stops_new_ones_late() {
        let mut drains = Drains::new(DrainRules::of(Provider::AwsCluster), 2);
        drains.probed(0, ProbeStatus::Down, seconds(7));
        assert_eq!(drains.ended(seconds(7)), [(0, FlowEnd::Reset)]);
        drains.probed(0, ProbeStatus::Up, seconds(9));
        assert!(drains.ended(seconds(9)).is_empty());
        drains.deregister(1, seconds(10));
        drains.deregister(1, seconds(20));
        assert!(drains.is_registered(1, seconds(129)));
        assert_eq!(drains.next(seconds(20)), Some(seconds(130)), "since the first call");
        assert!(!drains.is_registered(1, seconds(130)));
        assert!(
            drains.ended(seconds(1000)).is_empty(),
            "connection termination is off by default"
        );
    }

    #[test]
    fn gcp_stops_new_flows_at_once_and_drops_the_others_after_the_timeout() {
        let rules = DrainRules::of(Provider::Gcp).map(|time| time / 10);
        let mut drains = Drains::new(rules, 1);
        drains.deregister(0, seconds(5));
        assert!(!drains.is_registered(0, seconds(5)));
        assert!(drains.ended(seconds(7)).is_empty());
        assert_eq!(drains.next(seconds(5)), Some(seconds(8)));
        assert_eq!(drains.ended(seconds(8)), [(0, FlowEnd::Drop)]);
        assert_eq!(drains.next(seconds(8)), None);
    }
}
