//! One PUT of a pool and its operation, in a span of its own: the calls to ARM are its children.

use std::collections::BTreeSet;
use std::time::Duration;

use headgate_azure::{ArmError, EncodedPool, PoolId, WriteOperation, WritePermit};
use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled};
use headgate_kubernetes::leader::LockGuard;
use tokio::time::Instant;

use super::super::edit::PoolEdit;
use super::{HANDOVER_WRITE_WINDOW, Outcome, Planner, PoolWriter};

/// From a PUT to the end of its operation. ARM's operations take seconds; the Lease expires after 15 min, and no write outlasts it.
const WRITE_TIMEOUT: Duration = Duration::from_mins(10);

impl PoolWriter {
    /// Sends one PUT and follows its operation to the end.
    pub(super) async fn put<P: Planner>(
        &self,
        pool: Result<EncodedPool, ArmError>,
        edit: &PoolEdit,
        guard: &mut LockGuard,
        planner: &mut P,
    ) -> Result<(), ArmError> {
        let span = self.pool_span(edit);
        let outcome = span.run(self.put_and_wait(pool, edit, guard, planner)).await;
        if let Err(error) = &outcome {
            span.fail(error.code(), error);
        }
        outcome
    }

    async fn put_and_wait<P: Planner>(
        &self,
        pool: Result<EncodedPool, ArmError>,
        edit: &PoolEdit,
        guard: &mut LockGuard,
        planner: &mut P,
    ) -> Result<(), ArmError> {
        let (term, still_held) = (self.term.clone(), guard.held_check());
        let permit = WritePermit::new(move || term.permit_within(HANDOVER_WRITE_WINDOW).is_ok() && still_held());
        let deadline = guard.write_deadline(WRITE_TIMEOUT);
        let (request, source) = (self.labels.request, self.labels.source);
        // The planner measures updates of members, whose attempts are no outcomes.
        let operation = (!edit.is_members_only()).then(|| {
            let metrics = self.arm.metrics();
            metrics.start_operation(request, self.load_balancer.group(), source)
        });
        let outcome = match guard.write(self.send(&edit.pool, pool, permit, deadline)).await {
            Ok(accepted) => {
                planner.handle_outcome(Outcome::Accepted(edit));
                self.arm.poll_until_done(&accepted, deadline).await
            }
            Err(error) => Err(error),
        };
        guard.end_operation();
        if !outcome.as_ref().is_err_and(ArmError::is_not_sent) {
            if let Some(operation) = operation {
                operation.finish(outcome.is_ok());
            }
            for change in &edit.admin_states {
                self.arm.metrics().count_admin_state_change(change.to, outcome.is_ok());
            }
        }
        outcome
    }

    /// Sends one PUT, until ARM has accepted it or will not any more.
    async fn send(
        &self,
        id: &PoolId,
        pool: Result<EncodedPool, ArmError>,
        permit: WritePermit,
        deadline: Instant,
    ) -> Result<WriteOperation, ArmError> {
        let sent = match pool {
            Ok(pool) => self.arm.put_pool(pool, permit, deadline).await,
            Err(error) => Err(error),
        };
        if sent.as_ref().is_err_and(ArmError::may_have_been_accepted) {
            // The Lease stays held while ARM may carry out this write. What it wrote is what the next read shows.
            let settled = self.arm.poll_until_settled(id, deadline).await;
            settled.unwrap_or_else(
                |error| tracing::info!(%error, pool = %id, "end of a write not seen; the pool is read again"),
            );
        }
        sent
    }

    /// The span of one PUT. It names the Node whose admin state changes, or counts the Nodes if there are several or none.
    fn pool_span(&self, edit: &PoolEdit) -> ReconcileSpan {
        ReconcileSpan::start(Reconciled::Pool, || {
            let nodes: BTreeSet<_> = edit
                .admin_states
                .iter()
                .map(|change| change.node.name.as_str())
                .collect();
            let node = nodes.first().copied().filter(|_| nodes.len() == 1);
            Reconcile {
                term: Some(self.term.number()),
                node,
                nodes: node.is_none().then_some(nodes.len()),
                load_balancer: Some(self.load_balancer.name()),
                pool: Some(edit.pool.name()),
                ..Reconcile::default()
            }
        })
    }
}
