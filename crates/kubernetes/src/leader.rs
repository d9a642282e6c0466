//! The leader election, the terms of a leader, and the lock that its writes to ARM share with cloud-controller-manager.
//!
//! Invariants: two terms are never valid at the same instant, however wrong clocks are and however long a process
//! stands still. Two terms in a row have different numbers: each is higher by one, but 1 comes after the highest `i32`. A write is sent only
//! with a [`Permit`], which only a valid term issues. A candidate acquires a Lease only in the `resourceVersion` that it has read, or
//! creates it where it has just created the ledger: no leader has led there. A term ends 10 s after the *start* of the holder's last
//! successful write; a candidate acquires what it has observed unchanged for 14 s; each by its own monotonic clock. No permit is issued
//! while that clock and the wall clock disagree about the time since. docs/dev/decisions.md 7 gives the reasons and the cost. A defect in
//! the leader's work ends the term and not the process (docs/dev/decisions.md 8).
//!
//! `candidate` decides, as a pure function of what it observed (`observed_lease`); `leader_elector` and `leader_task` carry
//! the decision out; `term` is what the work receives. `arm_lock` is the other Lease. What the work of a term does is left
//! to the caller.

mod arm_lock;
mod candidate;
mod election_record;
mod fleet;
mod leader_elector;
mod leader_status;
mod leader_task;
mod lease_client;
mod lease_state;
mod ledger;
mod metrics;
mod observed_lease;
mod successor_request;
mod term;
mod timing;

pub use arm_lock::{ArmLock, LockError, LockGuard, LockMetrics};
pub use election_record::{
    CANDIDATES_ANNOTATION, FAILED_TERMS_ANNOTATION, GAVE_UP_ANNOTATION, SUCCESSOR_ANNOTATION, THROTTLE_ANNOTATION,
    UNABLE_ANNOTATION,
};
pub use fleet::{CandidatePlacement, NodeSummary};
pub use leader_elector::{LeaderElectionConfig, LeaderElector, candidate_identity};
pub use leader_status::LeaderStatus;
pub use lease_state::LeaseName;
pub use ledger::{LEDGER_NAME, new_ledger};
pub use metrics::LeaderMetrics;
pub use successor_request::{Inability, InabilityReason};
pub use term::{Permit, PermitError, Term};
