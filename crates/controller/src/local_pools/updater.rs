//! The updater of Local Services' pools: what was observed, what is pending, and what a tick does.
//!
//! Invariants: nothing is queued before Services, EndpointSlices and Nodes were listed and the load balancers were read; an
//! operation is queued where the observed pool differs from the members that it is to have, or where one is pending
//! already. So a pool that cloud-controller-manager has updated costs nothing, and an update that was lost is found again by
//! the next observation. One that was given up waits for a change or for the resync interval (`given_up`). An operation
//! without such a pool of its Service is dropped before ARM is called, before it is put back, and before anything is
//! reported.
//!
//! A tick: [`Updater::begin_tick`]; then [`Updater::compare_some`] until nothing is left; if [`Updater::is_tick_eligible`], acquire the
//! shared Lease; then [`Updater::drain`]; the planner of each load balancer calls [`Updater::refresh_due`], takes what is due with
//! [`Updater::take_due`] and hands back its outcome with [`Updater::settle`].

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::local_pools::coexistence::PreConfigured;
use crate::local_pools::counters::{Counters, QueueStatus};
use crate::local_pools::index::LocalServiceIndex;
use crate::local_pools::nodes::{Node, NodeIndex};
use crate::local_pools::operation::{Operation, OperationKey, PoolKey};
use crate::local_pools::placement::{Placement, place};
use crate::local_pools::queue::OperationQueue;
use crate::local_pools::settle::{Settlement, UpdateOutcome, settle};
use crate::pool::{LoadBalancerView, Observation};
use headgate_core::service::{EndpointSliceObject, NamespacedName, Service};

mod comparison;
mod given_up;
mod status;

use comparison::Backlog;
use given_up::GivenUp;

pub use status::{PoolStatus, ServiceStatus};

/// How the updater works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdaterSettings {
    /// From one tick to the next.
    pub interval: Duration,
    /// Only ready endpoints make their node a member; cloud-controller-manager's updater would add the others again. Otherwise every
    /// endpoint does, whatever its conditions, as cloud-controller-manager counts them.
    pub is_ready_required: bool,
    /// The most attempts after the first; 0 means that a retriable failure is final.
    pub max_retries: u32,
    /// The load balancers with pools that are left alone.
    pub pre_configured: PreConfigured,
    /// After this time at the latest the load balancers are listed and every pool is compared again, and an update that was given up is
    /// tried again.
    pub resync_interval: Duration,
}

impl Default for UpdaterSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(30),
            is_ready_required: false,
            max_retries: 3,
            pre_configured: PreConfigured::default(),
            resync_interval: Duration::from_mins(5),
        }
    }
}

/// The objects that were listed completely at least once.
#[derive(Clone, Copy, Debug, Default)]
struct Listed {
    services: bool,
    slices: bool,
    nodes: bool,
}

impl Listed {
    fn is_complete(self) -> bool {
        self.services && self.slices && self.nodes
    }
}

/// The state of the updater.
#[derive(Clone, Debug)]
pub struct Updater {
    settings: UpdaterSettings,
    index: LocalServiceIndex,
    /// `None` until the load balancers were read once.
    load_balancers: Option<Vec<Observation>>,
    is_observation_new: bool,
    listed: Listed,
    placement: Placement,
    queue: OperationQueue,
    due: BTreeMap<PoolKey, Operation>,
    given_up: GivenUp,
    backlog: Backlog,
    counters: Counters,
}

impl Updater {
    /// An updater that has observed no objects yet.
    pub fn new(settings: UpdaterSettings) -> Self {
        Self {
            settings,
            index: LocalServiceIndex::default(),
            load_balancers: None,
            is_observation_new: false,
            listed: Listed::default(),
            placement: Placement::default(),
            queue: OperationQueue::default(),
            due: BTreeMap::new(),
            given_up: GivenUp::default(),
            backlog: Backlog::default(),
            counters: Counters::default(),
        }
    }

    /// A Service was added or changed. With another UID it is another Service, although its deletion was not observed.
    pub fn apply_service(&mut self, service: &Arc<Service>) {
        let name = &service.name;
        let known = self.index.service(name);
        if known.is_some_and(|known| known.uid != service.uid) {
            self.queue.remove_service(name);
        }
        if !self.index.apply_service(service) {
            self.queue.remove_service(name);
        }
    }

