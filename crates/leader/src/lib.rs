//! Who may write: one leader among all candidates, elected on a Lease, for terms that end.
//!
//! Invariants: at no instant are two terms valid, whatever clocks say and whatever process stands still; a
//! Lease gives no number twice; a write is sent only with a [`Permit`], which is had from a valid term
//! alone; whoever finds a Lease free needs its `resourceVersion` to take it. A holder's term ends 10 s after the
//! *start* of its last good write, a candidate takes what it has seen unchanged for 15 s, each by its own
//! monotonic clock: DESIGN decision 7, which also says why 5,000 candidates cost 17 requests a second. A defect in
//! the leader's work ends the term and not the process (decision 8).
//!
//! `record` is the Lease as plain data, `sight` what a candidate saw of it and since when, `candidate` the whole
//! decision, with `following` and `leading`; `elector` and `office` carry it out. What is done in a term is
//! for others to say. `arm_lock` is the other Lease, the lock that keeps a leader's writes and cloud-controller-manager's
//! apart.

mod arm_lock;
mod candidate;
mod elector;
mod following;
mod lead;
mod leading;
mod metrics;
mod office;
mod record;
mod sight;
mod term;
mod timing;

pub use arm_lock::{ArmLock, LockError, LockGuard, LockMetrics};
pub use candidate::Fleet;
pub use elector::{LeaderElectionConfig, LeaderElector, LeaseName, candidate_identity, run};
pub use lead::LeaderStatus;
pub use metrics::{LeaderMetrics, TermFailure, TermMetricsGuard};
pub use record::{CANDIDATES_ANNOTATION, FAILED_TERMS_ANNOTATION};
pub use term::{Permit, Term, TermEnded};
pub use timing::{Timing, TimingError};
