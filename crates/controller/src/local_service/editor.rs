//! The second source of edits for a load balancer's writer: due updates of Local Services' pools, joined to the edits of
//! admin states pool by pool.
//!
//! Invariants: a batch takes part in one PUT at most. It is taken out of the updater right before that PUT, and settled with
//! the outcome of its own PUT, or of the read that it needed. A batch that was taken and has no outcome returns to the queue
//! when the editor is dropped.

use std::collections::HashMap;
use std::sync::Arc;

use headgate_azure::{ArmError, LoadBalancerId, Metrics as ArmMetrics, OperationTimer, PoolId};
use headgate_local_pools::{
    Batch, BatchOutcome, DesiredMembers, Entry, Failure, MemberDifference, NodeIndex, PoolKey, compare,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::failure::batch_outcome;
use super::future_pool::FuturePool;
use super::observation::{convert_load_balancer, entry_address};
use super::reporter::Reporter;
use super::watch::SharedUpdater;
use crate::pool::{
    Editor, EntryKey, IntentNotRecorded, InterfaceCache, LoadBalancerView, MemberChange, MembersOutcome, PoolEdit,
    PoolView, WriteOutcome,
};

/// The labels that cloud-provider-azure gives the operation metrics of its own updater.
const OPERATION_REQUEST: &str = "services_local_update_backend_pool";
const OPERATION_SOURCE: &str = "local_service_backend_pool_updater";

/// What the editors of all load balancers share.
#[derive(Clone, Debug)]
pub struct MemberSource {
    /// The updater that has the due batches.
    pub updater: SharedUpdater,
    /// Marked as changed when batches become due.
    pub due: watch::Receiver<()>,
    /// Records events and metrics.
    pub reporter: Reporter,
    /// Measures the operations.
    pub operations: ArmMetrics,
    /// The id of the cluster's virtual network, for pools that have none.
    pub virtual_network: Option<Arc<str>>,
}

/// An editor of admin states, and the members that join its edits.
pub struct JoinedEditor<E> {
    admin_states: E,
    members: Option<MemberEditor>,
}

impl<E> JoinedEditor<E> {
    /// Joins the members of one load balancer, if there is a source, to the edits of `admin_states`.
    pub fn new(admin_states: E, load_balancer: &LoadBalancerId, source: Option<MemberSource>) -> Self {
        let members = source.map(|source| MemberEditor {
            source,
            load_balancer: load_balancer.clone(),
            taken: None,
        });
        Self { admin_states, members }
    }
}

impl<E: Editor> Editor for JoinedEditor<E> {
    async fn changed(&mut self) {
        let Some(members) = &mut self.members else {
            return self.admin_states.changed().await;
        };
        tokio::select! {
            () = self.admin_states.changed() => {}
            () = members.batches_due() => {}
        }
    }

    fn plan(&mut self, view: &LoadBalancerView, interfaces: &InterfaceCache) -> Vec<PoolEdit> {
        let mut edits = self.admin_states.plan(view, interfaces);
        if let Some(members) = &mut self.members {
            members.join(view, &mut edits);
        }
        edits
    }

    fn plans_from(&mut self, requested_at: Instant) {
        self.admin_states.plans_from(requested_at);
    }

    async fn record_intent(&mut self, edit: &PoolEdit, added_downs: &[EntryKey]) -> Result<(), IntentNotRecorded> {
        self.admin_states.record_intent(edit, added_downs).await
    }

    fn handle_outcome(&mut self, outcome: WriteOutcome) {
        self.admin_states.handle_outcome(outcome);
    }

    fn observe(&mut self, view: &LoadBalancerView, requested_at: Instant) {
        if let Some(members) = &mut self.members {
            members.observe(view, requested_at);
        }
    }

    fn join_members(&mut self, edit: &mut PoolEdit, pool: Option<&PoolView>, interfaces: &InterfaceCache) {
        edit.members = self.members.as_mut().and_then(|members| members.take(&edit.pool));
        let (Some(members), Some(pool)) = (&mut edit.members, pool) else {
            return;
        };
        let Some(future) = FuturePool::new(pool, members) else {
            return;
        };
        if let Some(as_will_be) = self.admin_states.plan_pool(&future.view, interfaces) {
            let as_read = std::mem::take(&mut edit.admin_states);
            edit.admin_states = future.combine(as_read, as_will_be, members);
        }
    }

    fn settle_members(&mut self, outcome: MembersOutcome<'_>) {
        if let Some(members) = &mut self.members {
            members.settle(outcome);
        }
    }

    fn read_failed(&mut self, error: &ArmError) {
        if let Some(members) = &mut self.members {
            members.read_failed(error);
        }
    }

    fn return_members(&mut self) {
        if let Some(members) = &self.members {
            members.return_due();
        }
    }
}

/// The members of one load balancer's pools.
struct MemberEditor {
    source: MemberSource,
    load_balancer: LoadBalancerId,
    taken: Option<TakenBatch>,
}

/// A batch that was taken for a PUT and has no outcome yet.
struct TakenBatch {
    batch: Batch,
    pool: PoolId,
    desired: DesiredMembers,
    nodes: Arc<NodeIndex>,
    operation: OperationTimer,
    /// Whether the operation of the PUT has succeeded, so that the next read decides.
    is_written: bool,
}

impl MemberEditor {
    async fn batches_due(&mut self) {
        if self.source.due.changed().await.is_err() {
            // The updater ends with the term, and so does this task.
            std::future::pending::<()>().await;
        }
    }

    fn key(&self, pool: &PoolId) -> PoolKey {
        PoolKey::new(self.load_balancer.name(), pool.name())
    }

    /// Adds the due batches of the pools in this view to the edits.
    fn join(&mut self, view: &LoadBalancerView, edits: &mut Vec<PoolEdit>) {
        self.source.due.mark_unchanged();
        let updater = self.source.updater.lock();
        let due = updater.due();
        if due.pools(self.load_balancer.name()).next().is_none() {
            return;
        }
        let places = edits.iter().enumerate();
        let places: HashMap<_, _> = places.map(|(place, edit)| (edit.pool.clone(), place)).collect();
        for pool in &view.pools {
            let Some(batch) = due.batch(&self.key(&pool.id)) else {
                continue;
            };
            let members = Some(self.change(batch.desired_members(), updater.nodes()));
            match places.get(&pool.id).and_then(|place| edits.get_mut(*place)) {
                Some(edit) => edit.members = members,
                None => edits.push(PoolEdit {
                    pool: pool.id.clone(),
                    admin_states: Vec::new(),
                    members,
                }),
            }
        }
    }

    fn change(&self, desired: DesiredMembers, nodes: Arc<NodeIndex>) -> MemberChange {
        MemberChange {
            desired,
            nodes,
            virtual_network: self.source.virtual_network.clone(),
        }
    }

    fn take(&mut self, pool: &PoolId) -> Option<MemberChange> {
        let (batch, nodes) = {
            let mut updater = self.source.updater.lock();
            (updater.take_batch(&self.key(pool))?, updater.nodes())
        };
        let desired = batch.desired_members();
        let group = self.load_balancer.group();
        let operation = self
            .source
            .operations
            .start_operation(OPERATION_REQUEST, group, OPERATION_SOURCE);
        self.taken = Some(TakenBatch {
            batch,
            pool: pool.clone(),
            desired: desired.clone(),
            nodes: Arc::clone(&nodes),
            operation,
            is_written: false,
        });
        Some(self.change(desired, nodes))
    }

    fn settle(&mut self, outcome: MembersOutcome<'_>) {
        let Some(mut taken) = self.taken.take() else {
            return;
        };
        let outcome = match outcome {
            MembersOutcome::Written => {
                taken.is_written = true;
                self.taken = Some(taken);
                return;
            }
            MembersOutcome::Unchanged => BatchOutcome::Unchanged,
            MembersOutcome::NotAttempted => BatchOutcome::NotAttempted { not_before: None },
            MembersOutcome::Failed(error) => batch_outcome(error, Instant::now()),
            MembersOutcome::Rejected(reason) => BatchOutcome::Failed {
                failure: Failure::Terminal,
                error: reason.to_string(),
            },
        };
        self.report(taken.batch, &outcome, Some(taken.operation));
    }

    /// A read under the Lease: it confirms what was written, and shows which pools are gone.
    fn observe(&mut self, view: &LoadBalancerView, requested_at: Instant) {
        let read = convert_load_balancer(view, requested_at);
        self.source.updater.lock().observe_one(read);
        if let Some(taken) = self.taken.take_if(|taken| taken.is_written) {
            let pool = view.pools.iter().find(|pool| pool.id == taken.pool);
            let outcome = if pool.is_none_or(|pool| has_members(pool, &taken.desired, &taken.nodes)) {
                BatchOutcome::Updated
            } else {
                BatchOutcome::Failed {
                    failure: Failure::Retriable { not_before: None },
                    error: format!("ARM reported Succeeded, but {} has other members", taken.pool),
                }
            };
            self.report(taken.batch, &outcome, Some(taken.operation));
        }
        let shown = |key: &PoolKey| view.pools.iter().any(|pool| self.key(&pool.id) == *key);
        for key in self.due_pools().into_iter().filter(|key| !shown(key)) {
            self.settle_due(
                &key,
                &BatchOutcome::Failed {
                    failure: Failure::Missing,
                    error: format!("the backend pool {key} does not exist"),
                },
            );
        }
    }

    fn read_failed(&mut self, error: &ArmError) {
        if let Some(taken) = self.taken.take_if(|taken| taken.is_written) {
            // An operation that succeeded proves nothing about the members: only a read does.
            let outcome = BatchOutcome::Failed {
                failure: Failure::Retriable { not_before: None },
                error: format!("ARM reported Succeeded, but {} could not be read: {error}", taken.pool),
            };
            self.report(taken.batch, &outcome, Some(taken.operation));
        }
        let outcome = batch_outcome(error, Instant::now());
        for key in self.due_pools() {
            self.settle_due(&key, &outcome);
        }
    }

    fn return_due(&self) {
        let mut updater = self.source.updater.lock();
        updater.return_batches(self.load_balancer.name(), Instant::now());
        self.source.reporter.publish(&updater);
    }

    fn due_pools(&self) -> Vec<PoolKey> {
        let updater = self.source.updater.lock();
        let pools = updater.due().pools(self.load_balancer.name());
        pools.cloned().collect()
    }

    fn settle_due(&self, key: &PoolKey, outcome: &BatchOutcome) {
        let batch = self.source.updater.lock().take_batch(key);
        if let Some(batch) = batch {
            let metrics = &self.source.operations;
            let operation = metrics.start_operation(OPERATION_REQUEST, self.load_balancer.group(), OPERATION_SOURCE);
            self.report(batch, outcome, Some(operation));
        }
    }

    /// Settles a batch and reports what follows.
    fn report(&self, batch: Batch, outcome: &BatchOutcome, operation: Option<OperationTimer>) {
        let mut updater = self.source.updater.lock();
        let settlement = updater.settle(batch, outcome, Instant::now());
        if let Some(operation) = operation.filter(|_| settlement.counters.succeeded + settlement.counters.failed > 0) {
            operation.finish(settlement.counters.failed == 0);
        }
        self.source.reporter.report(&updater, settlement.events);
        self.source.reporter.publish(&updater);
    }
}

impl Drop for MemberEditor {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            let mut updater = self.source.updater.lock();
            updater.settle(
                taken.batch,
                &BatchOutcome::NotAttempted { not_before: None },
                Instant::now(),
            );
        }
        self.return_due();
    }
}

/// Whether the pool, as it was read, has exactly these members besides foreign entries.
fn has_members(pool: &PoolView, desired: &DesiredMembers, nodes: &NodeIndex) -> bool {
    let entries = pool.entries.iter().map(|entry| Entry {
        name: None,
        address: entry_address(entry),
    });
    compare(entries, desired, nodes)
        .as_ref()
        .is_ok_and(MemberDifference::is_empty)
}
