//! The due updates of Local Services' pools in one load balancer, for its planner: what its pools are to have, and what became of it.
//!
//! Invariants: an update takes part in one PUT at most. It is taken out of the updater right before that PUT, and settled with
//! the outcome of its own PUT, or of the read that it needed. An update that was taken and has no outcome returns to the queue
//! when this is dropped.

use std::sync::Arc;

use headgate_azure::{ArmError, LoadBalancerId, Metrics as ArmMetrics, OperationTimer, PoolId};
use headgate_core::changed;
use tokio::sync::watch;
use tokio::time::Instant;

use super::reporter::Reporter;
use super::watch::SharedUpdater;
use crate::local_pools::failure::update_outcome;
use crate::local_pools::{
    DesiredMembers, Entry, Failure, MemberDifference, MemberRejection, NodeIndex, Operation, PoolKey, UpdateOutcome,
    compare,
};
use crate::pool::{HOLD_UNUSED, LoadBalancerView, MemberChange, Observation, Outcome, PoolEdit, PoolView};

/// The labels that cloud-provider-azure gives the operation metrics of its own updater.
const OPERATION_REQUEST: &str = "services_local_update_backend_pool";
const OPERATION_SOURCE: &str = "local_service_backend_pool_updater";

/// What the members of all load balancers share.
#[derive(Clone, Debug)]
pub(crate) struct MemberSource {
    /// The updater that has the due updates.
    pub(crate) updater: SharedUpdater,
    /// Marked as changed when updates become due.
    pub(crate) due: watch::Receiver<()>,
    /// Records events and metrics.
    pub(crate) reporter: Reporter,
    /// Measures the operations.
    pub(crate) operations: ArmMetrics,
    /// The id of the cluster's virtual network, for pools that have none.
    pub(crate) virtual_network: Option<Arc<str>>,
}

/// The members of one load balancer's pools.
pub(crate) struct Members {
    source: MemberSource,
    load_balancer: LoadBalancerId,
    /// The update of the PUT under way, or of the last one until a read shows its members.
    writing: Option<Writing>,
}

/// An update that was taken for a PUT and has no outcome yet.
struct Writing {
    operation: Operation,
    pool: PoolId,
    nodes: Arc<NodeIndex>,
    timer: OperationTimer,
    /// Whether the operation of the PUT has succeeded, so that the next read decides.
    is_written: bool,
}

impl Members {
    /// The members of this load balancer.
    pub(crate) fn new(source: MemberSource, load_balancer: LoadBalancerId) -> Self {
        Self {
            source,
            load_balancer,
            writing: None,
        }
    }

    /// Waits until updates become due.
    pub(crate) async fn changed(&mut self) {
        changed(&mut self.source.due).await;
    }

    fn key(&self, pool: &PoolId) -> PoolKey {
        PoolKey::new(self.load_balancer.name(), pool.name())
    }

    /// What the pools in this view are to have, as far as that is due.
    pub(crate) fn due(&mut self, view: &LoadBalancerView) -> Vec<(Arc<PoolView>, MemberChange)> {
        self.source.due.mark_unchanged();
        let mut updater = self.source.updater.lock();
        updater.refresh_due(self.load_balancer.name());
        if updater.due().is_empty() {
            return Vec::new();
        }
        let change = |pool: &Arc<PoolView>| {
            let change = MemberChange {
                desired: updater.due().get(&self.key(&pool.id))?.members.clone(),
                nodes: updater.nodes(),
                virtual_network: self.source.virtual_network.clone(),
                admin_states: Vec::new(),
            };
            Some((Arc::clone(pool), change))
        };
        view.pools.iter().filter_map(change).collect()
    }

    /// Takes the update of this edit, which is about to be written. Returns whether it is due as it was planned.
    pub(crate) fn take(&mut self, edit: &PoolEdit) -> bool {
        let Some(members) = &edit.members else { return true };
        let operation = self.source.updater.lock().take_due(&self.key(&edit.pool));
        let Some(operation) = operation else { return false };
        let is_as_planned = operation.members.has_same_addresses(&members.desired);
        let group = self.load_balancer.group();
        let operations = &self.source.operations;
        self.writing = Some(Writing {
            operation,
            pool: edit.pool.clone(),
            nodes: Arc::clone(&members.nodes),
            timer: operations.start_operation(OPERATION_REQUEST, group, OPERATION_SOURCE),
            is_written: false,
        });
        if !is_as_planned {
            self.give_back();
        }
        is_as_planned
    }

    /// The update that was taken was not written, for a reason that says nothing about it.
    pub(crate) fn give_back(&mut self) {
        self.settle(&UpdateOutcome::NotAttempted { not_before: None });
    }