    /// A Service was deleted.
    pub fn delete_service(&mut self, name: &NamespacedName) {
        self.index.delete_service(name);
        self.queue.remove_service(name);
    }

    /// Services were listed, and these are all of them. Call it after the first list, too.
    pub fn retain_services(&mut self, listed: &HashSet<NamespacedName>) {
        self.listed.services = true;
        for name in self.index.retain_services(listed) {
            self.queue.remove_service(&name);
        }
    }

    /// An EndpointSlice was added or changed.
    pub fn apply_slice(&mut self, slice: &EndpointSliceObject) {
        self.index.apply_slice(slice);
    }

    /// An EndpointSlice was deleted.
    pub fn delete_slice(&mut self, name: &NamespacedName) {
        self.index.delete_slice(name);
    }

    /// EndpointSlices were listed, and these are all of them. Call it after the first list, too.
    pub fn retain_slices(&mut self, listed: &HashSet<NamespacedName>) {
        self.listed.slices = true;
        self.index.retain_slices(listed);
    }

    /// A Node was added or changed.
    pub fn apply_node(&mut self, node: Node) {
        self.index.apply_node(node);
    }

    /// A Node was deleted.
    pub fn delete_node(&mut self, name: &str) {
        self.index.delete_node(name);
    }

    /// Nodes were listed, and these are all of them, by name in lower case. Call it after the first list, too.
    pub fn retain_nodes(&mut self, listed: &HashSet<String>) {
        self.listed.nodes = true;
        self.index.retain_nodes(listed);
    }

    /// All load balancers of the cluster were listed. This is also the resync: every pool is compared again. One that its writer has
    /// read after the list was sent stays as it was read.
    pub fn observe(&mut self, mut load_balancers: Vec<Observation>) {
        for load_balancer in &mut load_balancers {
            let known = self.load_balancers.iter_mut().flatten();
            let mut newer = known.filter(|known| known.requested_at > load_balancer.requested_at);
            if let Some(newer) = newer.find(|known| known.view.id == load_balancer.view.id) {
                std::mem::swap(load_balancer, newer);
            }
        }
        self.load_balancers = Some(load_balancers);
        self.is_observation_new = true;
    }

    /// One load balancer was read, by its writer. Unknown ones are ignored until all are read. If its rules have changed, what
    /// is due there for a Service that has moved is not relevant any more.
    pub fn observe_one(&mut self, load_balancer: Observation) {
        let mut known = self.load_balancers.iter_mut().flatten();
        let Some(known) = known.find(|known| known.view.id == load_balancer.view.id) else {
            return;
        };
        let has_moved = !have_same_rules(&known.view, &load_balancer.view);
        *known = load_balancer;
        self.is_observation_new = true;
        if has_moved {
            self.place();
        }
    }

    /// Finds the pools of all Services in the load balancers as they were read last.
    fn place(&mut self) {
        let load_balancers = self.load_balancers.as_deref().unwrap_or_default();
        self.placement = place(self.index.services(), load_balancers, self.settings.pre_configured);
    }

    /// Begins a tick. What no writer has taken since the last one returns to the queue at no cost. Call [`Self::compare_some`] until
    /// nothing is left: a caller that shares its thread can do other work in between.
    pub fn begin_tick(&mut self, now: Instant) {
        self.withdraw(now);
        self.find_services(now);
    }

    /// Drops operations that are not relevant any more. Returns whether something is eligible; if not, the tick needs neither the shared
    /// Lease nor ARM.
    pub fn is_tick_eligible(&mut self, now: Instant) -> bool {
        let (index, placement) = (&self.index, &self.placement);
        self.counters.dropped += self.queue.retain(|key| is_relevant(index, placement, key));
        self.queue.has_eligible(now)
    }

    fn withdraw(&mut self, now: Instant) {
        for operation in std::mem::take(&mut self.due).into_values() {
            self.settle(operation, &UpdateOutcome::NotAttempted { not_before: None }, now);
        }
    }

    /// Takes eligible operations out of the queue, once the shared Lease is held.
    pub fn drain(&mut self, now: Instant) {
        self.withdraw(now);
        if self.is_tick_eligible(now) {
            let drained = self.queue.drain(now).into_iter();
            self.due = drained
                .map(|operation| (operation.key.pool.clone(), operation))
                .collect();
        }
    }

