//! The queue of pending updates.
//!
//! Invariants: at most one operation for each Service and pool, and one being processed for each pool; a newer operation takes the
//! place of an older one, starts with a fresh retry budget and stays parked as long; a parked operation stays in the queue. Nothing
//! here waits for ARM, so events are accepted at any time. The outcome of an operation counts only for the drain that has taken it
//! out: a Service that was removed and added meanwhile gets nothing of it.
//!
//! Source: cloud-provider-azure `loadBalancerBackendPoolUpdater` with the desired-state operations of pull request 10730.

use std::collections::{BTreeMap, btree_map::Entry};

use tokio::time::Instant;

use crate::local_pools::counters::QueueStatus;
use crate::local_pools::operation::{DesiredMembers, Operation, OperationKey, PoolKey};
use headgate_core::service::NamespacedName;

/// Pending updates, at most one for each pool of a Service.
#[derive(Clone, Debug, Default)]
pub struct OperationQueue {
    operations: BTreeMap<OperationKey, Operation>,
    /// What a tick has taken out and not settled.
    in_process: BTreeMap<PoolKey, Operation>,
    /// How often operations were taken out.
    drains: u64,
}

impl OperationQueue {
    /// Queues the members that a pool is to have. An operation with the same addresses that is queued keeps its retries, and one that is
    /// being processed suffices.
    pub fn enqueue(&mut self, key: OperationKey, members: DesiredMembers, now: Instant) {
        if let Some(queued) = self.operations.get_mut(&key) {
            queued.replace_members(members);
            return;
        }
        let processed = self.processed(&key);
        if !processed.is_some_and(|processed| processed.members.has_same_addresses(&members)) {
            self.operations.insert(key.clone(), Operation::new(key, members, now));
        }
    }

    /// Removes the operations of a Service, parked ones included. One that is being processed is dropped when it is settled.
    pub fn remove_service(&mut self, service: &NamespacedName) {
        self.operations.retain(|key, _| key.service != *service);
        self.in_process.retain(|_, processed| processed.key.service != *service);
    }

    /// Drops operations that are not relevant any more, parked ones included. Returns how many.
    pub(crate) fn retain(&mut self, is_relevant: impl Fn(&OperationKey) -> bool) -> u64 {
        let before = self.operations.len();
        self.operations.retain(|key, _| is_relevant(key));
        u64::try_from(before - self.operations.len()).unwrap_or(u64::MAX)
    }

    /// Takes out what a tick processes: what is not parked, of each pool that has no operation without an outcome.
    pub fn drain(&mut self, now: Instant) -> Vec<Operation> {
        self.drains += 1;
        let mut drained = Vec::new();
        self.operations.retain(|key, operation| {
            if operation.is_parked(now) || self.in_process.contains_key(&key.pool) {
                return true;
            }
            operation.drain = self.drains;
            self.in_process.insert(key.pool.clone(), operation.clone());
            drained.push(operation.clone());
            false
        });
        drained
    }

    /// Puts an operation back. Where a newer one for the same Service and pool is queued, that one stays and takes over the later
    /// parking time; with the same addresses it takes over the retries as well, so that a repeated event does not renew the budget.
    pub fn requeue(&mut self, operation: Operation) {
        match self.operations.entry(operation.key.clone()) {
            Entry::Vacant(free) => {
                free.insert(operation);
            }
            Entry::Occupied(newer) => {
                let newer = newer.into_mut();
                newer.next_eligible_at = newer.next_eligible_at.max(operation.next_eligible_at);
                newer.pending_since = newer.pending_since.min(operation.pending_since);
                if newer.members.has_same_addresses(&operation.members) {
                    newer.retry_count = newer.retry_count.max(operation.retry_count);
                }
            }
        }
    }

    /// An operation that was taken out has other members now.
    pub(crate) fn update_processed(&mut self, operation: &Operation) {
        if self.is_in_process(operation) {
            self.in_process.insert(operation.key.pool.clone(), operation.clone());
        }
    }

    /// Ends the processing of an operation that was taken out. Returns whether it still counts: its Service was not removed in the
    /// meantime.
    pub(crate) fn end_processing(&mut self, operation: &Operation) -> bool {
        let is_in_process = self.is_in_process(operation);
        if is_in_process {
            self.in_process.remove(&operation.key.pool);
        }
        is_in_process
    }

    /// Whether a tick would take something out.
    pub fn has_eligible(&self, now: Instant) -> bool {
        let mut operations = self.iter();
        operations.any(|operation| !operation.is_parked(now) && !self.in_process.contains_key(&operation.key.pool))
    }

    /// Whether the Service of this operation, which was taken out, was not removed since.
    pub(crate) fn is_in_process(&self, operation: &Operation) -> bool {
        let processed = self.processed(&operation.key);
        processed.is_some_and(|processed| processed.drain == operation.drain)
    }

    /// Whether an operation with this key is queued or being processed.
    pub fn is_pending(&self, key: &OperationKey) -> bool {
        self.operations.contains_key(key) || self.processed(key).is_some()
    }

    fn processed(&self, key: &OperationKey) -> Option<&Operation> {
        self.in_process.get(&key.pool).filter(|processed| processed.key == *key)
    }

    /// The queued operation with this key.
    pub fn get(&self, key: &OperationKey) -> Option<&Operation> {
        self.operations.get(key)
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The number of queued operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// The queued operations, by Service.
    pub fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.operations.values()
    }

    /// How the queue is now.
    pub fn status(&self, now: Instant) -> QueueStatus {
        QueueStatus {
            depth: self.len(),
            oldest_since: self.iter().map(|operation| operation.pending_since).min(),
            parked_pools: self.iter().filter(|operation| operation.is_parked(now)).count(),
        }
    }
}
