//! Which backends get new flows: the precedence of admin state over probe, and what happens when all are down.
//!
//! Established TCP flows are not decided here: they stay on their backend, as Azure documents for probe-down and for
//! the admin state `Down`.

use std::time::Duration;

use clap::ValueEnum;

use super::probe::ProbeStatus;

/// `adminState` of a backend pool's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdminState {
    /// The probe decides about new connections.
    #[default]
    None,
    /// New flows, whatever the probe says.
    Up,
    /// No new flows, whatever the probe says.
    Down,
}

/// `noHealthyBackendsBehavior` of a load-balancing rule: what new flows get when no backend is eligible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NoHealthyBackends {
    /// They are dropped; Azure's default.
    #[default]
    AllProbedDown,
    /// They go to all backends but those whose admin state is `Down`. Azure does not say whether this setting
    /// overrides `Down`; here it does not.
    AllProbedUp,
}

/// One backend, as the load balancer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// What the control plane says, once it has taken effect.
    pub admin_state: AdminState,
    /// What the probe says.
    pub probe: ProbeStatus,
    /// Whether it is a member of the pool or target group, as far as new flows are concerned.
    pub is_registered: bool,
}

impl Backend {
    /// Whether new flows may go there. Admin states take effect only for rules with a probe; all rules here have one.
    pub fn is_eligible(&self) -> bool {
        if !self.is_registered {
            return false;
        }
        match self.admin_state {
            AdminState::Up => true,
            AdminState::Down => false,
            AdminState::None => self.probe == ProbeStatus::Up,
        }
    }
}

/// The indexes of the backends that get new flows.
pub fn rotation(backends: &[Backend], no_healthy: NoHealthyBackends) -> Vec<usize> {
    let indexes = |is_in: fn(&Backend) -> bool| {
        let members = backends.iter().enumerate().filter(|(_, backend)| is_in(backend));
        members.map(|(index, _)| index).collect::<Vec<_>>()
    };
    let eligible = indexes(Backend::is_eligible);
    match no_healthy {
        NoHealthyBackends::AllProbedUp if eligible.is_empty() => {
            indexes(|backend| backend.is_registered && backend.admin_state != AdminState::Down)
        }
        _ => eligible,
    }
}

/// Admin states on their way from the control plane to the data plane, each change delayed by the same time.
///
/// Azure publishes no such time; a drill prints the one it assumes.
#[derive(Clone, Debug)]
pub struct Propagation {
    delay: Duration,
    /// What has taken effect.
    effective: Vec<AdminState>,
    /// Changes that have not, with the time at which they do; the oldest first.
    pending: Vec<(Duration, Vec<AdminState>)>,
}

impl Propagation {
    /// For this many backends, all `None`.
    pub fn new(delay: Duration, backends: usize) -> Self {
        Self {
            delay,
            effective: vec![AdminState::None; backends],
            pending: Vec::new(),
        }
    }

    /// Takes what the control plane shows at `now`.
    pub fn observe(&mut self, states: &[AdminState], now: Duration) {
        let newest = self.pending.last().map_or(&self.effective, |(_, states)| states);
        if newest != states {
            self.pending.push((now + self.delay, states.to_vec()));
        }
    }

    /// What has taken effect by `now`.
    pub fn effective(&mut self, now: Duration) -> &[AdminState] {
        let due = self.pending.iter().take_while(|(at, _)| *at <= now).count();
        if let Some((_, states)) = self.pending.drain(..due).next_back() {
            self.effective = states;
        }
        &self.effective
    }

    /// When the next change takes effect.
    pub fn next(&self) -> Option<Duration> {
        self.pending.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn backend(admin_state: AdminState, probe: ProbeStatus) -> Backend {
        Backend {
            admin_state,
            probe,
            is_registered: true,
        }
    }

    #[test]
    fn admin_state_takes_precedence_over_the_probe() {
        use AdminState::{Down, None, Up};
        let all = [
            backend(None, ProbeStatus::Up),
            backend(None, ProbeStatus::Down),
            backend(Up, ProbeStatus::Up),
            backend(Up, ProbeStatus::Down),
            backend(Down, ProbeStatus::Up),
            backend(Down, ProbeStatus::Down),
        ];
        assert_eq!(rotation(&all, NoHealthyBackends::AllProbedDown), [0, 2, 3]);
        assert_eq!(rotation(&all, NoHealthyBackends::AllProbedUp), [0, 2, 3]);
    }

    #[test]
    fn without_eligible_backends_the_rule_decides() {
        let all = [
            backend(AdminState::None, ProbeStatus::Down),
            backend(AdminState::Down, ProbeStatus::Up),
        ];
        assert!(rotation(&all, NoHealthyBackends::AllProbedDown).is_empty());
        assert_eq!(rotation(&all, NoHealthyBackends::AllProbedUp), [0]);
    }

    #[test]
    fn a_deregistered_backend_gets_nothing() {
        let gone = Backend {
            is_registered: false,
            ..backend(AdminState::Up, ProbeStatus::Up)
        };
        let all = [gone, backend(AdminState::None, ProbeStatus::Up)];
        assert_eq!(rotation(&all, NoHealthyBackends::AllProbedDown), [1]);
        assert!(rotation(&[gone], NoHealthyBackends::AllProbedUp).is_empty());
    }

    #[test]
    fn admin_states_take_effect_after_the_delay_and_in_order() {
        use AdminState::{Down, None};
        let at = Duration::from_millis;
        let mut propagation = Propagation::new(at(100), 2);
        propagation.observe(&[None, None], at(0));
        assert_eq!(propagation.next(), Option::None, "nothing changed");
        propagation.observe(&[Down, None], at(10));
        propagation.observe(&[Down, None], at(20));
        propagation.observe(&[Down, Down], at(50));
        assert_eq!(propagation.next(), Some(at(110)));
        assert_eq!(propagation.effective(at(109)), [None, None]);
        assert_eq!(propagation.effective(at(110)), [Down, None]);
        assert_eq!(propagation.next(), Some(at(150)));
        propagation.observe(&[None, None], at(120));
        assert_eq!(propagation.effective(at(300)), [None, None]);
        assert_eq!(propagation.next(), Option::None);
    }
}
