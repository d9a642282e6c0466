//! The part of the writer's work under the shared Lease: pool after pool, each from a read of its own.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{ArmError, EncodedPool, ErrorClass, PoolId};
use headgate_core::telemetry::ReconcileSpan;
use headgate_kubernetes::leader::{LockGuard, PermitError};
use tokio::time::{Instant, sleep};

use super::super::edit::{AppliedEdit, PoolEdit};
use super::super::load_balancer_read::read_load_balancer;
use super::super::view::LoadBalancerView;
use super::attempts::{AttemptError, Attempts, concerns_one_pool};
use super::documents::{Document, Documents};
use super::single_pools::SinglePools;
use super::written::{ReadBack, WrittenEdits};
use super::{IntentNotRecorded, Observation, Outcome, Phase, Planner, PoolWriter, READ_TIMEOUT, State};

/// Between reads that are to show a write: ARM may be late.
const READ_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// Writes in one batch that are repeated at once because another writer was faster.
const MAX_STALE_WRITES: u32 = 2;

/// The writes under one hold of the shared Lease. A pool whose write is rejected delays no other pool.
pub(super) struct Batch {
    guard: LockGuard,
    began: Instant,
    /// The span of the attempt.
    pub(super) span: ReconcileSpan,
    /// What was left to write at the last plan.
    plan: Vec<PoolEdit>,
    /// What the last read left for a write.
    pub(super) documents: Documents,
    /// The edits that were rejected; their pools are not written again in this batch.
    rejected: HashMap<PoolId, PoolEdit>,
    /// Whether an edit is left out that ARM has refused in an earlier attempt.
    has_refused: bool,
    rejection: Option<AttemptError>,
    /// Why an edit could not be recorded; from then on the batch writes only what needs no record.
    unrecorded: Option<IntentNotRecorded>,
    /// Whether the last edit could not be recorded, in this batch or the one before. What needs no record is written first then.
    is_recording_failing: bool,
    stale_writes: u32,
    has_written: bool,
}

/// What is written next.
enum NextWrite {
    Write(Box<PoolWrite>),
    /// Nothing that is open changes anything.
    Nothing,
    /// Unknown: a pool has changed since the load balancer was read.
    ReadAgain,
    /// Unknown: the last read was of other pools.
    ReadPool(PoolId),
}

/// A pool with its changes.
struct PoolWrite {
    edit: PoolEdit,
    pool: Result<EncodedPool, ArmError>,
    applied: AppliedEdit,
}

/// How a batch goes on after one plan.
enum BatchStep {
    /// The load balancer is read again.
    ReadAgain,
    /// Only these pools of it are read again.
    ReadPools(SinglePools),
    /// Not at all: nothing is left that this batch can write.
    Complete,
}

impl Batch {
    pub(super) fn new(guard: LockGuard, span: ReconcileSpan, plan: Vec<PoolEdit>, is_recording_failing: bool) -> Self {
        Self {
            guard,
            began: Instant::now(),
            span,
            plan,
            documents: Documents::default(),
            rejected: HashMap::new(),
            has_refused: false,
            rejection: None,
            unrecorded: None,
            is_recording_failing,
            stale_writes: 0,
            has_written: false,
        }
    }

    /// Returns the edits that are neither rejected nor ignored, and whether each waits for another read.
    fn check_read_backs(
        &mut self,
        edits: Vec<PoolEdit>,
        written: &mut WrittenEdits,
        attempts: &Attempts,
        releases: u64,
    ) -> Vec<(PoolEdit, bool)> {
        let mut checked = Vec::new();
        self.has_refused = false;
        for edit in edits {
            match written.check(&edit, self.began, releases) {
                ReadBack::Ignored => {
                    let error = ArmError::ReadBackMismatch(edit.pool.to_string());
                    self.span.fail(error.code(), &error);
                    self.plan.retain(|planned| planned.pool != edit.pool);
                    checked.extend(edit.members_only().map(|members| (members, false)));
                }
                _ if self.rejected.contains_key(&edit.pool) => {}
                _ if attempts.refusal(&edit).is_some() => {
                    self.has_refused = true;
                    checked.extend(edit.members_only().map(|members| (members, false)));
                }
                read_back => checked.push((edit, read_back == ReadBack::Awaited)),
            }
        }
        checked
    }

    /// The edit to write next. Giving back never waits for a record that fails: an edit with both parts is split then.
    fn next_edit(&self, open: &[PoolEdit], attempts: &Attempts) -> Option<PoolEdit> {
        if !self.is_recording_failing {
            return open.first().cloned();
        }
        let mut without_downs = open.iter().filter_map(PoolEdit::without_downs);
        let without_downs = without_downs.find(|edit| attempts.refusal(edit).is_none());
        without_downs.or_else(|| open.first().filter(|_| self.unrecorded.is_none()).cloned())
    }

