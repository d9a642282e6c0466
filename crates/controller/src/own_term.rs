//! The leader's term of a command: it stands for election like any agent, works in a term of its own, and releases the Lease.
//!
//! It never takes the Lease of a leader that still renews it.

use std::convert::Infallible;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_kubernetes::leader::{CandidatePlacement, LeaderElectionConfig, LeaderElector, Term, candidate_identity};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Who stands for election, and how long.
pub(crate) struct OwnTermRequest {
    /// A client of the API server that does not retry by itself.
    pub(crate) client: kube::Client,
    /// The beginning of the holder's name.
    pub(crate) identity: &'static str,
    /// For the leader's Lease.
    pub(crate) lease_timeout: Duration,
    pub(crate) clock: Clock,
}

/// Why there is no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnTermError {
    /// The Lease was not acquired within this time.
    #[error(
        "the leader's Lease was not acquired within {} s: another instance leads, or this identity may not write the Lease; \
         `headgate status` shows the leader",
        .0.as_secs()
    )]
    NotElected(Duration),
    /// The command was interrupted before its term began.
    #[error("interrupted before anything was written")]
    Interrupted,
    /// The Lease was lost, or the command was interrupted, during the work.
    #[error("the term ended during the work")]
    Ended,
}

/// Acquires the leader's Lease, does the work, and releases the Lease. When `interrupted` ends, a handover is requested of the work,
/// which then has 3 s.
///
/// # Errors
/// If the work did not start, or did not end in its term.
pub(crate) async fn run_in_own_term<T, W, F>(
    request: OwnTermRequest,
    interrupted: impl Future<Output = ()>,
    work: W,
) -> Result<T, OwnTermError>
where
    T: Send + 'static,
    W: Fn(Term) -> F + Send + Sync + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let OwnTermRequest {
        client,
        identity,
        lease_timeout,
        clock,
    } = request;
    let (identity, placement) = (candidate_identity(identity), CandidatePlacement::EveryNode);
    let elector = LeaderElector::new(LeaderElectionConfig::new(client, identity, placement, clock));
    let stop = CancellationToken::new();
    let (sender, mut outcomes) = mpsc::channel(1);
    let mut terms = elector.terms();
    let work = move |term: Term| {
        let (outcome, sender) = (work(term.clone()), sender.clone());
        async move {
            let outcome = outcome.await;
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
        () = &mut election => return Err(OwnTermError::Ended),
        term = terms.wait_for(Option::is_some) => (term.is_ok(), Err(OwnTermError::Ended)),
        () = sleep_until(lease_deadline) => (false, Err(OwnTermError::NotElected(lease_timeout))),
        () = &mut interrupted => (false, Err(OwnTermError::Interrupted)),
    };
    if is_elected {
        outcome = tokio::select! {
            () = &mut election => return Err(OwnTermError::Ended),
            outcome = outcomes.recv() => outcome.ok_or(OwnTermError::Ended),
            // The outcome so far arrives while the Lease is released.
            () = &mut interrupted => Err(OwnTermError::Ended),
        };
    }
    stop.cancel();
    // The elector bounds the release of the Lease.
    tokio::select! {
        () = &mut election => {}
        Some(late) = outcomes.recv(), if outcome.is_err() => {
            outcome = Ok(late);
            election.await;
        }
    }
    outcome
}
