//! An admin state does not wait for a write of members that is under way: it overtakes it (docs/decisions.md 72).
//!
//! ARM does not queue writes of a load balancer. It cancels the operation of the older one, as reported, and keeps what that has
//! written, as the emulator guesses. So the PUT of the admin state is planned from a read that shows the members as accepted.
//! Invariants: only an operation of this writer, of members alone, is superseded. The read's etag proves that ARM works on nothing
//! else, and is sent as `If-Match`. Where the etag does not prove it, or ARM refuses the PUT, the writer waits for the end of the
//! operation instead; after a refusal, in the rest of the term too.
//!
//! What became of the overtaken members shows in the first read that ARM is not busy in: they cost no retry.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use futures::future::{BoxFuture, join};
use headgate_azure::{ArmError, Etag, LoadBalancerRead, LoadBalancerSummary, Pool, PoolId, WriteOperation};
use tokio::time::{Instant, timeout};

use super::super::edit::PoolEdit;
use super::super::load_balancer_read::read_load_balancer;
use super::super::pool_entry::PoolEntry;
use super::super::view::LoadBalancerView;
use super::attempts::{AttemptError, has_no_effect};
use super::batch::{Batch, BatchStep};
use super::put::{PutEnd, WRITE_TIMEOUT};
use super::{Editor, MembersOutcome, PoolWriter, READ_TIMEOUT, State, WriteOutcome};

/// An admin state that is due waits for ARM's answer to a PUT of members for so long, beside its own read: without the answer, its
/// own PUT may need a second try. ARM usually answers within 1 s.
const MAX_ANSWER_WAIT: Duration = Duration::from_secs(1);

/// A PUT of members under way, up to ARM's answer.
pub(super) type SentPut = BoxFuture<'static, Result<WriteOperation, ArmError>>;

/// A write of members that an admin state does not wait for.
pub(super) struct OvertakenWrite {
    pool: PoolId,
    /// The version that the PUT is to replace.
    replaces: Option<Etag>,
    progress: Progress,
}

enum Progress {
    /// ARM has not answered the PUT yet.
    Sent(SentPut),
    Accepted(WriteOperation),
    /// The answer is not awaited any more.
    Unknown,
}

impl OvertakenWrite {
    /// A PUT that ARM has not answered.
    pub(super) fn sent(pool: PoolId, replaces: Option<Etag>, put: SentPut) -> Self {
        Self {
            pool,
            replaces,
            progress: Progress::Sent(put),
        }
    }

    /// A PUT that ARM has accepted.
    pub(super) fn accepted(operation: WriteOperation) -> Self {
        Self {
            pool: operation.pool().clone(),
            replaces: None,
            progress: Progress::Accepted(operation),
        }
    }

    /// The version of the load balancer while ARM carries out the write.
    pub(super) fn version(&self) -> Option<&Etag> {
        match &self.progress {
            Progress::Accepted(operation) => operation.etag(),
            Progress::Sent(_) | Progress::Unknown => None,
        }
    }

    /// Waits for ARM's answer, if it has not come, but not for long. Returns an answer that has come now.
    pub(super) async fn answered(&mut self) -> Option<Result<(), ArmError>> {
        let Progress::Sent(put) = &mut self.progress else {
            return None;
        };
        let answer = timeout(MAX_ANSWER_WAIT, put).await.ok();
        self.progress = Progress::Unknown;
        answer.map(|answer| {
            self.progress = Progress::Accepted(answer?);
            Ok(())
        })
    }

    /// Whether this read shows the pool as it was before the write.
    pub(super) fn is_ahead_of<A>(&self, read: &LoadBalancerSummary<A>) -> bool {
        let pool = read.pools.iter().find(|pool| pool.id == self.pool);
        self.replaces.is_some() && pool.is_some_and(|pool| pool.etag == self.replaces)
    }
}

impl Batch {
    /// Whether an admin state of this pool may supersede the overtaken write, according to the last read.
    pub(super) fn may_supersede(&self, pool: &PoolId) -> bool {
        let version = self.overtaken.as_ref().and_then(OvertakenWrite::version);
        !self.is_superseding_refused && version.is_some() && version == self.documents.etag(pool)
    }

    /// Whether the batch would write an admin state of these edits now.
    fn writes_admin_state_of(&self, edits: &[PoolEdit]) -> bool {
        edits.iter().any(|edit| {
            let written = self.written.get(&edit.pool);
            let is_awaited = written.is_some_and(|written| written.edit.is_equivalent(edit));
            !edit.is_members_only() && !is_awaited && !self.rejected.contains(&edit.pool)
        })
    }
}