    /// Why something of the plan is left. It decides when the next attempt begins: what could not be recorded waits for no refused pool,
    /// which is left out of that attempt.
    fn take_error(&mut self, attempts: &mut Attempts) -> Option<AttemptError> {
        let rejection = self.rejection.take();
        let Some(unrecorded) = self.unrecorded.take() else {
            return rejection.or_else(|| self.has_refused.then_some(AttemptError::Refused));
        };
        if let Some(rejection) = rejection {
            attempts.refuse(self.rejected.values().cloned(), &rejection);
        }
        Some(AttemptError::IntentNotRecorded(unrecorded))
    }

    /// An edit could not be recorded: what needs no record is written first, but once. Returns the error that ends the attempt then.
    fn fail_record(&mut self, error: IntentNotRecorded, attempts: &mut Attempts) -> Option<AttemptError> {
        self.unrecorded = Some(error);
        let was_failing = std::mem::replace(&mut self.is_recording_failing, true);
        was_failing.then(|| self.take_error(attempts)).flatten()
    }

    fn reject(&mut self, edit: PoolEdit, error: AttemptError) {
        if !self.rejection.as_ref().is_some_and(may_pass_soon) {
            self.rejection = Some(error);
        }
        self.rejected.insert(edit.pool.clone(), edit);
    }
}

fn may_pass_soon(error: &AttemptError) -> bool {
    matches!(error, AttemptError::Arm(error) if error.class() != ErrorClass::Terminal)
}

/// Ends once this hold of the Lease admits no write any more, if none was sent: others wait for it.
async fn unused(guard: &LockGuard, has_written: bool) {
    while has_written || guard.accepts_writes() {
        sleep(READ_BACK_INTERVAL).await;
    }
}

impl PoolWriter {
    /// Reads the load balancer, for the next plan of the batch.
    pub(super) async fn read<P: Planner>(&self, mut batch: Box<Batch>, state: &mut State, planner: &mut P) -> Phase {
        let known = state
            .observation
            .as_ref()
            .map(|observation| Arc::clone(&observation.view));
        // The pools of the ledger are among those that the list showed.
        let recorded = BTreeSet::new();
        // The documents of the read before are not needed any more.
        batch.documents = Documents::default();
        let read = async {
            loop {
                let requested_at = Instant::now();
                let deadline = requested_at + READ_TIMEOUT;
                let read = read_load_balancer(&self.arm, &self.load_balancer, known.as_deref(), &recorded, deadline);
                let read = read.await;
                let shown = read.iter().flat_map(|read| &read.summary.pools);
                let shown = shown.map(|pool| (&pool.id, pool.etag.as_ref()));
                if !state.replaced.contain_any(shown) {
                    return (requested_at, read);
                }
                sleep(READ_BACK_INTERVAL).await;
            }
        };
        let read = tokio::select! {
            read = read => Some(read),
            () = unused(&batch.guard, batch.has_written) => None,
        };
        let are_members_due = batch.plan.iter().any(|edit| edit.members.is_some());
        let is_unused = are_members_due && !batch.has_written && !batch.guard.accepts_writes();
        state.unused_holds = if is_unused { state.unused_holds + 1 } else { 0 };
        let Some((requested_at, read)) = read else {
            let closed = AttemptError::HoldClosed { has_written: false };
            return self.end_batch(batch, Err(closed), state, planner).await;
        };
        let view = match read {
            Ok(read) => {
                batch.documents = Documents::new(&read.summary, read.text);
                let view = LoadBalancerView::from_read(read.summary, read.is_assembled);
                match &known {
                    Some(known) => view.sharing_pools(known),
                    None => view,
                }
            }
            // It was deleted; the next list shows that, too.
            Err(error) if error.is_about_missing_resource() => LoadBalancerView::deleted(self.load_balancer.clone()),
            Err(error) => {
                planner.handle_outcome(Outcome::ReadFailed(&error));
                return self.end_batch(batch, Err(error.into()), state, planner).await;
            }
        };
        let observation = Observation {
            requested_at,
            view: Arc::new(view),
        };
        planner.handle_outcome(Outcome::Read(&observation));
        state.observe(observation);
        Phase::Writing(batch)
    }

