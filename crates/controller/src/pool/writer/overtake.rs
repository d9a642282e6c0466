//! An admin state does not wait for a write of members that is under way: it overtakes it (docs/decisions.md 72).
//!
//! ARM does not queue writes of a load balancer. It cancels the operation of the older one, as reported, and keeps what that has
//! written, as the emulator guesses. So the PUT of the admin state is planned from a read that shows the members as accepted.
//! Invariants: only an operation of this writer, of members alone, is superseded. If all pools in the read have the etag of that
//! write, which they share, ARM has accepted nothing else; and it is sent as `If-Match`. Where the etags do not show that, or ARM
//! refuses the PUT, the writer waits for the end of the operation instead; after a refusal, in the rest of the term too.
//!
//! What became of the overtaken members shows in the first read that ARM is not busy in: they cost no retry.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use headgate_azure::{AdminState, ArmError, Etag, LoadBalancerRead, LoadBalancerSummary, Pool, PoolId, WriteOperation};
use tokio::time::{Instant, sleep, sleep_until};

use super::super::edit::{AdminStateChange, PoolEdit};
use super::super::load_balancer_read::read_load_balancer;
use super::super::pool_entry::PoolEntry;
use super::super::view::{LoadBalancerView, PoolView};
use super::attempts::has_no_effect;
use super::batch::{Batch, BatchStep};
use super::planned_from::PlannedFrom;
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
    /// The pool as it was before the write. The guard relies on no member that ARM is only about to add.
    before: Option<Arc<PoolView>>,
    /// Whether ARM has found another version than the read. Then the operation is not superseded any more.
    is_outdated: bool,
}

enum Progress {
    /// ARM has not answered the PUT yet.
    Sent(SentPut),
    Accepted(WriteOperation),
}

impl OvertakenWrite {
    /// A PUT that ARM has not answered.
    pub(super) fn sent(pool: PoolId, replaces: Option<Etag>, put: SentPut) -> Box<Self> {
        Box::new(Self {
            pool,
            replaces,
            progress: Progress::Sent(put),
            before: None,
            is_outdated: false,
        })
    }

    /// A PUT that ARM has accepted.
    pub(super) fn accepted(operation: WriteOperation) -> Box<Self> {
        Box::new(Self {
            pool: operation.pool().clone(),
            replaces: None,
            progress: Progress::Accepted(operation),
            before: None,
            is_outdated: false,
        })
    }

    /// The version of the load balancer while ARM carries out the write.
    pub(super) fn version(&self) -> Option<&Etag> {
        match &self.progress {
            Progress::Accepted(operation) if !self.is_outdated => operation.etag(),
            Progress::Accepted(_) | Progress::Sent(_) => None,
        }
    }

    /// Runs the read, and beside it waits for ARM's answer, if it has not come: for [`MAX_ANSWER_WAIT`] at most, and for the time of
    /// the read. Returns an answer that has come now.
    async fn answered_beside<T>(&mut self, read: impl Future<Output = T>) -> (T, Option<Result<(), ArmError>>) {
        let Progress::Sent(put) = &mut self.progress else {
            return (read.await, None);
        };
        let (mut read, mut late) = (pin!(read), pin!(sleep(MAX_ANSWER_WAIT)));
        let (mut shown, mut answer, mut is_late) = (None, None, false);
        let shown = loop {
            tokio::select! {
                biased;
                accepted = &mut *put, if answer.is_none() => answer = Some(accepted),
                read = &mut read, if shown.is_none() => shown = Some(read),
                () = &mut late, if !is_late => is_late = true,
            }
            if let Some(shown) = shown.take_if(|_| answer.is_some() || is_late) {
                break shown;
            }
        };
        let answer = answer.map(|answer| {
            self.progress = Progress::Accepted(answer?);
            Ok(())
        });
        (shown, answer)
    }

    /// Whether this read shows the pool as it was before the write.
    pub(super) fn is_missing_in<A>(&self, read: &LoadBalancerSummary<A>) -> bool {
        let pool = read.pools.iter().find(|pool| pool.id == self.pool);
        self.replaces.is_some() && pool.is_some_and(|pool| pool.etag == self.replaces)
    }
}

