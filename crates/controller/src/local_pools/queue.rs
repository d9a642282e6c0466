//! The queue of pending updates.
//!
//! Invariants: at most one operation for each Service and pool; a newer operation takes the place of an older one,
//! starts with a fresh retry budget and stays parked as long; an operation that is put back goes ahead of newer work; a
//! pool with a parked operation stays whole in the queue. Nothing here waits for ARM, so events are accepted at any time.
//! The outcome of a batch counts only for the operations that its own drain has taken out: a Service that was removed
//! and added meanwhile gets nothing of it.
//!
//! Source: cloud-provider-azure `loadBalancerBackendPoolUpdater` with the desired-state operations of pull request 10730.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use tokio::time::Instant;

use crate::local_pools::batch::Batch;
use crate::local_pools::counters::QueueStatus;
use crate::local_pools::operation::{DesiredMembers, Operation, OperationKey, PoolKey};
use headgate_core::service::NamespacedName;

/// The most operations that are queued or being processed, unless set otherwise. A cluster with 2,000 Local Services on 5
/// load balancers has at most 20,000.
pub const DEFAULT_CAPACITY: usize = 50_000;

/// What became of an operation that was to be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The operation is new in the queue.
    Added,
    /// It replaced one with other addresses.
    Replaced,
    /// One with the same addresses is queued or being processed; that one keeps its retries.
    Unchanged,
    /// The queue is full.
    Rejected,
}

/// What a tick takes out of the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// The eligible operations, one batch for each pool, the one queued first ahead.
    pub batches: Vec<Batch>,
    /// Operations that were dropped because their Service is gone or has moved.
    pub dropped: u64,
}

/// Pending updates, in their order.
#[derive(Clone, Debug)]
pub struct OperationQueue {
    capacity: usize,
    /// By position: later positions are newer, and what is put back gets positions before the first.
    operations: BTreeMap<i64, Operation>,
    positions: BTreeMap<OperationKey, i64>,
    /// What a tick has taken out and not settled.
    in_process: HashMap<OperationKey, InProcess>,
    /// How often operations were taken out.
    drains: u64,
}

/// An operation that a tick has taken out.
#[derive(Clone, Debug)]
struct InProcess {
    members: DesiredMembers,
    /// Which drain has taken it out.
    drain: u64,
}

impl Default for OperationQueue {
    fn default() -> Self {
        Self::new(DEFAULT_CAPACITY)
    }
}

