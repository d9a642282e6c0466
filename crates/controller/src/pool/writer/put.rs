//! One PUT of a pool and its operation, in a span of its own: the calls to ARM are its children.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::FutureExt as _;
use headgate_azure::{ArmError, Etag, Pool, WritePermit};
use headgate_telemetry::{Reconcile, ReconcileSpan, Reconciled};
use tokio::time::Instant;

use super::super::edit::PoolEdit;
use super::attempts::has_no_effect;
use super::batch::Batch;
use super::overtake::OvertakenWrite;
use super::{Editor, PoolWriter, State, WriteOutcome};

/// From a PUT to the end of its operation. ARM's operations take seconds; the Lease expires after 15 min.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_mins(10);

/// How the writer's part in a write has ended.
pub(super) enum PutEnd {
    /// With the end of the operation, or before there was one.
    Complete(Result<(), ArmError>),
    /// An admin state is due, and does not wait for these members.
    Overtaken(Box<OvertakenWrite>),
}

impl PoolWriter {
    /// Sends one PUT and follows its operation to the end; members alone only until an admin state is due. The PUT may supersede the
    /// operation that has made the version `supersedes`.
    pub(super) async fn put<E: Editor>(
        &self,
        pool: Pool,
        edit: &PoolEdit,
        supersedes: Option<Etag>,
        batch: &mut Batch,
        state: &State,
        editor: &mut E,
    ) -> PutEnd {
        let span = self.pool_span(edit);
        batch.guard.mark_written();
        let (term, still_held) = (self.term.clone(), batch.guard.held_check());
        let permit = WritePermit::new(move || term.permit().is_ok() && still_held()).superseding(supersedes);
        let end = if edit.is_members_only() {
            span.run(self.put_members(pool, permit, batch, state, editor)).await
        } else {
            let write = self.put_admin_states(pool, edit, permit, editor);
            PutEnd::Complete(span.run(write).await)
        };
        if let PutEnd::Complete(Err(error)) = &end {
            span.fail(error.code(), error);
        }
        end
    }

    async fn put_members<E: Editor>(
        &self,
        pool: Pool,
        permit: WritePermit,
        batch: &mut Batch,
        state: &State,
        editor: &mut E,
    ) -> PutEnd {
        let deadline = Instant::now() + WRITE_TIMEOUT;
        let (id, replaces, arm) = (pool.id.clone(), pool.etag.clone(), self.arm.clone());
        let mut put = async move { arm.put_pool(&pool, permit, deadline).await }.boxed();
        let sent = tokio::select! {
            biased;
            sent = &mut put => sent,
            () = self.admin_state_due(batch, state, editor) => return PutEnd::Overtaken(OvertakenWrite::sent(id, replaces, put)),
        };
        // It has the document, which may be large, and the operation may take minutes.
        drop(put);
        let operation = match sent {
            Ok(operation) => operation,
            Err(error) => {
                if has_no_effect(&error) {
                    editor.handle_outcome(WriteOutcome::Rejected);
                }
                return PutEnd::Complete(Err(error));
            }
        };
        tokio::select! {
            biased;
            ended = self.arm.poll_until_done(&operation, deadline) => PutEnd::Complete(ended),
            () = self.admin_state_due(batch, state, editor) => PutEnd::Overtaken(OvertakenWrite::accepted(operation)),
        }
    }

    async fn put_admin_states<E: Editor>(
        &self,
        pool: Pool,
        edit: &PoolEdit,
        permit: WritePermit,
        editor: &mut E,
    ) -> Result<(), ArmError> {
        let deadline = Instant::now() + WRITE_TIMEOUT;
        let (request, source) = (self.labels.request, self.labels.source);
        let metrics = self.arm.metrics();
        let operation = metrics.start_operation(request, self.load_balancer.group(), source);
        let sent = self.arm.put_pool(&pool, permit, deadline).await;
        // It may be large, and the operation may take minutes.
        drop(pool);
        let outcome = match sent {
            Ok(accepted) => {
                editor.handle_outcome(WriteOutcome::Accepted(edit.clone()));
                self.arm.poll_until_done(&accepted, deadline).await
            }
            Err(error) => {
                if has_no_effect(&error) {
                    editor.handle_outcome(WriteOutcome::Rejected);
                }
                Err(error)
            }
        };
        operation.finish(outcome.is_ok());
        for change in &edit.admin_states {
            metrics.count_admin_state_change(change.to, outcome.is_ok());
        }
        outcome
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