impl Batch {
    /// Those of the edits that may supersede the overtaken write, according to the last read.
    pub(super) fn superseding<E: Editor>(
        &self,
        edits: Vec<PoolEdit>,
        planned_from: PlannedFrom<'_>,
        editor: &E,
    ) -> Vec<PoolEdit> {
        let Some(overtaken) = self.overtaken.as_deref().filter(|_| !self.is_superseding_refused) else {
            return Vec::new();
        };
        if !overtaken
            .version()
            .is_some_and(|version| self.documents.all_have_version(version))
        {
            return Vec::new();
        }
        let edits = edits.into_iter().filter_map(|mut edit| {
            if let Some(before) = overtaken.before.as_ref().filter(|_| edit.pool == overtaken.pool) {
                let planned = editor.plan_pool(before, planned_from.interfaces).unwrap_or_default();
                edit.admin_states.retain(|change| {
                    let is_same = |other: &AdminStateChange| other.key == change.key && other.to == change.to;
                    let is_new = before
                        .entries
                        .iter()
                        .all(|entry| entry.key.as_ref() != Some(&change.key));
                    change.to != AdminState::Down || is_new || planned.iter().any(is_same)
                });
            }
            (!edit.is_members_only()).then_some(edit)
        });
        edits.collect()
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
        let mut deferred_until = state.attempts.ends_deferral_at();
        loop {
            tokio::select! {
                () = editor.changed() => {}
                () = sleep_until(deferred_until.unwrap_or_else(Instant::now)), if deferred_until.is_some() => {}
            }
            let edits = state.plan(editor);
            deferred_until = state.attempts.deferred_until(&edits);
            if deferred_until.is_none() && batch.guard.accepts_writes() && batch.writes_admin_state_of(&edits) {
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
            let (read, answer) = overtaken.answered_beside(read).await;
            match answer {
                // The read is older than the write. The answer has come, so the next read is not.
                Some(Ok(())) if read.as_ref().is_ok_and(|read| overtaken.is_missing_in(&read.summary)) => {}
                None | Some(Ok(())) => return (requested_at, read),
                Some(Err(error)) => {
                    batch.overtaken = None;
                    fail_overtaken(&error, editor);
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
    ) -> ControlFlow<BatchStep, Result<(), ArmError>> {
        let overtaken = batch.overtaken.take();
        let supersedes = overtaken.as_deref().and_then(OvertakenWrite::version).cloned();
        let written = match self.put(pool, edit, supersedes, batch, state, editor).await {
            PutEnd::Complete(written) => written,
            PutEnd::Overtaken(mut overtaken) => {
                let before = state.observation.as_ref().and_then(|known| known.view.pool(&edit.pool));
                overtaken.before = before.cloned();
                batch.overtaken = Some(overtaken);
                editor.overtake_members();
                return ControlFlow::Break(BatchStep::ReadAgain);
            }
        };
        let (Some(mut overtaken), Err(error)) = (overtaken, &written) else {
            return ControlFlow::Continue(written);
        };
        let is_outdated = has_no_effect(error) && error.status().is_some_and(|status| status.as_u16() == 412);
        let is_refused = has_no_effect(error) && error.is_resource_busy();
        if is_refused {
            let load_balancer = &self.load_balancer;
            tracing::info!(%error, %load_balancer, "ARM does not supersede its operations; admin states wait for members in this term");
        }
        batch.is_superseding_refused |= is_refused;
        overtaken.is_outdated |= is_outdated;
        if has_no_effect(error)
            || matches!(
                error,
                ArmError::Throttled { .. } | ArmError::Token(_) | ArmError::NotPermitted
            )
        {
            batch.overtaken = Some(overtaken);
        }
        if is_outdated || is_refused {
            // The members have met nothing but headgate's own operation, or their next PUT shows what else.
            if edit.members.is_some() {
                editor.settle_members(MembersOutcome::NotAttempted);
            }
            return ControlFlow::Break(BatchStep::ReadAgain);
        }
        ControlFlow::Continue(written)
    }

    /// Follows the overtaken write after all: to ARM's answer, or to the end of its operation, or until an admin state is due that may
    /// overtake it. Then the load balancer is read again.
    pub(super) async fn follow_overtaken<E: Editor>(
        &self,
        batch: &mut Batch,
        may_be_overtaken: bool,
        state: &State,
        editor: &mut E,
    ) -> BatchStep {
        let Some(mut overtaken) = batch.overtaken.take() else {
            return BatchStep::ReadAgain;
        };
        let deadline = Instant::now() + WRITE_TIMEOUT;
        let ended = match &mut overtaken.progress {
            Progress::Sent(put) => match put.await {
                Ok(operation) => {
                    overtaken.progress = Progress::Accepted(operation);
                    batch.overtaken = Some(overtaken);
                    return BatchStep::ReadAgain;
                }
                Err(error) => {
                    fail_overtaken(&error, editor);
                    return BatchStep::ReadAgain;
                }
            },
            Progress::Accepted(operation) => tokio::select! {
                biased;
                ended = self.arm.poll_until_done(operation, deadline) => ended,
                () = self.admin_state_due(batch, state, editor), if may_be_overtaken => {
                    batch.overtaken = Some(overtaken);
                    return BatchStep::ReadAgain;
                }
            },
        };
        editor.settle_overtaken_members(match &ended {
            Ok(()) => MembersOutcome::Written,
            Err(error) => MembersOutcome::Failed(error),
        });
        BatchStep::ReadAgain
    }

    /// The batch ends: follows the overtaken write to its end, under the Lease that it was sent with.
    pub(super) async fn end_overtaken<E: Editor>(&self, batch: &mut Batch, editor: &mut E) {
        if let Some(overtaken) = batch.overtaken.take()
            && batch.guard.held_check()()
        {
            let deadline = Instant::now() + WRITE_TIMEOUT;
            let OvertakenWrite { progress, .. } = *overtaken;
            let operation = match progress {
                Progress::Accepted(operation) => Ok(operation),
                Progress::Sent(put) => put.await,
            };
            match operation {
                Ok(operation) => {
                    let ended = self.arm.poll_until_done(&operation, deadline).await;
                    editor.settle_overtaken_members(match &ended {
                        Ok(()) => MembersOutcome::Confirmed,
                        Err(error) => MembersOutcome::Failed(error),
                    });
                }
                Err(error) => fail_overtaken(&error, editor),
            }
        }
        editor.settle_overtaken_members(MembersOutcome::NotAttempted);
    }
}

/// ARM has not accepted the overtaken PUT. Nothing else was recorded in the ledger since then.
fn fail_overtaken<E: Editor>(error: &ArmError, editor: &mut E) {
    if has_no_effect(error) {
        editor.handle_outcome(WriteOutcome::Rejected);
    }
    editor.settle_overtaken_members(MembersOutcome::Failed(error));
}
