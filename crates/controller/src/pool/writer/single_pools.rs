//! Reads of single pools between two writes of members, instead of the whole load balancer.
//!
//! One tick may update hundreds of pools of one load balancer, and the whole document of a large one has many megabytes.
//! Invariants: each PUT is still planned from a read of its pool that follows the PUT before, with the etag of that read, and is not
//! sent while ARM is busy with the load balancer; each write counts only when a read of its pool shows it. Admin states are
//! planned from whole reads, and a batch ends with one. Whatever such a read does not answer, a whole one does.
//!
//! Pools of one load balancer share its etag. So the pool that was written and the one that is written next have the same etag, or
//! another write was accepted in between; then the state of the load balancer is read as well.

use std::sync::Arc;

use headgate_azure::{ArmError, Pool, PoolId, ProvisioningState};
use tokio::time::Instant;

use super::super::edit::PoolEdit;
use super::batch::Batch;
use super::documents::Documents;
use super::{Observation, Outcome, Phase, Planner, PoolWriter, READ_TIMEOUT, State};

/// The pools that are read between two writes.
pub(super) struct SinglePools {
    /// The one that was written.
    written: Option<PoolId>,
    /// The one that is written next.
    next: PoolId,
}

impl SinglePools {
    /// Those between the write of this pool and the next write of the plan; `None` if the whole load balancer is to be read.
    pub(super) fn between(written: &PoolId, open: &[PoolEdit], documents: &Documents) -> Option<Self> {
        if !documents.are_of_large_load_balancer() || !open.iter().all(PoolEdit::is_members_only) {
            return None;
        }
        let next = open.iter().find(|edit| edit.pool != *written)?;
        Some(Self {
            written: Some(written.clone()),
            next: next.pool.clone(),
        })
    }

    /// The pool that is written next, after another one turned out to need no write.
    pub(super) fn only(next: PoolId) -> Self {
        Self { written: None, next }
    }
}

impl PoolWriter {
    /// Reads these pools, for the next plan of the batch.
    pub(super) async fn read_single_pools<P: Planner>(
        &self,
        mut batch: Box<Batch>,
        pools: SinglePools,
        state: &mut State,
        planner: &mut P,
    ) -> Phase {
        let (written, next, load_balancer_state) = match self.request_single_pools(&pools).await {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, load_balancer = %self.load_balancer, "pools not read alone; the whole load balancer is read");
                return self.read(batch, state, planner).await;
            }
        };
        let read: Vec<&Pool> = written.iter().chain([&next]).collect();
        let shown = read.iter().map(|pool| (&pool.id, pool.etag.as_ref()));
        if state.replaced.contain_any(shown) {
            return self.read(batch, state, planner).await;
        }
        let known = state.observation.as_ref();
        let seen =
            known.and_then(|known| Some((known.requested_at, known.view.with_pools(&read, load_balancer_state)?)));
        let Some((requested_at, view)) = seen else {
            return self.read(batch, state, planner).await;
        };
        batch.documents = Documents::Single(Some(Box::new(next)));
        // The other pools are as the whole read showed them.
        let observation = Observation {
            requested_at,
            view: Arc::new(view),
        };
        planner.handle_outcome(Outcome::Read(&observation));
        state.observe(observation);
        Phase::Writing(batch)
    }

    /// Reads the pools, and last the state of the load balancer, unless the pools show that nothing else was written.
    async fn request_single_pools(
        &self,
        pools: &SinglePools,
    ) -> Result<(Option<Pool>, Pool, ProvisioningState), ArmError> {
        let deadline = Instant::now() + READ_TIMEOUT;
        let written = match &pools.written {
            Some(written) => Some(self.arm.get_pool(written, deadline).await?),
            None => None,
        };
        let next = self.arm.get_pool(&pools.next, deadline).await?;
        let is_alone = written
            .as_ref()
            .is_some_and(|written| written.etag.is_some() && written.etag == next.etag);
        let state = if is_alone {
            ProvisioningState::Settled
        } else {
            self.arm.get_load_balancer_state(&self.load_balancer, deadline).await?
        };
        Ok((written, next, state))
    }
}
