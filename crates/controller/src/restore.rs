//! Giving back what headgate set `Down`, by a person's word: for when headgate is being removed, or is gone.
//!
//! Nobody else writes meanwhile: it stands for election like any agent and works in a term of its own, so that every
//! write needs that term's permit. It takes the Lease from nobody who lives. What is given back is `admin_state`'s
//! matter.

use std::convert::Infallible;
use std::time::Duration;

use crate::admin_state::{self, Reached, Restored, Restoring};
use headgate_clock::Clock;
use headgate_leader::{CandidatePlacement, LeaderElector, LeaderMetrics, LeaseName, LockMetrics};
use headgate_node::NodeReport;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// What is to be given back, and how long that may take.
pub struct Order {
    /// A client that does not retry of itself.
    pub client: kube::Client,
    /// ARM.
    pub reached: Reached,
    /// The Nodes; none: all.
    pub nodes: Vec<String>,
    /// How long the leader's Lease is waited for.
    pub wait: Duration,
    /// How long giving back may take.
    pub within: Duration,
    /// Its time.
    pub clock: Clock,
}

/// Why nothing was given back, or nobody knows what was.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// Somebody leads.
    #[error(
        "the leader's Lease was not had within {} s: somebody leads, or it may not be written; `headgate status` says who",
        .0.as_secs()
    )]
    NotElected(Duration),
    /// It could not be tried.
    #[error(transparent)]
    Failed(#[from] admin_state::RestoreError),
    /// The term ended in the middle.
    #[error("the term ended before everything was given back; run it again, nothing is lost")]
    TermEnded,
}

/// Gives back, once the Lease is had; ends early where `interrupted` does.
///
/// # Errors
/// Where it could not be tried, or was broken off.
pub async fn give_back(order: Order, interrupted: impl Future<Output = ()>) -> Result<Restored, OrderError> {
    let Order {
        client,
        reached,
        nodes,
        wait,
        within,
        clock,
    } = order;
    let (_reports, reports) = watch::channel(NodeReport::initial(None, &[], clock.now()));
    let elector = LeaderElector::new(headgate_leader::LeaderElectionConfig {
        client: client.clone(),
        lease: LeaseName::default(),
        identity: headgate_leader::candidate_identity("headgate-restore"),
        placement: CandidatePlacement::EveryNode,
        reports,
        metrics: LeaderMetrics::default(),
        clock: clock.clone(),
    });
    let parts = Restoring {
        client,
        reached,
        only: (!nodes.is_empty()).then(|| nodes.into_iter().collect()),
        within,
        lock_metrics: LockMetrics::register(&mut Registry::default()),
        clock,
    };
    let stop = CancellationToken::new();
    let (told, mut outcomes) = mpsc::channel(1);
    let mut terms = elector.terms();
    let work = move |term: headgate_leader::Term| {
        let (parts, told) = (parts.clone(), told.clone());
        async move {
            let outcome = admin_state::restore(&term, &parts).await;
            // Whoever does not listen any more has been interrupted.
            let _ = told.send(outcome).await;
            // Ending now would count as a failure of the leader's work.
            term.handover_requested().await;
            Ok::<(), Infallible>(())
        }
    };
    let mut running = std::pin::pin!(elector.run(stop.clone(), work));
    let patience = Instant::now() + wait;
    let mut interrupted = std::pin::pin!(interrupted);
    let (elected, mut outcome) = tokio::select! {
        () = &mut running => return Err(OrderError::TermEnded),
        term = terms.wait_for(Option::is_some) => (term.is_ok(), Err(OrderError::TermEnded)),
        () = sleep_until(patience) => (false, Err(OrderError::NotElected(wait))),
        () = &mut interrupted => (false, Err(admin_state::RestoreError::Interrupted.into())),
    };
    if elected {
        outcome = tokio::select! {
            () = &mut running => return Err(OrderError::TermEnded),
            told = outcomes.recv() => told.map_or(Err(OrderError::TermEnded), |told| Ok(told?)),
            // What was given back by then is told at the end.
            () = &mut interrupted => Err(OrderError::TermEnded),
        };
    }
    stop.cancel();
    // The Lease is given back, within the elector's bounds.
    tokio::select! {
        () = &mut running => {}
        Some(told) = outcomes.recv(), if outcome.is_err() => {
            outcome = told.map_err(OrderError::from);
            running.await;
        }
    }
    outcome
}
