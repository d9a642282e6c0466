//! The reads and writes of a run, on the entries that the user named and no others.
//!
//! Invariants: an entry is recorded from before it is set `Down` until a write has restored it, or a read that cannot lag behind the `Down` shows
//! that it is not. [`Session::restore`] leaves nothing that was recorded and not restored, unless Azure refuses it; it is called on every way
//! out. A write that was begun is not abandoned.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use headgate_azure::{AdminState, ArmClient, ArmError, LoadBalancerSummary, Pool, PoolDraft, PoolId, WriteOperation};
use headgate_controller::admin_state::{LedgerError, SoleWriter, WriteTurn};
use headgate_controller::pool::EntryKey;
use headgate_kubernetes::leader::LockError;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::targets::Named;

mod restore;

/// The name of the member that is added and removed again.
pub(super) const SPARE_NAME: &str = "headgate-verify";
/// Time for one read.
pub(super) const READ_TIMEOUT: Duration = Duration::from_mins(1);
/// From a PUT to the end of its operation.
const WRITE_TIMEOUT: Duration = Duration::from_mins(10);
/// How long reads may lag behind writes and the ends of their operations.
const READ_LAG: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// An entry that the run may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) pool: PoolId,
    pub(crate) entry: EntryKey,
}

/// What the user named.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) named: Named,
    /// The address of a member that is added to the first pool and removed again.
    pub(crate) spare: Option<IpAddr>,
    /// Where the load balancer takes connections for the first pool.
    pub(crate) frontend: Option<SocketAddr>,
    /// How long new connections are waited for to stop.
    pub(crate) observe: Duration,
    /// How long there must be none, until they count as stopped.
    pub(crate) quiet: Duration,
}

/// Why a run ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stop {
    #[error("interrupted")]
    Interrupted,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("Azure: {}", code_of(.0))]
    Arm(#[from] ArmError),
    #[error("{0}")]
    Unexpected(String),
}

/// The status and code of an error, without its message.
pub(super) fn code_of(error: &ArmError) -> String {
    match error.status() {
        Some(status) => format!("{} `{}`", status.as_u16(), error.code()),
        None => format!("`{}`", error.code()),
    }
}

/// One read of the load balancer.
pub(super) struct Read {
    pub(super) load_balancer: LoadBalancerSummary<()>,
    pub(super) location: Option<String>,
    /// With their documents.
    pub(super) pools: Vec<Pool>,
}

impl Read {
    pub(super) fn pool(&self, id: &PoolId) -> Result<&Pool, Stop> {
        let pool = self.pools.iter().find(|pool| pool.id == *id);
        pool.ok_or_else(|| Stop::Unexpected(format!("there is no pool {:?}", id.name())))
    }

    /// The admin state of an entry; `None` if it is not there, or has a state that headgate does not know.
    pub(super) fn state(&self, target: &Target) -> Option<AdminState> {
        let pool = self.pools.iter().find(|pool| pool.id == target.pool)?;
        pool.addresses().nth(index_of(pool, &target.entry)?)?.admin_state()
    }
}

/// The index of an entry.
pub(super) fn index_of(pool: &Pool, key: &EntryKey) -> Option<usize> {
    pool.addresses()
        .position(|address| EntryKey::from_address(address).as_ref() == Some(key))
}

/// The document's list of entries.
pub(super) fn entries_mut(pool: &mut Pool) -> Option<&mut Vec<Value>> {
    let list = pool.document.pointer_mut("/properties/loadBalancerBackendAddresses");
    list?.as_array_mut()
}

/// A pool as it is to be written.
pub(super) fn with_state(pool: &Pool, key: &EntryKey, state: AdminState) -> Result<Pool, Stop> {
    let mut pool = pool.clone();
    let index = index_of(&pool, key)
        .ok_or_else(|| Stop::Unexpected(format!("the pool {:?} has no entry {key}", pool.id.name())))?;
    pool.set_admin_state(index, state);
    Ok(pool)
}

/// The means of a run.
pub(super) struct Session {
    pub(super) arm: ArmClient,
    writer: SoleWriter,
    pub(super) plan: Plan,
    interrupted: CancellationToken,
    turn: Option<WriteTurn>,
    /// When each pool was written last, unless that has restored it: until reads do not lag any more, it may have an entry that is `Down`.
    written_at: BTreeMap<PoolId, Instant>,
    /// Codes of the requests that were refused with 403.
    pub(super) refused: Vec<String>,
}

impl Session {
    pub(super) fn new(arm: ArmClient, writer: SoleWriter, plan: Plan, interrupted: CancellationToken) -> Self {
        let mut session = Self {
            arm,
            writer,
            plan,
            interrupted,
            turn: None,
            written_at: BTreeMap::new(),
            refused: Vec::new(),
        };
        // An earlier run may have written until now.
        let recorded = session.recorded().into_keys();
        session.written_at = recorded.map(|pool| (pool, Instant::now())).collect();
        session
    }

