//! Which Services are compared with their pools, and what is queued for them.
//!
//! A tick compares the Services that have changed, or all of them after Nodes or load balancers have. That may take a while, so the
//! caller says how many are compared before it does other work.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::{Updater, is_relevant};
use crate::local_pools::difference::{Entry, MemberDifference, compare};
use crate::local_pools::operation::{DesiredMembers, PoolKey};
use crate::local_pools::placement::ServicePool;
use crate::pool::PoolView;
use headgate_core::service::NamespacedName;

/// The Services that a tick has not compared yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog {
    services: BTreeSet<NamespacedName>,
    /// Those of all Services of the tick that have changed, so that what was given up is tried again.
    changed: BTreeSet<NamespacedName>,
}

impl Updater {
    /// Finds the Services to compare.
    pub(super) fn find_services(&mut self, now: Instant) {
        if self.load_balancers.is_none() || !self.listed.is_complete() {
            return;
        }
        self.index.advance(now);
        let is_observation_new = std::mem::take(&mut self.is_observation_new);
        if self.index.take_are_services_changed() || is_observation_new {
            self.place();
        }
        let changed = self.index.take_changed();
        if changed.are_nodes_changed || is_observation_new {
            self.backlog.services.extend(self.index.names().cloned());
        } else {
            let expired = self.given_up.expired(now);
            let due = changed.services.iter().chain(expired).cloned();
            self.backlog.services.extend(due);
        }
        self.backlog.changed.extend(changed.services);
        let (index, placement) = (&self.index, &self.placement);
        self.given_up.retain(|key| is_relevant(index, placement, key));
    }

    /// Compares this many Services, and queues what is to be changed. Returns whether there are more.
    pub fn compare_some(&mut self, now: Instant, services: usize) -> bool {
        let placement = std::mem::take(&mut self.placement);
        for _ in 0..services {
            let Some(service) = self.backlog.services.pop_first() else {
                break;
            };
            let is_changed = self.backlog.changed.remove(&service);
            for pool in placement.pools(&service) {
                if is_changed {
                    self.given_up.remove(&pool.key);
                }
                self.reconcile_pool(pool, now);
            }
        }
        self.placement = placement;
        if self.backlog.services.is_empty() {
            self.backlog.changed.clear();
        }
        !self.backlog.services.is_empty()
    }

    fn reconcile_pool(&mut self, pool: &ServicePool, now: Instant) {
        let key = &pool.key;
        let Some(selected) = self
            .index
            .select(&key.service, pool.family, self.settings.is_ready_required)
        else {
            // What is queued is dropped once it is due, unless there are slices again.
            return;
        };
        let is_wanted = self.queue.is_pending(key)
            || self.differs(&key.pool, &selected.members) && !self.given_up.holds(key, &selected.members, now);
        if is_wanted {
            self.queue.enqueue(key.clone(), selected.members, now);
        }
    }

    /// Whether the pool, as it was read last, has other members than these.
    fn differs(&self, pool: &PoolKey, members: &DesiredMembers) -> bool {
        self.observed(pool).is_some_and(|observed| {
            let entries = observed.entries.iter().map(Entry::of);
            let difference = compare(entries, members, self.index.nodes());
            !difference.as_ref().is_ok_and(MemberDifference::is_empty)
        })
    }

    /// The pool as it was read last.
    pub(super) fn observed(&self, pool: &PoolKey) -> Option<&PoolView> {
        let mut views = self.load_balancers.iter().flatten().map(|known| &known.view);
        let view = views.find(|view| view.id.name().eq_ignore_ascii_case(pool.load_balancer()))?;
        let mut pools = view.pools.iter().map(|pool| &**pool);
        pools.find(|known| known.id.name().eq_ignore_ascii_case(pool.pool()))
    }
}