impl OperationQueue {
    /// An empty queue for this many operations.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            operations: BTreeMap::new(),
            positions: BTreeMap::new(),
            in_process: HashMap::new(),
            drains: 0,
        }
    }

    /// Queues the members that a pool is to have.
    pub fn enqueue(&mut self, key: OperationKey, members: DesiredMembers, now: Instant) -> Enqueued {
        if let Some(queued) = self.queued_mut(&key) {
            let is_same = queued.members.has_same_addresses(&members);
            // The nodes may have changed although their addresses have not: a drain signal, a name.
            queued.members = members;
            if is_same {
                return Enqueued::Unchanged;
            }
            queued.retry_count = 0;
            return Enqueued::Replaced;
        }
        let in_process = self.in_process.get(&key);
        if in_process.is_some_and(|processed| processed.members.has_same_addresses(&members)) {
            return Enqueued::Unchanged;
        }
        if self.operations.len() + self.in_process.len() >= self.capacity {
            return Enqueued::Rejected;
        }
        self.push_back(Operation::new(key, members, now));
        Enqueued::Added
    }

    /// Removes the operations of a Service, parked ones included. Those that are being processed are dropped when their batch
    /// is settled.
    pub fn remove_service(&mut self, service: &NamespacedName) -> usize {
        let first = OperationKey {
            service: service.clone(),
            pool: PoolKey::new("", ""),
        };
        let keys = self.positions.range(first..).map(|(key, _)| key);
        let keys: Vec<_> = keys.take_while(|key| key.service == *service).cloned().collect();
        for key in &keys {
            if let Some(position) = self.positions.remove(key) {
                self.operations.remove(&position);
            }
        }
        self.in_process.retain(|key, _| key.service != *service);
        keys.len()
    }

    /// Drops operations that are not relevant any more, parked ones included. Returns how many.
    pub(crate) fn retain(&mut self, is_relevant: impl Fn(&OperationKey) -> bool) -> u64 {
        let before = self.operations.len();
        self.operations.retain(|_, operation| is_relevant(&operation.key));
        let operations = &self.operations;
        self.positions.retain(|_, position| operations.contains_key(position));
        u64::try_from(before - self.operations.len()).unwrap_or(u64::MAX)
    }

    /// Takes out what a tick processes: drops operations that are not relevant any more, and leaves pools whole that have a
    /// parked operation or a batch without an outcome.
    pub fn drain(&mut self, now: Instant, is_relevant: impl Fn(&OperationKey) -> bool) -> Drained {
        let dropped = self.retain(is_relevant);
        self.drains += 1;
        let drain = self.drains;
        let operations = std::mem::take(&mut self.operations);
        let held_back = self.held_back(operations.values(), now);
        let mut batches: Vec<Batch> = Vec::new();
        let mut places: BTreeMap<PoolKey, usize> = BTreeMap::new();
        for (position, operation) in operations {
            if held_back.contains(&operation.key.pool) {
                self.operations.insert(position, operation);
                continue;
            }
            self.positions.remove(&operation.key);
            let members = operation.members.clone();
            self.in_process
                .insert(operation.key.clone(), InProcess { members, drain });
            let pool = operation.key.pool.clone();
            let place = *places.entry(pool.clone()).or_insert(batches.len());
            if place == batches.len() {
                batches.push(Batch::new(pool, drain));
            }
            if let Some(batch) = batches.get_mut(place) {
                batch.operations.push(operation);
            }
        }
        Drained { batches, dropped }
    }

    /// Puts operations back, ahead of everything that is queued, in their order. Where a newer one for the same Service
    /// and pool is queued, that one stays and takes over the later parking time; with the same addresses it takes over
    /// the retries as well, so that a repeated event does not renew the budget.
    pub fn requeue(&mut self, operations: Vec<Operation>) {
        for operation in operations.into_iter().rev() {
            self.in_process.remove(&operation.key);
            if let Some(newer) = self.queued_mut(&operation.key) {
                newer.next_eligible_at = newer.next_eligible_at.max(operation.next_eligible_at);
                newer.pending_since = newer.pending_since.min(operation.pending_since);
                if newer.members.has_same_addresses(&operation.members) {
                    newer.retry_count = newer.retry_count.max(operation.retry_count);
                }
                continue;
            }
            let first = self.operations.first_key_value().map_or(0, |(position, _)| *position);
            self.insert(first - 1, operation);
        }
    }

    /// Ends the processing of an operation that this drain has taken out. Returns whether it still counts: its Service was
    /// not removed in the meantime.
    pub(crate) fn end_processing(&mut self, key: &OperationKey, drain: u64) -> bool {
        let is_in_process = self.is_in_process(key, drain);
        if is_in_process {
            self.in_process.remove(key);
        }
        is_in_process
    }

    /// The pools that a tick leaves whole: those with a parked operation, and those with a batch without an outcome.
    fn held_back<'a>(&self, operations: impl Iterator<Item = &'a Operation>, now: Instant) -> HashSet<PoolKey> {
        let parked = operations.filter(|operation| operation.is_parked(now));
        let parked = parked.map(|operation| &operation.key.pool);
        let in_process = self.in_process.keys().map(|key| &key.pool);
        parked.chain(in_process).cloned().collect()
    }

    /// Whether a tick would take something out.
    pub fn has_eligible(&self, now: Instant) -> bool {
        let held_back = self.held_back(self.iter(), now);
        self.iter().any(|operation| !held_back.contains(&operation.key.pool))
    }

    /// Whether this drain has taken the operation out, and its Service was not removed since.
    pub(crate) fn is_in_process(&self, key: &OperationKey, drain: u64) -> bool {
        self.in_process
            .get(key)
            .is_some_and(|processed| processed.drain == drain)
    }

    /// Whether an operation with this key is queued or being processed.
    pub fn is_pending(&self, key: &OperationKey) -> bool {
        self.positions.contains_key(key) || self.in_process.contains_key(key)
    }

    /// The queued operation with this key.
    pub fn get(&self, key: &OperationKey) -> Option<&Operation> {
        self.operations.get(self.positions.get(key)?)
    }

    /// Whether nothing is queued. Then a tick needs neither the shared Lease nor ARM.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The number of queued operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// The queued operations, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.operations.values()
    }

    /// How the queue is now.
    pub fn status(&self, now: Instant) -> QueueStatus {
        let parked = self.iter().filter(|operation| operation.is_parked(now));
        let parked: BTreeSet<_> = parked.map(|operation| &operation.key.pool).collect();
        QueueStatus {
            depth: self.len(),
            oldest_since: self.iter().map(|operation| operation.pending_since).min(),
            parked_pools: parked.len(),
        }
    }

    fn queued_mut(&mut self, key: &OperationKey) -> Option<&mut Operation> {
        self.operations.get_mut(self.positions.get(key)?)
    }

    fn push_back(&mut self, operation: Operation) {
        let last = self.operations.last_key_value().map_or(0, |(position, _)| *position);
        self.insert(last + 1, operation);
    }

    fn insert(&mut self, position: i64, operation: Operation) {
        self.positions.insert(operation.key.clone(), position);
        self.operations.insert(position, operation);
    }
}