    pub(super) async fn read(&self) -> Result<Read, Stop> {
        let deadline = Instant::now() + READ_TIMEOUT;
        let read = self
            .arm
            .get_load_balancer(&self.plan.named.load_balancer, |_| (), deadline)
            .await?;
        let too_large = || Stop::Unexpected("the load balancer has more than 6 MiB".to_owned());
        let pools = read.text.pools(&read.summary.id)?.ok_or_else(too_large)?;
        let document: Value = serde_json::from_slice(read.text.as_bytes()).unwrap_or_default();
        Ok(Read {
            load_balancer: read.summary,
            location: document["location"].as_str().map(str::to_owned),
            pools: pools.into_iter().map(PoolDraft::into_pool).collect(),
        })
    }

    /// Reads until `is_shown`, because reads may lag; `None` if they never show it.
    pub(super) async fn read_until(&self, is_shown: impl Fn(&Read) -> bool) -> Result<Option<Read>, Stop> {
        let deadline = Instant::now() + READ_LAG;
        loop {
            let read = self.read().await?;
            if is_shown(&read) {
                return Ok(Some(read));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            self.pause(POLL_INTERVAL).await?;
        }
    }

    pub(super) async fn read_pool(&self, pool: &PoolId) -> Result<Pool, ArmError> {
        self.arm.get_pool(pool, Instant::now() + READ_TIMEOUT).await
    }

    /// Records entries that are about to be written.
    pub(super) async fn record(&self, target: &Target) -> Result<(), Stop> {
        Ok(self.writer.record_intent(&target.pool, &target.entry).await?)
    }

    /// Sends a pool, also while ARM is busy with it.
    pub(super) async fn put(&mut self, pool: &Pool) -> Result<Result<WriteOperation, ArmError>, Stop> {
        if self.interrupted.is_cancelled() {
            return Err(Stop::Interrupted);
        }
        self.send(pool).await
    }

    async fn send(&mut self, pool: &Pool) -> Result<Result<WriteOperation, ArmError>, Stop> {
        let mut pool = pool.clone();
        // A PUT does not have it, and the client sends none to a pool that is busy.
        if let Some(state) = pool.document.pointer_mut("/properties/provisioningState") {
            *state = json!("Succeeded");
        }
        let turn = match &mut self.turn {
            Some(turn) => turn,
            None => self.turn.insert(self.writer.turn().await?),
        };
        let permit = turn.permit();
        let deadline = Instant::now() + WRITE_TIMEOUT;
        let sent = match pool.encode() {
            Ok(encoded) => self.arm.put_pool(encoded, permit, deadline).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &sent {
            self.note(error);
            if !error.may_have_been_accepted() {
                return Ok(sent);
            }
            // What it wrote is what a later read shows; where the end is not seen, that is all there is to know.
            let _ = self.arm.poll_until_settled(&pool.id, deadline).await;
        }
        self.written_at.insert(pool.id, Instant::now());
        Ok(sent)
    }

    /// Notes that the last write of a pool has restored it.
    pub(super) fn note_restored(&mut self, pool: &PoolId) {
        self.written_at.remove(pool);
    }

    /// Whether an operation runs; `None` if nothing but the pool shows it.
    pub(super) async fn read_status(&mut self, operation: &WriteOperation) -> Result<Option<bool>, ArmError> {
        let read = self.arm.read_operation(operation, Instant::now() + READ_TIMEOUT).await;
        if let Err(error) = &read {
            self.note(error);
        }
        read
    }

    /// Remembers a refusal for the question about the role.
    fn note(&mut self, error: &ArmError) {
        if error.status() == Some(StatusCode::FORBIDDEN) {
            self.refused.push(code_of(error));
        }
    }

    /// Waits for the end of an operation.
    pub(super) async fn wait(&self, operation: &WriteOperation) -> Result<Result<(), ArmError>, Stop> {
        let end = self.arm.poll_until_done(operation, Instant::now() + WRITE_TIMEOUT);
        tokio::select! {
            end = end => Ok(end),
            () = self.interrupted.cancelled() => Err(Stop::Interrupted),
        }
    }

    pub(super) async fn pause(&self, time: Duration) -> Result<(), Stop> {
        tokio::select! {
            () = sleep(time) => Ok(()),
            () = self.interrupted.cancelled() => Err(Stop::Interrupted),
        }
    }

    /// Lets other processes write the load balancer.
    pub(super) async fn end_turn(&mut self) {
        if let Some(turn) = self.turn.take() {
            turn.release().await;
        }
    }
}
