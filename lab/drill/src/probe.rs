//! The status of a backend as health probes find it: how many results in a row change it.

use headgate_budget::probe::ProbeSettings;

/// What a load balancer takes a backend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStatus {
    /// Enough probes in a row succeeded, or none was sent yet.
    Up,
    /// Enough probes in a row failed.
    Down,
}

/// The status of one backend, from its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTracker {
    status: ProbeStatus,
    /// Results in a row that contradict the status.
    streak: u32,
}

impl ProbeTracker {
    /// A backend with this status.
    #[must_use]
    pub const fn new(status: ProbeStatus) -> Self {
        Self { status, streak: 0 }
    }

    /// The status after the latest probe.
    #[must_use]
    pub const fn status(&self) -> ProbeStatus {
        self.status
    }

    /// Takes one result; gives the status if it changes now.
    pub fn observe(&mut self, succeeded: bool, settings: &ProbeSettings) -> Option<ProbeStatus> {
        let (contradicts, threshold, other) = match self.status {
            ProbeStatus::Up => (!succeeded, settings.unhealthy_threshold, ProbeStatus::Down),
            ProbeStatus::Down => (succeeded, settings.healthy_threshold, ProbeStatus::Up),
        };
        self.streak = if contradicts { self.streak + 1 } else { 0 };
        (self.streak >= threshold.max(1)).then(|| {
            *self = Self::new(other);
            other
        })
    }
}

#[cfg(test)]
mod tests {
    use headgate_budget::probe::Provider;

    use super::*;

    #[test]
    fn a_status_changes_after_a_streak_and_not_before() {
        let settings = Provider::Azure.probe();
        let mut tracker = ProbeTracker::new(ProbeStatus::Up);
        let results = [false, true, false, false, false, true, true];
        let changes: Vec<_> = results.map(|result| tracker.observe(result, &settings)).to_vec();
        let down_at = changes.iter().position(|change| *change == Some(ProbeStatus::Down));
        let up_at = changes.iter().position(|change| *change == Some(ProbeStatus::Up));
        assert_eq!((down_at, up_at), (Some(3), Some(6)));
        assert_eq!(changes.iter().flatten().count(), 2);
    }
}