    /// Settles what this outcome decides.
    pub(crate) fn handle_outcome(&mut self, outcome: Outcome<'_>) {
        match outcome {
            Outcome::Read(observation) => self.observe(observation),
            Outcome::ReadFailed(error) => self.read_failed(error),
            Outcome::PoolNotRead(edit, error) => {
                self.settle_due(&self.key(&edit.pool), &update_outcome(error, Instant::now()));
            }
            Outcome::HoldsUnused => self.settle_all_due(&retriable(HOLD_UNUSED.to_owned())),
            Outcome::MembersNotWritten(edit, rejected) => {
                self.settle_due(&self.key(&edit.pool), &not_written(rejected));
            }
            Outcome::Written(edit, result) if edit.members.is_some() => match result {
                Ok(()) => {
                    if let Some(writing) = &mut self.writing {
                        writing.is_written = true;
                    }
                }
                Err(error) => {
                    let now = Instant::now();
                    self.settle(&update_outcome(error, now));
                    if error.is_throttled() {
                        // ARM throttles the writes of the other pools, too.
                        let not_before = error.retry_after(now).map(|wait| now + wait);
                        self.settle_all_due(&UpdateOutcome::NotAttempted { not_before });
                    }
                }
            },
            // Members that are due and were not taken wait for their next tick.
            Outcome::AttemptFailed(_) => self.return_due(),
            Outcome::Written(..) | Outcome::Accepted(_) | Outcome::Ignored(_) | Outcome::Recovered => {}
        }
    }

    /// A read under the Lease: it confirms what was written, and shows which pools are gone.
    fn observe(&mut self, observation: &Observation) {
        let view = &observation.view;
        self.source.updater.lock().observe_one(observation.clone());
        if let Some(writing) = self.writing.as_ref().filter(|writing| writing.is_written) {
            let pool = view.pools.iter().find(|pool| pool.id == writing.pool);
            let outcome = if pool.is_none_or(|pool| has_members(pool, &writing.operation.members, &writing.nodes)) {
                UpdateOutcome::Updated
            } else {
                retriable(format!(
                    "ARM reported Succeeded, but {} has other members",
                    writing.pool
                ))
            };
            self.settle(&outcome);
        }
        let shown = |key: &PoolKey| view.pools.iter().any(|pool| self.key(&pool.id) == *key);
        for key in self.due_pools().into_iter().filter(|key| !shown(key)) {
            self.settle_due(
                &key,
                &UpdateOutcome::Failed {
                    failure: Failure::Missing,
                    error: format!("the backend pool {key} does not exist"),
                },
            );
        }
    }

    fn read_failed(&mut self, error: &ArmError) {
        if let Some(writing) = self.writing.as_ref().filter(|writing| writing.is_written) {
            // An operation that succeeded proves nothing about the members: only a read does.
            let pool = &writing.pool;
            let outcome = retriable(format!("ARM reported Succeeded, but {pool} could not be read: {error}"));
            self.settle(&outcome);
        }
        self.settle_all_due(&update_outcome(error, Instant::now()));
    }

    fn settle_all_due(&self, outcome: &UpdateOutcome) {
        for key in self.due_pools() {
            self.settle_due(&key, outcome);
        }
    }

    fn return_due(&self) {
        let mut updater = self.source.updater.lock();
        updater.return_due(self.load_balancer.name(), Instant::now());
        self.source.reporter.publish(&updater);
    }

    fn due_pools(&self) -> Vec<PoolKey> {
        self.source.updater.lock().due_pools(self.load_balancer.name())
    }

    fn settle(&mut self, outcome: &UpdateOutcome) {
        if let Some(writing) = self.writing.take() {
            self.report(writing.operation, outcome, writing.timer);
        }
    }

    fn settle_due(&self, key: &PoolKey, outcome: &UpdateOutcome) {
        let operation = self.source.updater.lock().take_due(key);
        if let Some(operation) = operation {
            let metrics = &self.source.operations;
            let timer = metrics.start_operation(OPERATION_REQUEST, self.load_balancer.group(), OPERATION_SOURCE);
            self.report(operation, outcome, timer);
        }
    }

    /// Settles an operation and reports what follows.
    fn report(&self, operation: Operation, outcome: &UpdateOutcome, timer: OperationTimer) {
        let mut updater = self.source.updater.lock();
        let settlement = updater.settle(operation, outcome, Instant::now());
        if settlement.counters.succeeded + settlement.counters.failed > 0 {
            timer.finish(settlement.counters.failed == 0);
        }
        self.source.reporter.report(&updater, settlement.event);
        self.source.reporter.publish(&updater);
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.give_back();
        self.return_due();
    }
}

fn retriable(error: String) -> UpdateOutcome {
    UpdateOutcome::Failed {
        failure: Failure::Retriable { not_before: None },
        error,
    }
}

fn not_written(rejected: Option<&MemberRejection>) -> UpdateOutcome {
    match rejected {
        None => UpdateOutcome::Unchanged,
        Some(reason) => UpdateOutcome::Failed {
            failure: Failure::Terminal,
            error: reason.to_string(),
        },
    }
}

/// Whether the pool, as it was read, has exactly these members besides foreign entries.
fn has_members(pool: &PoolView, desired: &DesiredMembers, nodes: &NodeIndex) -> bool {
    compare(pool.entries.iter().map(Entry::of), desired, nodes)
        .as_ref()
        .is_ok_and(MemberDifference::is_empty)
}
