//! Mistakes that the election could have: each one changes what surrounds the product's candidate, and some property must notice.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bug {
    /// A term is valid for longer than a candidate waits.
    LeadsForLonger,
    /// A term counts from the answer to the write that acquires the Lease.
    CountsFromAnswer,
    /// A write without resourceVersion.
    WritesWithoutVersion,
    /// A candidate acquires a Lease that is missing beside a ledger at once.
    AcquiresMissingLease,
    /// Each term has the number of the one before.
    RepeatsNumber,
    /// Who creates the ledger takes it for one that was there.
    DistrustsOwnLedger,
    /// A released Lease still names a holder.
    KeepsHolder,
    /// A candidate waits for twice the Lease's duration.
    WaitsForMore,
    /// Each read of a held Lease counts as a renewal.
    TakesReadForRenewal,
    /// The Lease is released as soon as a handover is requested.
    ReleasesBeforeWorkEnds,
    /// A candidate that stops does not know that a request got no answer.
    ForgetsFailures,
}

/// Each bug, the property that notices it, and what happens in the model in which it does.
pub(super) const BUGS: [(Bug, &str, &[Disturbance]); 14] = [
    (Bug::LeadsForLonger, LEADERS, &[Pause]),
    (Bug::CountsFromAnswer, LEADERS, &[Pause]),
    (Bug::WritesWithoutVersion, LEADERS, &[]),
    (Bug::AcquiresMissingLease, LEADERS, &[Deletion]),
    (Bug::RepeatsNumber, NUMBERS, &[Stop]),
    (Bug::DistrustsOwnLedger, FRESH, &[]),
    (Bug::AcquiresMissingLease, MISSING, &[]),
    (Bug::KeepsHolder, STOP, &[Stop]),
    (Bug::KeepsHolder, RELEASED, &[]),
    (Bug::WaitsForMore, DEATH, &[Death]),
    (Bug::TakesReadForRenewal, KILLED, &[]),
    (Bug::TakesReadForRenewal, LEADER, &[Death]),
    (Bug::ReleasesBeforeWorkEnds, WORK, &[Stop]),
    (Bug::ForgetsFailures, WORK, &[Stop, Fault]),
];

impl Election {
    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// How fast the clock of a process is.
    pub(super) fn rate(&self, number: usize) -> f64 {
        let is_slow = self.has(Bug::WaitsForMore) && number > 0;
        if is_slow { 0.5 } else { 1.0 }
    }

    pub(super) fn alter_stored(&self, record: &mut ElectionRecord) {
        if self.has(Bug::KeepsHolder) && record.is_released() && !record.was_never_held() {
            record.lease.holder = "released".to_owned();
        }
    }

    pub(super) fn alter_before(&self, candidate: &mut Candidate, event: &mut Event, now: Moment) {
        match (self.bug, &mut candidate.phase) {
            (Some(Bug::CountsFromAnswer), Phase::Acquiring(acquisition)) => acquisition.began = now,
            (Some(Bug::AcquiresMissingLease), Phase::CreatingLedger { .. }) if *event == Event::Conflict => {
                *event = Event::LedgerCreated;
            }
            (Some(Bug::DistrustsOwnLedger), Phase::CreatingLedger { .. }) if *event == Event::LedgerCreated => {
                *event = Event::Conflict;
            }
            (Some(Bug::ForgetsFailures), Phase::Waiting(_)) => candidate.failed_requests = 0,
            (Some(Bug::TakesReadForRenewal), Phase::Reading { .. }) => {
                if let Event::Read(Some(record)) = event
                    && !record.is_released()
                {
                    record.lease.renewed = Some(now.wall);
                }
            }
            _ => {}
        }
    }

    pub(super) fn alter_after(&self, candidate: &mut Candidate, action: &mut Action) {
        match (self.bug, &mut candidate.phase, action) {
            (Some(Bug::LeadsForLonger), Phase::Leading(held), _) => held.until = held.attempt.mono + 2 * LEASE_DURATION,
            (Some(Bug::RepeatsNumber), Phase::Acquiring(acquisition), Action::Write(record, _)) => {
                acquisition.term -= 1;
                record.lease.transitions = acquisition.term;
            }
            _ => {}
        }
    }
}