    /// Writes the first pool of the plan and reads again, until the plan is empty. Admin states are planned from whole reads only.
    pub(super) async fn continue_batch<P: Planner>(
        &self,
        mut batch: Box<Batch>,
        edits: Vec<PoolEdit>,
        state: &mut State,
        planner: &mut P,
    ) -> Phase {
        let edits = if state.attempts.deferred_until(&edits).is_some() {
            edits.into_iter().filter_map(PoolEdit::members_only).collect()
        } else {
            edits
        };
        let step = self.write_first(&mut batch, edits, state, planner).await;
        match step {
            Ok(BatchStep::ReadAgain) => self.read(batch, state, planner).await,
            Ok(BatchStep::ReadPools(pools)) => self.read_single_pools(batch, pools, state, planner).await,
            Ok(BatchStep::Complete) => self.end_batch(batch, Ok(()), state, planner).await,
            Err(error) => self.end_batch(batch, Err(error), state, planner).await,
        }
    }

    async fn end_batch<P: Planner>(
        &self,
        mut batch: Box<Batch>,
        result: Result<(), AttemptError>,
        state: &mut State,
        planner: &mut P,
    ) -> Phase {
        // The text of a load balancer is megabytes, and the wait that follows may last seconds.
        batch.documents = Documents::default();
        state.is_recording_failing = batch.is_recording_failing;
        batch.guard.release().await;
        self.end_attempt(batch.plan, result, &batch.span, state, planner).await
    }

    async fn write_first<P: Planner>(
        &self,
        batch: &mut Batch,
        edits: Vec<PoolEdit>,
        state: &mut State,
        planner: &mut P,
    ) -> Result<BatchStep, AttemptError> {
        if !edits.is_empty() && state.written.any_since(batch.began) && !batch.guard.held_check()() {
            // What a read does not show now may be undone by another writer.
            return Err(AttemptError::LeaseLost);
        }
        if batch.documents.are_single() && !edits.iter().all(PoolEdit::is_members_only) {
            return Ok(BatchStep::ReadAgain);
        }
        if !edits.is_empty() {
            batch.plan.clone_from(&edits);
        }
        let releases = *self.lock.released_by_others().borrow();
        let edits = batch.check_read_backs(edits, &mut state.written, &state.attempts, releases);
        let is_read_awaited = edits.iter().any(|(_, is_awaited)| *is_awaited);
        let open = edits.into_iter().filter(|(_, is_awaited)| !is_awaited);
        let mut open: Vec<_> = open.map(|(edit, _)| edit).collect();
        state.attempts.take_failed_last(&mut open);
        if batch.next_edit(&open, &state.attempts).is_some() {
            if !batch.guard.accepts_writes() {
                let has_written = batch.has_written;
                return Err(AttemptError::HoldClosed { has_written });
            }
            let observation = state.observation.as_ref();
            if observation.is_some_and(|observation| observation.view.is_busy) {
                return Err(AttemptError::Busy(None));
            }
            if let Err(PermitError::HandingOver { .. }) = self.may_write() {
                return Err(AttemptError::HandingOver);
            }
        }
        let PoolWrite { edit, pool, applied } = match self.next_write(batch, &mut open, state, planner).await? {
            NextWrite::Write(write) => *write,
            NextWrite::ReadAgain => return Ok(BatchStep::ReadAgain),
            NextWrite::ReadPool(pool) => return Ok(BatchStep::ReadPools(SinglePools::only(pool))),
            // The whole load balancer shows what others wrote meanwhile.
            NextWrite::Nothing if batch.documents.are_single() => return Ok(BatchStep::ReadAgain),
            NextWrite::Nothing if is_read_awaited => {
                sleep(READ_BACK_INTERVAL).await;
                return Ok(BatchStep::ReadAgain);
            }
            NextWrite::Nothing => {
                let error = batch.take_error(&mut state.attempts);
                return error.map_or(Ok(BatchStep::Complete), Err);
            }
        };
        batch.documents.forget();
        let sets_down = edit.sets_down() || !applied.added_downs.is_empty();
        let with_members = edit.members.is_some();
        match planner.record_intent(&edit, &applied.added_downs).await {
            Ok(()) => batch.is_recording_failing &= !sets_down,
            Err(IntentNotRecorded::Outdated) => return Ok(BatchStep::ReadAgain),
            Err(_) if edit.is_members_only() => return Ok(BatchStep::ReadAgain),
            Err(error) => {
                let error = batch.fail_record(error, &mut state.attempts);
                return error.map_or(Ok(BatchStep::ReadAgain), Err);
            }
        }
        let etag = pool.as_ref().ok().map(|pool| pool.replaced().clone());
        batch.has_written = true;
        let written = self.put(pool, &edit, &mut batch.guard, planner).await;
        state.replaced.adopt(&edit.pool, etag, &written);
        planner.handle_outcome(Outcome::Written(&edit, written.as_ref().copied()));
        match written {
            Ok(()) => {
                state.attempts.adopt_success(&edit.pool);
                if !edit.is_members_only() {
                    state.written.insert(edit, releases);
                } else if let Some(pools) = SinglePools::between(&edit.pool, &open, &batch.documents) {
                    return Ok(BatchStep::ReadPools(pools));
                }
            }
            Err(error @ ArmError::NotPermitted { .. }) => {
                // After a jump of the clocks, the next renewal decides.
                self.term.clocks_agree().await;
                return Err(match self.may_write() {
                    Ok(()) => AttemptError::LeaseLost,
                    Err(PermitError::HandingOver { .. }) => AttemptError::HandingOver,
                    Err(_) => error.into(),
                });
            }
            // ARM would refuse the other pools, too, unless it is about an interface of this one.
            Err(error) if error.is_resource_busy() => {
                state.attempts.fail_pool(edit.pool.clone());
                return Err(AttemptError::Busy(Some((edit.pool, error))));
            }
            // The members are settled, so the next plan is without them: other pools and the admin states go on.
            Err(error)
                if edit.is_members_only() && !error.is_throttled() || with_members && concerns_one_pool(&error) => {}
            Err(error) if state.replaced.is_refused_for_long(&edit.pool, &error) => {
                batch.reject(edit, AttemptError::VersionRefused(error));
            }
            Err(error) if error.class() == ErrorClass::Stale && batch.stale_writes < MAX_STALE_WRITES => {
                batch.stale_writes += 1;
            }
            Err(error) if concerns_one_pool(&error) => batch.reject(edit, error.into()),
            Err(error) => {
                state.attempts.fail_pool(edit.pool);
                return Err(error.into());
            }
        }
        Ok(BatchStep::ReadAgain)
    }