impl PoolWriter {
    /// Waits until an admin state is due that need not wait for members. (A batch is not `Sync`, so a shared borrow could not be held
    /// here.)
    pub(super) async fn admin_state_due<E: Editor>(&self, batch: &mut Batch, state: &State, editor: &mut E) {
        if !self.supersedes_members || batch.is_superseding_refused {
            return std::future::pending().await;
        }
        loop {
            editor.changed().await;
            let edits = state.plan(editor);
            let is_deferred = state.attempts.deferred_until(&edits).is_some();
            if !is_deferred && batch.guard.accepts_writes() && batch.writes_admin_state_of(&edits) {
                return;
            }
        }
    }

    /// Reads the load balancer, and beside that waits for ARM's answer to an overtaken PUT. Returns when the read was sent, too.
    pub(super) async fn read_beside_overtaken<E: Editor>(
        &self,
        batch: &mut Batch,
        known: Option<&LoadBalancerView>,
        editor: &mut E,
    ) -> (Instant, Result<LoadBalancerRead<PoolEntry>, ArmError>) {
        // The pools of the ledger are among those that the list showed.
        let recorded = BTreeSet::new();
        loop {
            let requested_at = Instant::now();
            let deadline = requested_at + READ_TIMEOUT;
            let read = read_load_balancer(&self.arm, &self.load_balancer, known, &recorded, deadline);
            let Some(overtaken) = &mut batch.overtaken else {
                return (requested_at, read.await);
            };
            let (read, answer) = join(read, overtaken.answered()).await;
            match answer {
                // The answer has come, so the next read is not ahead of it.
                Some(Ok(())) if read.as_ref().is_ok_and(|read| overtaken.is_ahead_of(&read.summary)) => {}
                None | Some(Ok(())) => return (requested_at, read),
                Some(Err(error)) => {
                    batch.overtaken = None;
                    if has_no_effect(&error) {
                        editor.handle_outcome(WriteOutcome::Rejected);
                    }
                    editor.settle_overtaken_members(MembersOutcome::Failed(&error));
                    return (requested_at, read);
                }
            }
        }
    }

    /// Sends a PUT, which may supersede an overtaken write. Breaks with the next step, if the PUT is itself overtaken or is refused for
    /// the sake of the overtaken write.
    pub(super) async fn put_over_overtaken<E: Editor>(
        &self,
        pool: Pool,
        edit: &PoolEdit,
        batch: &mut Batch,
        state: &State,
        editor: &mut E,
    ) -> Result<ControlFlow<BatchStep, Result<(), ArmError>>, AttemptError> {
        let overtaken = batch.overtaken.take();
        let supersedes = overtaken.as_ref().and_then(OvertakenWrite::version).cloned();
        let written = match self.put(pool, edit, supersedes, batch, state, editor).await {
            PutEnd::Complete(written) => written,
            PutEnd::Overtaken(overtaken) => {
                batch.overtaken = Some(overtaken);
                editor.overtake_members();
                return Ok(ControlFlow::Break(BatchStep::ReadAgain));
            }
        };
        let (Some(_), Err(error)) = (&overtaken, &written) else {
            return Ok(ControlFlow::Continue(written));
        };
        if has_no_effect(error) {
            batch.overtaken = overtaken;
        }
        if has_no_effect(error) && is_refused(error) {
            let load_balancer = &self.load_balancer;
            tracing::info!(%error, %load_balancer, "ARM does not supersede its operations; admin states wait for members in this term");
            batch.is_superseding_refused = true;
            if edit.members.is_some() {
                editor.settle_members(MembersOutcome::NotAttempted);
            }
            let step = self.follow_overtaken(batch, false, state, editor).await?;
            return Ok(ControlFlow::Break(step));
        }
        Ok(ControlFlow::Continue(written))
    }

    /// Follows the overtaken write to its end after all, or until an admin state is due that may overtake it. Then the load balancer
    /// is read again. If ARM has not answered the PUT, ARM may be busy with anything.
    pub(super) async fn follow_overtaken<E: Editor>(
        &self,
        batch: &mut Batch,
        may_be_overtaken: bool,
        state: &State,
        editor: &mut E,
    ) -> Result<BatchStep, AttemptError> {
        let Some(Progress::Accepted(operation)) = batch.overtaken.take().map(|overtaken| overtaken.progress) else {
            return Err(AttemptError::Busy);
        };
        let deadline = Instant::now() + WRITE_TIMEOUT;
        tokio::select! {
            biased;
            ended = self.arm.poll_until_done(&operation, deadline) => editor.settle_overtaken_members(match &ended {
                Ok(()) => MembersOutcome::Written,
                Err(error) => MembersOutcome::Failed(error),
            }),
            () = self.admin_state_due(batch, state, editor), if may_be_overtaken => {
                batch.overtaken = Some(OvertakenWrite::accepted(operation));
            }
        }
        Ok(BatchStep::ReadAgain)
    }
}

/// Whether ARM refuses a write because it carries out another one.
fn is_refused(error: &ArmError) -> bool {
    error
        .status()
        .is_some_and(|status| matches!(status.as_u16(), 409 | 429))
}