    /// Gives the due operations of a load balancer the members that follow from what is known now. Others may have written newer ones than
    /// those that were queued before the shared Lease was awaited. One whose slices are gone is dropped.
    pub fn refresh_due(&mut self, load_balancer: &str) {
        for pool in self.due_pools(load_balancer) {
            let Some(operation) = self.due.get_mut(&pool) else {
                continue;
            };
            let service = &operation.key.service;
            let mut pools = self.placement.pools(service).iter();
            let Some(placed) = pools.find(|placed| placed.key == operation.key) else {
                continue;
            };
            let is_ready_required = self.settings.is_ready_required;
            if let Some(selected) = self.index.select(service, placed.family, is_ready_required) {
                operation.replace_members(selected.members);
                self.queue.update_processed(operation);
            } else {
                self.queue.end_processing(operation);
                self.due.remove(&pool);
                self.counters.dropped += 1;
            }
        }
    }

    /// Takes the due operation of a pool for a PUT. One that is not relevant any more is dropped.
    pub fn take_due(&mut self, pool: &PoolKey) -> Option<Operation> {
        let operation = self.due.remove(pool)?;
        if self.queue.is_in_process(&operation) && is_relevant(&self.index, &self.placement, &operation.key) {
            return Some(operation);
        }
        self.queue.end_processing(&operation);
        self.counters.dropped += 1;
        None
    }

    /// Puts the operations of a load balancer back that its writer has not taken, at no cost: it could not try them.
    pub(crate) fn return_due(&mut self, load_balancer: &str, now: Instant) {
        for pool in self.due_pools(load_balancer) {
            if let Some(operation) = self.due.remove(&pool) {
                self.settle(operation, &UpdateOutcome::NotAttempted { not_before: None }, now);
            }
        }
    }

    /// The pools of a load balancer that have a due operation.
    pub fn due_pools(&self, load_balancer: &str) -> Vec<PoolKey> {
        let pools = self.due.keys();
        pools
            .filter(|pool| pool.load_balancer().eq_ignore_ascii_case(load_balancer))
            .cloned()
            .collect()
    }

    /// The UID of a Service with pools of its own, for events about it.
    pub(crate) fn service_uid(&self, service: &NamespacedName) -> Option<&str> {
        self.index.service(service).map(|service| service.uid.as_str())
    }

    /// The operations that a tick has taken out of the queue and that wait for a writer.
    pub fn due(&self) -> &BTreeMap<PoolKey, Operation> {
        &self.due
    }

    /// Takes the outcome of an operation. Returns what is to be reported; its counters are in [`Self::counters`] already.
    pub fn settle(&mut self, operation: Operation, outcome: &UpdateOutcome, now: Instant) -> Settlement {
        let (index, placement) = (&self.index, &self.placement);
        let is_relevant = |key: &OperationKey| is_relevant(index, placement, key);
        let mut settlement = settle(
            &mut self.queue,
            operation,
            outcome,
            self.settings.max_retries,
            is_relevant,
        );
        if let Some(given_up) = settlement.given_up.take() {
            self.given_up.add(given_up, now + self.settings.resync_interval);
        }
        self.counters += settlement.counters;
        settlement
    }

    /// The Nodes, for [`crate::local_pools::MemberEdit`].
    pub fn nodes(&self) -> Arc<NodeIndex> {
        Arc::clone(self.index.nodes())
    }

    /// The pools of all Services, and what was skipped.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The operations in the queue.
    pub fn queue(&self) -> &OperationQueue {
        &self.queue
    }

    /// What has happened since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How the queue is now.
    pub fn queue_status(&self, now: Instant) -> QueueStatus {
        self.queue.status(now)
    }
}

/// Whether the same rules send traffic to the same pools.
fn have_same_rules(one: &LoadBalancerView, other: &LoadBalancerView) -> bool {
    let mut pools = one.pools.iter().zip(&other.pools);
    one.pools.len() == other.pools.len()
        && pools.all(|(one, other)| {
            let names = one.rules.iter().map(|rule| &rule.name);
            one.id == other.id && names.eq(other.rules.iter().map(|rule| &rule.name))
        })
}

/// Whether the Service still has this pool.
fn is_relevant(index: &LocalServiceIndex, placement: &Placement, key: &OperationKey) -> bool {
    index.service(&key.service).is_some() && placement.contains(key)
}
