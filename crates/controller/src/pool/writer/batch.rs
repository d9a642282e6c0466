//! One batch of writes under the Lease, pool after pool, and what each one's failure says.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{ArmError, Class, Permit, Pool, PoolId};
use headgate_leader::LockGuard;
use tokio::time::Instant;

use super::super::edit::PoolEdit;
use super::super::inventory::View;
use super::{Editor, ONE_READ, Outcome, Round, Stop, Writer};

/// For one write, from its PUT to its end: ARM's operations take seconds, and the Lease lasts 15 min.
const ONE_WRITE: Duration = Duration::from_mins(10);
/// Fresh reads at once in one batch, after writes that were overtaken.
const STALE_AT_ONCE: u32 = 2;

impl Writer {
    /// Reads, writes the first pool of the plan, reads again, until a read leaves nothing to be written. A pool that is
    /// refused keeps no other one waiting.
    pub(super) async fn batch<E: Editor>(
        &mut self,
        editor: &mut E,
        round: &mut Round,
        entered: &mut LockGuard,
    ) -> Result<(), Stop> {
        let mut written: HashMap<PoolId, PoolEdit> = HashMap::new();
        let mut refused = HashSet::new();
        let mut first_refusal = None;
        let mut stale = 0;
        loop {
            let asked_at = Instant::now();
            let (view, pools) = match self.arm.load_balancer(&self.id, asked_at + ONE_READ).await {
                // It is gone; the next list says so too.
                Err(error) if error.class() == Class::Stale => (View::gone(self.id.clone()), Vec::new()),
                read => View::with_pools(read?),
            };
            let mut edits = editor.plan(&view, &round.interfaces);
            let busy = view.busy;
            round.seen = Some((asked_at, Arc::new(view)));
            edits.retain(|edit| !refused.contains(&edit.pool));
            if edits.is_empty() {
                return first_refusal.map_or(Ok(()), |error| Err(Stop::Arm(error)));
            }
            if !entered.accepts_writes() {
                return Err(Stop::Closed);
            }
            if busy {
                return Err(Stop::Busy);
            }
            let edit = edits.swap_remove(0);
            let Some(mut pool) = pools.into_iter().find(|pool| pool.id == edit.pool) else {
                return Ok(());
            };
            if written.remove(&edit.pool).is_some_and(|written| written.is_like(&edit)) {
                first_refusal.get_or_insert(ArmError::NotShown(edit.pool.to_string()));
                refused.insert(edit.pool);
                continue;
            }
            edit.apply(&mut pool);
            editor.record(&edit).await.map_err(Stop::NotRecorded)?;
            match self.put(&pool, editor, &edit, entered).await {
                Ok(()) => {
                    written.insert(edit.pool.clone(), edit);
                }
                Err(error) if error.class() == Class::Stale && stale < STALE_AT_ONCE => stale += 1,
                // The Lease was lost while the write waited to be sent: somebody else has his turn, and then it is tried anew.
                Err(ArmError::NotPermitted) if self.term.permit().is_ok() => return Err(Stop::Again),
                Err(error) if is_the_pools(&error) => {
                    first_refusal.get_or_insert(error);
                    refused.insert(edit.pool);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One write, to its end.
    async fn put<E: Editor>(
        &self,
        pool: &Pool,
        editor: &mut E,
        edit: &PoolEdit,
        entered: &mut LockGuard,
    ) -> Result<(), ArmError> {
        let (term, still_held) = (self.term.clone(), entered.held_check());
        let permit = Permit::new(move || term.permit().is_ok() && still_held());
        let deadline = Instant::now() + ONE_WRITE;
        let (request, source) = (self.labels.request, self.labels.source);
        let operation = self.arm.metrics().operation(request, self.id.group(), source);
        entered.mark_written();
        let outcome = match self.arm.put_pool(pool, permit, deadline).await {
            Ok(accepted) => {
                editor.outcome(Outcome::Accepted(edit.clone()));
                self.arm.follow(&accepted, deadline).await
            }
            Err(error) => {
                if surely_not_done(&error) {
                    editor.outcome(Outcome::Refused);
                }
                Err(error)
            }
        };
        operation.done(outcome.is_ok());
        outcome
    }
}

/// Whether a failure says something about the one pool only, as far as one can tell.
fn is_the_pools(error: &ArmError) -> bool {
    match error {
        ArmError::Refused { status, .. } => status.is_client_error() && !matches!(status.as_u16(), 401 | 408 | 429),
        ArmError::Operation { .. } => true,
        _ => false,
    }
}

/// Whether a write that failed like this had no effect and will have none.
fn surely_not_done(error: &ArmError) -> bool {
    match error {
        ArmError::Refused { status, maybe_done, .. } => status.is_client_error() && !maybe_done,
        ArmError::Busy(_) => true,
        _ => false,
    }
}