    /// Takes the document of the next edit and applies the edit to it. An edit that turns out to change nothing is done.
    async fn next_write<P: Planner>(
        &self,
        batch: &mut Batch,
        open: &mut Vec<PoolEdit>,
        state: &mut State,
        planner: &mut P,
    ) -> Result<NextWrite, AttemptError> {
        while let Some(mut edit) = batch.next_edit(open, &state.attempts) {
            let deadline = Instant::now() + READ_TIMEOUT;
            let read = tokio::select! {
                read = batch.documents.take(&self.arm, &edit.pool, deadline) => read,
                () = unused(&batch.guard, batch.has_written) => {
                    // As a read that fails: what ends each attempt must not come first in each.
                    planner.handle_outcome(Outcome::PoolNotRead(&edit, &ArmError::DeadlineExceeded));
                    if !edit.is_members_only() {
                        state.attempts.fail_pool(edit.pool);
                    }
                    return Err(AttemptError::HoldClosed { has_written: false });
                }
            };
            let read = match read {
                Ok(read) => read,
                Err(error) => {
                    planner.handle_outcome(Outcome::PoolNotRead(&edit, &error));
                    if !edit.is_members_only() {
                        state.attempts.fail_pool(edit.pool);
                        return Err(error.into());
                    }
                    if !batch.guard.accepts_writes() {
                        let has_written = batch.has_written;
                        return Err(AttemptError::HoldClosed { has_written });
                    }
                    // Its members are settled; those of other pools go on.
                    open.retain(|other| other.pool != edit.pool);
                    continue;
                }
            };
            let mut pool = match read {
                Document::Unchanged(pool) => pool,
                Document::Missing => return Ok(NextWrite::Nothing),
                Document::NotRead => return Ok(NextWrite::ReadPool(edit.pool)),
                Document::Changed if batch.stale_writes < MAX_STALE_WRITES => {
                    batch.stale_writes += 1;
                    return Ok(NextWrite::ReadAgain);
                }
                // Another writer works on it.
                Document::Changed => {
                    state.attempts.fail_pool(edit.pool);
                    return Err(AttemptError::Busy(None));
                }
            };
            let is_members_only = edit.is_members_only();
            if let Some(members) = &mut edit.members {
                edit.admin_states = std::mem::take(&mut members.admin_states);
            }
            let applied = edit.apply(&mut pool);
            let without_members = edit.members.is_some() && !applied.has_member_changes;
            if without_members {
                planner.handle_outcome(Outcome::MembersNotWritten(&edit, applied.rejected.as_ref()));
                edit.members = None;
            }
            // Admin states that are not due by themselves are no reason for a PUT.
            if applied.is_changed() && !(without_members && is_members_only) {
                let pool = pool.encode();
                return Ok(NextWrite::Write(Box::new(PoolWrite { edit, pool, applied })));
            }
            open.retain(|other| other.pool != edit.pool);
        }
        Ok(NextWrite::Nothing)
    }
}
