//! `headgate restore`: sets what headgate set `Down` back to `None`, on an operator's command, for when headgate is being removed
//! or is gone.
//!
//! No other instance writes meanwhile: the command stands for election like any agent and works in a term of its own, whose
//! permit each write needs. It never takes the Lease of a leader that still renews it. The work of that term is
//! [`admin_state::restore`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_kubernetes::leader::Term;

use crate::admin_state::{self, ClusterTarget, RestoreError, RestoreOutcome};
use crate::own_term::{OwnTermError, OwnTermRequest, run_in_own_term};

/// What to restore, and how long that may take.
#[derive(Clone)]
pub struct RestoreRequest {
    /// A client of the API server that does not retry by itself.
    pub client: kube::Client,
    /// The load balancers to restore.
    pub target: ClusterTarget,
    /// The names of the Nodes whose entries are restored; `None` for all Nodes.
    pub only_nodes: Option<Arc<BTreeSet<String>>>,
    /// For the leader's Lease.
    pub lease_timeout: Duration,
    /// For the work, once the Lease is acquired.
    pub work_timeout: Duration,
    /// Wall and monotonic time.
    pub clock: Clock,
}

/// Acquires the leader's Lease, restores, and releases the Lease. Ends early when `interrupted` does.
///
/// # Errors
/// If the work could not start, or was interrupted.
pub async fn run_restore(
    request: RestoreRequest,
    interrupted: impl Future<Output = ()>,
) -> Result<RestoreOutcome, RestoreError> {
    let term = OwnTermRequest {
        client: request.client.clone(),
        identity: "headgate-restore",
        lease_timeout: request.lease_timeout,
        clock: request.clock.clone(),
    };
    let work = move |term: Term| {
        let request = request.clone();
        async move { admin_state::restore(&term, &request).await }
    };
    match run_in_own_term(term, interrupted, work).await {
        Ok(outcome) => outcome,
        Err(OwnTermError::Ended) => Err(RestoreError::TermEnded),
        Err(error) => Err(RestoreError::NotBegun(error)),
    }
}
