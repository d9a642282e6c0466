//! `headgate restore`: sets what headgate set `Down` back to `None`, on an operator's command, for when headgate is being removed
//! or is gone.
//!
//! No other instance writes meanwhile: the command stands for election like any agent and works in a term of its own, whose
//! permit each write needs. It never takes the Lease of a leader that still renews it. The work of that term is
//! [`admin_state::restore`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_core::node::{NodeReport, SignalRules};
use headgate_core::telemetry::MetricTable;
use headgate_kubernetes::leader::{CandidatePlacement, LeaderElector, LeaderMetrics, LeaseName, LockMetrics, Term};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::admin_state::{self, ClusterTarget, RestoreContext, RestoreError, RestoreOutcome};

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
    /// The Lease was not acquired within this time.
    #[error(
        "the leader's Lease was not acquired within {} s: another instance leads, or this identity may not write the Lease; \
         `headgate status` shows the leader",
        .0.as_secs()
    )]
    NotElected(Duration),
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
    let (_reports, reports) = watch::channel(NodeReport::initial(None, &SignalRules::default(), clock.now()));
    let elector = LeaderElector::new(headgate_kubernetes::leader::LeaderElectionConfig {
        client: client.clone(),
        lease: LeaseName::default(),
        identity: headgate_kubernetes::leader::candidate_identity("headgate-restore"),
        placement: CandidatePlacement::EveryNode,
        reports,
        metrics: LeaderMetrics::default(),
        clock: clock.clone(),
    });
    let context = RestoreContext {
        client,
        target,
        only_nodes: (!nodes.is_empty()).then(|| Arc::new(nodes.into_iter().collect())),
        timeout: work_timeout,
        lock_metrics: LockMetrics::register(MetricTable::unregistered()),
        clock,
    };
    let stop = CancellationToken::new();
    let (sender, mut outcomes) = mpsc::channel(1);
    let mut terms = elector.terms();
    let work = move |term: Term| {
        let (context, sender) = (context.clone(), sender.clone());
        async move {
            let outcome = admin_state::restore(&term, &context).await;
            // The receiver is gone after an interruption.
            let _ = sender.send(outcome).await;
            // Work that returns earlier counts as failed.
            term.handover_requested().await;
            Ok::<(), Infallible>(())
        }
    };
    let mut election = std::pin::pin!(elector.run(stop.clone(), work));
    let lease_deadline = Instant::now() + lease_timeout;
    let mut interrupted = std::pin::pin!(interrupted);
    let (is_elected, mut outcome) = tokio::select! {
        () = &mut election => return Err(RestoreRequestError::TermEnded),
        term = terms.wait_for(Option::is_some) => (term.is_ok(), Err(RestoreRequestError::TermEnded)),
        () = sleep_until(lease_deadline) => (false, Err(RestoreRequestError::NotElected(lease_timeout))),
        () = &mut interrupted => (false, Err(RestoreError::Interrupted.into())),
    };
    if is_elected {
        outcome = tokio::select! {
            () = &mut election => return Err(RestoreRequestError::TermEnded),
            outcome = outcomes.recv() => match outcome {
                Some(outcome) => outcome.map_err(RestoreRequestError::from),
                None => Err(RestoreRequestError::TermEnded),
            },
            // The outcome so far arrives while the Lease is released.
            () = &mut interrupted => Err(RestoreRequestError::TermEnded),
        };
    }
    stop.cancel();
    // The elector bounds the release of the Lease.
    tokio::select! {
        () = &mut election => {}
        Some(late) = outcomes.recv(), if outcome.is_err() => {
            outcome = late.map_err(RestoreRequestError::from);
            election.await;
        }
    }
    outcome
}
