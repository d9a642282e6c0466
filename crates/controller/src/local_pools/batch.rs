//! The operations of one pool that a tick processes together, and the batches that wait for their load balancer's writer.
//!
//! Invariant: a batch takes part in one PUT at most. The writer takes it out when it plans a PUT of that pool, for
//! any reason; after a failure it comes back with the next tick. So an immediate second try after a 412 goes without
//! the batch, and an admin-state write never waits for one.

use std::collections::{BTreeMap, BTreeSet};

use crate::local_pools::operation::{DesiredMembers, Operation, OperationKey, PoolKey};
use headgate_core::service::NamespacedName;

/// The operations of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pool: PoolKey,
    drain: u64,
    pub(crate) operations: Vec<Operation>,
}

impl Batch {
    pub(crate) fn new(pool: PoolKey, drain: u64) -> Self {
        Self {
            pool,
            drain,
            operations: Vec::new(),
        }
    }

    /// The number of the drain that has made the batch. An operation of the same key from a later drain is another one.
    pub(crate) fn drain(&self) -> u64 {
        self.drain
    }

    /// The pool that the batch updates.
    pub fn pool(&self) -> &PoolKey {
        &self.pool
    }

    /// In the order in which they were queued.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// What the pool is to have: the members of all operations together.
    pub fn desired_members(&self) -> DesiredMembers {
        if let [operation] = self.operations.as_slice() {
            return operation.members.clone();
        }
        let members = self
            .operations
            .iter()
            .flat_map(|operation| operation.members.as_slice());
        members.cloned().collect()
    }

    /// The Services, each once.
    pub fn services(&self) -> BTreeSet<&NamespacedName> {
        self.operations.iter().map(|operation| &operation.key.service).collect()
    }
}

/// Batches that a tick has taken out of the queue and that no writer has taken yet.
#[derive(Clone, Debug, Default)]
pub struct DueBatches(BTreeMap<PoolKey, Batch>);

impl DueBatches {
    /// Adds the batches of a tick. There is one batch for each pool, so the batches of the tick before must be withdrawn.
    pub(crate) fn add(&mut self, batches: Vec<Batch>) {
        self.0
            .extend(batches.into_iter().map(|batch| (batch.pool.clone(), batch)));
    }

    /// The pools of a load balancer that have a batch.
    pub fn pools<'a>(&'a self, load_balancer: &'a str) -> impl Iterator<Item = &'a PoolKey> {
        let pools = self.0.keys();
        pools.filter(move |pool| pool.load_balancer().eq_ignore_ascii_case(load_balancer))
    }

    /// All pools that have a batch.
    pub fn all_pools(&self) -> impl Iterator<Item = &PoolKey> {
        self.0.keys()
    }

    /// The batch of a pool.
    pub fn batch(&self, pool: &PoolKey) -> Option<&Batch> {
        self.0.get(pool)
    }

    /// Takes out the batch of a pool, for a PUT.
    pub(crate) fn take(&mut self, pool: &PoolKey) -> Option<Batch> {
        self.0.remove(pool)
    }

    /// Takes out all batches that no writer has taken.
    pub(crate) fn withdraw(&mut self) -> Vec<Batch> {
        std::mem::take(&mut self.0).into_values().collect()
    }

    /// The operation with this key, if it waits for a writer.
    pub fn get(&self, key: &OperationKey) -> Option<&Operation> {
        let batch = self.0.get(&key.pool)?;
        batch.operations.iter().find(|operation| operation.key == *key)
    }

    /// Whether every batch was taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
