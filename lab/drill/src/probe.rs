//! The status of a backend as health probes find it: how many results in a row change it.

use headgate_budget::probe::{ProbeRule, ProbeSettings};

/// What one probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// A handshake of TCP, or status 200.
    Success,
    /// HTTP alone: another status than 200, or a connection that was reset or refused.
    Refusal,
    /// No answer in time; of TCP every other end.
    Failure,
}

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
    pub const fn new(status: ProbeStatus) -> Self {
        Self { status, streak: 0 }
    }

    /// The status after the latest probe.
    pub const fn status(&self) -> ProbeStatus {
        self.status
    }

    /// Takes one result; gives the status if it changes now.
    pub fn observe(&mut self, result: ProbeResult, settings: &ProbeSettings) -> Option<ProbeStatus> {
        let succeeded = result == ProbeResult::Success;
        let failures = match (result, settings.rule) {
            (ProbeResult::Refusal, ProbeRule::FirstNon200) => 1,
            _ => settings.unhealthy_threshold,
        };
        let (contradicts, threshold, other) = match self.status {
            ProbeStatus::Up => (!succeeded, failures, ProbeStatus::Down),
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
        use ProbeResult::{Failure, Success};
        let settings = Provider::Azure.probe();
        let mut tracker = ProbeTracker::new(ProbeStatus::Up);
        let results = [Failure, Success, Failure, Failure, Failure, Success, Success];
        let changes: Vec<_> = results.map(|result| tracker.observe(result, &settings)).to_vec();
        let down_at = changes.iter().position(|change| *change == Some(ProbeStatus::Down));
        let up_at = changes.iter().position(|change| *change == Some(ProbeStatus::Up));
        assert_eq!((down_at, up_at), (Some(3), Some(6)));
        assert_eq!(changes.iter().flatten().count(), 2);
    }

    #[test]
    fn the_first_answer_other_than_200_takes_a_backend_out_where_the_rule_says_so() {
        use ProbeResult::{Failure, Refusal, Success};
        for (rule, results, down_at) in [
            (ProbeRule::FirstNon200, [Success, Refusal, Refusal], Some(1)),
            (ProbeRule::FirstNon200, [Failure, Refusal, Success], Some(1)),
            (ProbeRule::FirstNon200, [Failure, Failure, Success], Some(1)),
            (ProbeRule::FirstNon200, [Failure, Success, Failure], None),
            (ProbeRule::Threshold, [Success, Refusal, Refusal], Some(2)),
            (ProbeRule::Threshold, [Refusal, Success, Refusal], None),
        ] {
            let settings = ProbeSettings {
                rule,
                ..Provider::Azure.probe()
            };
            let mut tracker = ProbeTracker::new(ProbeStatus::Up);
            let mut changes = results.into_iter().map(|result| tracker.observe(result, &settings));
            let found = changes.position(|change| change == Some(ProbeStatus::Down));
            assert_eq!(found, down_at, "{rule:?} {results:?}");
        }
    }
}
