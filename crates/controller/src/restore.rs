//! `headgate restore`: sets what headgate set `Down` back to `None`, on an operator's command, for when headgate is being removed
//! or is gone.
//!
//! No other instance writes meanwhile: the command stands for election like any agent and works in a term of its own, whose
//! permit each write needs. It never takes the Lease of a leader that still renews it. The work of that term is
//! [`admin_state::restore`].

use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::telemetry::MetricTable;
use headgate_kubernetes::leader::{LockMetrics, Term};

use crate::admin_state::{self, ClusterTarget, RestoreContext, RestoreError, RestoreOutcome};
use crate::own_term::{OwnTermError, OwnTermRequest, run_in_own_term};

/// What to restore, and how long that may take.
pub struct RestoreRequest {
    /// A client of the API server that does not retry by itself.
    pub client: kube::Client,
    /// The load balancers to restore.
    pub target: ClusterTarget,
    /// The names of the Nodes whose entries are restored; empty for all Nodes.
    pub nodes: Vec<String>,
    /// For the leader's Lease.
    pub lease_timeout: Duration,
    /// For the work, once the Lease is acquired.
    pub work_timeout: Duration,
    /// Wall and monotonic time.
    pub clock: Clock,
}

/// Why nothing was restored, or it is not known what was.
#[derive(Debug, thiserror::Error)]
pub enum RestoreRequestError {
    /// The work did not begin.
    #[error(transparent)]
    NotBegun(OwnTermError),
    /// The work failed before it wrote anything.
    #[error(transparent)]
    Failed(#[from] RestoreError),
    /// The Lease was lost, or the command was interrupted, during the work.
    #[error("the term ended before everything was restored; run the command again, nothing is lost")]
    TermEnded,
}

/// Acquires the leader's Lease, restores, and releases the Lease. Ends early when `interrupted` does.
///
/// # Errors
/// If the work could not start, or was interrupted.
pub async fn run_restore(
    request: RestoreRequest,
    interrupted: impl Future<Output = ()>,
) -> Result<RestoreOutcome, RestoreRequestError> {
    let RestoreRequest {
        client,
        target,
        nodes,
        lease_timeout,
        work_timeout,
        clock,
    } = request;
    let term = OwnTermRequest {
        client: client.clone(),
        identity: "headgate-restore",
        lease_timeout,
        clock: clock.clone(),
    };
    let context = RestoreContext {
        client,
        target,
        only_nodes: (!nodes.is_empty()).then(|| Arc::new(nodes.into_iter().collect())),
        timeout: work_timeout,
        lock_metrics: LockMetrics::register(MetricTable::unregistered()),
        clock,
    };
    let work = move |term: Term| {
        let context = context.clone();
        async move { admin_state::restore(&term, &context).await }
    };
    match run_in_own_term(term, interrupted, work).await {
        Ok(Err(RestoreError::TermEnded)) | Err(OwnTermError::Ended) => Err(RestoreRequestError::TermEnded),
        Ok(outcome) => outcome.map_err(RestoreRequestError::from),
        Err(error) => Err(RestoreRequestError::NotBegun(error)),
    }
}
