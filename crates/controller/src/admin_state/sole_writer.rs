//! The one writer of a load balancer for the time of a command: what `headgate verify` writes with.
//!
//! Invariants: the ledger has an intent before the entry is set `Down`, and for as long as it may be. A load balancer of the cluster is
//! written only in a term of the leader and under the shared Lease, so that no leader and no cloud-controller-manager writes
//! meanwhile; what a crash leaves `Down` there, the next leader, `headgate restore` or a `headgate verify` of the same entries restores. No
//! headgate writes other load balancers: their intents are in a ledger of their own, which the next run on one of them reads.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use headgate_azure::{PoolId, WritePermit};
use headgate_core::clock::Clock;
use headgate_core::telemetry::MetricTable;
use headgate_kubernetes::leader::{ArmLock, LockError, LockGuard, LockMetrics, Term};
use kube::Client;
use tokio::time::{Instant, timeout};

use super::ledger::{Ledger, LedgerChange, LedgerEntry, LedgerError, LedgerStage, LedgerStore};
use crate::own_term::{OwnTermError, OwnTermRequest, run_in_own_term};
use crate::pool::EntryKey;

/// A label of the metric of waits; the metrics of this process are not exported.
const LOCK_CALLER: &str = "Verify";
/// For the shared Lease before a write: cloud-controller-manager may hold it for minutes.
const LOCK_TIMEOUT: Duration = Duration::from_mins(5);
/// For the release of the shared Lease at the end. A Lease that is not released expires.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a command wants to be the one writer of.
#[derive(Clone)]
pub struct SoleWriterRequest {
    /// A client of the API server that does not retry by itself.
    pub client: Client,
    /// Whether the load balancer is one of the cluster's, which the leader writes.
    pub is_of_cluster: bool,
    /// For the leader's Lease.
    pub lease_timeout: Duration,
    /// Wall and monotonic time.
    pub clock: Clock,
}

/// Why the command is not the one writer.
#[derive(Debug, thiserror::Error)]
pub enum SoleWriterError {
    /// The work did not begin.
    #[error(transparent)]
    NotBegun(OwnTermError),
    /// The Lease was lost during the work.
    #[error(
        "the leader's Lease was lost; the ledger has what is still Down, and the next leader or `headgate restore` restores it"
    )]
    TermEnded,
    /// Without the ledger nothing is written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// The right to write a load balancer. Clones are the same writer.
#[derive(Clone, Debug)]
pub struct SoleWriter {
    ledger: LedgerStore,
    /// For a load balancer of the cluster.
    leader: Option<(Term, ArmLock)>,
    clock: Clock,
}

/// A part of the work in which no other process writes the load balancer. Dropping it lets them.
#[derive(Debug)]
#[must_use = "dropping it lets others write"]
pub struct WriteTurn(Option<(Term, LockGuard)>);

impl WriteTurn {
    /// The permit of one write.
    pub fn permit(&mut self) -> WritePermit {
        let Some((term, guard)) = &mut self.0 else {
            return WritePermit::new(|| true);
        };
        guard.mark_written();
        let (term, still_held) = (term.clone(), guard.held_check());
        WritePermit::new(move || term.permit().is_ok() && still_held())
    }

    /// Lets others write.
    pub async fn release(self) {
        if let Some((_, guard)) = self.0 {
            guard.release().await;
        }
    }
}

impl SoleWriter {
    /// Waits until no other process writes the load balancer.
    ///
    /// # Errors
    /// If the shared Lease is not acquired in time.
    pub async fn turn(&self) -> Result<WriteTurn, LockError> {
        let Some((term, lock)) = &self.leader else {
            return Ok(WriteTurn(None));
        };
        let guard = lock.acquire(LOCK_CALLER, Instant::now() + LOCK_TIMEOUT).await?;
        Ok(WriteTurn(Some((term.clone(), guard))))
    }

    /// Records that this entry is about to be `Down`.
    ///
    /// # Errors
    /// If the ledger was not written. Then the entry must not be.
    pub async fn record_intent(&self, pool: &PoolId, key: &EntryKey) -> Result<(), LedgerError> {
        self.record(pool, key, Some(LedgerStage::Intended)).await
    }

    /// Records that a read has shown that this entry is not `Down` any more, or not there.
    ///
    /// # Errors
    /// If the ledger was not written.
    pub async fn record_restored(&self, pool: &PoolId, key: &EntryKey) -> Result<(), LedgerError> {
        // The leader removes it later; the other ledger has no leader.
        let stage = self.leader.is_some().then_some(LedgerStage::Restored);
        self.record(pool, key, stage).await
    }

    async fn record(&self, pool: &PoolId, key: &EntryKey, stage: Option<LedgerStage>) -> Result<(), LedgerError> {
        let since = self.clock.now().wall;
        let entry = stage.map(|stage| LedgerEntry { stage, since });
        self.ledger.apply([LedgerChange::new(pool, key, entry)]);
        self.ledger.flush().await
    }

    /// What may be `Down`, by earlier commands or this one.
    #[must_use]
    pub fn ledger(&self) -> Arc<Ledger> {
        self.ledger.ledger()
    }

    /// Whether the load balancer is one of the cluster's.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leader.is_some()
    }
}

/// Becomes the one writer, does the work, and gives the right back. `interrupted` counts until the work begins; the work looks for
/// itself, because restoring takes longer than an interrupted term lasts.
///
/// # Errors
/// If the work did not start, or the Lease was lost during it.
pub async fn run_as_sole_writer<T, W, F>(
    request: SoleWriterRequest,
    interrupted: impl Future<Output = ()>,
    work: W,
) -> Result<T, SoleWriterError>
where
    T: Send + 'static,
    W: Fn(SoleWriter) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = T> + Send + 'static,
{
    if !request.is_of_cluster {
        let ledger = LedgerStore::load_of_verify(request.client).await?;
        let clock = request.clock;
        return Ok(work(SoleWriter {
            ledger,
            leader: None,
            clock,
        })
        .await);
    }
    let term = OwnTermRequest {
        client: request.client.clone(),
        identity: "headgate-verify",
        lease_timeout: request.lease_timeout,
        clock: request.clock.clone(),
    };
    let work = move |term: Term| lead(request.clone(), term, work.clone());
    match run_in_own_term(term, interrupted, work).await {
        Ok(outcome) => outcome,
        Err(OwnTermError::Ended) => Err(SoleWriterError::TermEnded),
        Err(error) => Err(SoleWriterError::NotBegun(error)),
    }
}

/// The work in one term, with the shared Lease.
async fn lead<T, W, F>(request: SoleWriterRequest, term: Term, work: W) -> Result<T, SoleWriterError>
where
    W: Fn(SoleWriter) -> F,
    F: Future<Output = T>,
{
    let SoleWriterRequest { client, clock, .. } = request;
    let ledger = LedgerStore::load(client.clone(), term.clone()).await?;
    let metrics = LockMetrics::register(MetricTable::unregistered());
    let (lock, follow_lock) = ArmLock::new(client, clock.clone(), metrics);
    let mut follow_lock = std::pin::pin!(follow_lock.fuse());
    let leader = Some((term.clone(), lock));
    let outcome = tokio::select! {
        outcome = work(SoleWriter { ledger, leader, clock }) => Ok(outcome),
        () = &mut follow_lock => Err(SoleWriterError::TermEnded),
        () = term.ended() => Err(SoleWriterError::TermEnded),
    };
    let _ = timeout(RELEASE_TIMEOUT, follow_lock).await;
    outcome
}
