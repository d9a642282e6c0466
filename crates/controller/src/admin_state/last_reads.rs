//! What all load balancers showed last, and what it is compared with: what events, ledger stages, holds, markers and gates follow from.
//! Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use headgate_azure::{AdminState, LoadBalancerId, PoolId};
use headgate_core::clock::Moment;
use headgate_core::node::SignalPeriod;

use super::ledger::{Ledger, LedgerEntry};
use super::plan::EntryStatus;
use super::planner::LoadBalancerStatus;
use super::settings::AdminStateMode;
use super::target_states::{TargetState, TargetStates};
use crate::pool::{Claimed, ClusterNode, EntryKey, FingerprintSet, Listing, NodeMatcher, PoolEntry, PoolView};

/// A load balancer, as it was planned last.
#[derive(Clone, Debug)]
pub(super) struct PlannedLoadBalancer {
    pub(super) id: LoadBalancerId,
    /// Whether it is the cluster's, and not only named by the ledger.
    pub(super) is_managed: bool,
    pub(super) status: LoadBalancerStatus,
}

/// The last reads.
#[derive(Clone, Debug)]
pub(super) struct LastReads<'a> {
    /// The Nodes and their signals.
    pub(super) targets: &'a TargetStates,
    pub(super) load_balancers: &'a [PlannedLoadBalancer],
    /// The entries with a status, by the Node's UID.
    pub(super) entries: BTreeMap<&'a str, Vec<OwnEntry<'a>>>,
    /// The last list. A pool writer does not adopt it while it waits for ARM.
    pub(super) listing: &'a Listing,
    /// Whether it is known that no Service of type `LoadBalancer` has a frontend, so that there is no load balancer; `None` before the first lists.
    pub(super) has_no_load_balancer_service: Option<bool>,
    /// What the leader writes.
    pub(super) mode: AdminStateMode,
    /// The time of the evaluation.
    pub(super) now: Moment,
}

/// An entry of a Node.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnEntry<'a> {
    pub(super) entry: &'a EntryStatus,
    pub(super) load_balancer: &'a PlannedLoadBalancer,
    /// What the ledger has now; the status has what it had when the plan was made.
    pub(super) ledger_entry: Option<LedgerEntry>,
    /// Whether the newest read or list shows the entry `Down`, and the plan keeps it so.
    is_down: bool,
}

impl<'a> LastReads<'a> {
    pub(super) fn new(
        targets: &'a TargetStates,
        load_balancers: &'a [PlannedLoadBalancer],
        ledger: &Ledger,
        listing: &'a Listing,
        mode: AdminStateMode,
        now: Moment,
    ) -> Self {
        let mut nodes: BTreeMap<&str, Vec<OwnEntry<'_>>> = BTreeMap::new();
        for load_balancer in load_balancers {
            // The entries are ordered by pool, so each pool is looked up once.
            let entries = &load_balancer.status.entries;
            for entries in entries.chunk_by(|one, other| one.pool == other.pool) {
                let Some(pool) = entries.first().map(|first| &first.pool) else {
                    continue;
                };
                let ledger = ledger.pool(pool);
                let listed = listed_after_plan(listing, load_balancer, pool, entries);
                for entry in entries {
                    let is_read_down = entry.observed == Some(AdminState::Down) && !entry.is_held_back;
                    let is_disproved = listed
                        .get(&entry.key)
                        .is_some_and(|state| *state != Some(AdminState::Down));
                    nodes.entry(&entry.node.uid).or_default().push(OwnEntry {
                        entry,
                        load_balancer,
                        ledger_entry: ledger.entry(&entry.key),
                        is_down: is_read_down && !is_disproved,
                    });
                }
            }
        }
        Self {
            targets,
            load_balancers,
            entries: nodes,
            listing,
            has_no_load_balancer_service: None,
            mode,
            now,
        }
    }

    /// What the plans of all load balancers showed.
    pub(super) fn statuses(&self) -> impl Iterator<Item = &'a LoadBalancerStatus> + Clone {
        self.load_balancers.iter().map(|one| &one.status)
    }

    /// The load balancers of the cluster.
    pub(super) fn managed(&self) -> impl Iterator<Item = &'a PlannedLoadBalancer> {
        self.load_balancers.iter().filter(|one| one.is_managed)
    }

    /// The entries of a Node in these.
    pub(super) fn managed_entries(&self, node: &ClusterNode) -> impl Iterator<Item = &OwnEntry<'a>> {
        let own = self.entries.get(node.uid.as_str()).into_iter().flatten();
        own.filter(|own| own.load_balancer.is_managed)
    }

    /// The entries of a Node that get new connections.
    pub(super) fn in_service(&self, node: &ClusterNode) -> Vec<&'a EntryStatus> {
        let in_service = self.managed_entries(node).filter(|own| !own.is_down);
        in_service.map(|own| own.entry).collect()
    }

    /// The target state of a Node's entries.
    pub(super) fn target_state(&self, node: &ClusterNode) -> TargetState {
        self.targets.target_state(node, self.now.mono).in_mode(self.mode)
    }

    /// The present signal of a Node.
    pub(super) fn present_signal(&self, node: &ClusterNode) -> Option<&'a SignalPeriod> {
        let period = self.targets.signal_period(node);
        period.filter(|period| period.ended_at.is_none())
    }

    /// What the entries match that are in service in the last list, and in no used pool of the plan that it is newer than: no plan knows
    /// whose they are. It may look at every entry, so it is asked for once in an evaluation.
    pub(super) fn only_listed(&self) -> Vec<&'a NodeMatcher> {
        let mut matchers = Vec::new();
        for (id, listed) in &self.listing.load_balancers {
            let mut load_balancers = self.load_balancers.iter();
            let status = load_balancers.find(|one| one.id == *id).map(|one| &one.status);
            // ARM may lag: its answer that a load balancer is missing does not disprove the list.
            let shows_pools =
                |status: &LoadBalancerStatus| status.view.as_deref().is_some_and(|view| !view.pools.is_empty());
            if status.is_some_and(|status| !is_newer(self.listing, status) && shows_pools(status)) {
                continue;
            }
            let planned = status.and_then(|status| status.view.as_deref());
            let planned = planned
                .into_iter()
                .flat_map(|view| &view.pools)
                .filter(|pool| pool.is_used());
            let planned: HashMap<&PoolId, &PoolView> = planned.map(|pool| (&pool.id, &**pool)).collect();
            for pool in listed.pools.iter().filter(|pool| pool.is_used()) {
                let known = planned.get(&pool.id).map(|pool| &*pool.entries).unwrap_or_default();
                // Nearly always: a comparison costs far less than a set of thousands of keys.
                let keys = |entries: &'a [PoolEntry]| entries.iter().map(|entry| entry.key.as_ref());
                if keys(known).eq(keys(&pool.entries)) {
                    continue;
                }
                let known: HashSet<&EntryKey> = keys(known).flatten().collect();
                let entries = pool.entries.iter().filter(|entry| {
                    let is_new = entry.key.as_ref().is_some_and(|key| !known.contains(key));
                    is_new && entry.admin_state != Some(AdminState::Down)
                });
                matchers.extend(entries.map(|entry| &entry.matcher));
            }
        }
        matchers
    }

    /// What several Nodes claim, and an entry that is in service has: by the plans' reads, or the list if it is newer. It may look at every
    /// entry, so it is asked for once in an evaluation. Of an interface in no scale set the machine is not known here: with one in service,
    /// every machine counts.
    pub(super) fn contested_in_service(&self) -> BTreeSet<Claimed> {
        let nodes = &self.targets.nodes;
        if nodes.contested().next().is_none() {
            return BTreeSet::new();
        }
        let planned = self.managed().filter_map(|one| one.status.view.as_deref());
        let newer = self.listing.load_balancers.iter().filter(|(id, _)| {
            let planned = self.load_balancers.iter().find(|one| one.id == **id);
            planned.is_none_or(|one| is_newer(self.listing, &one.status) || one.status.view.is_none())
        });
        let views = planned.chain(newer.map(|(_, view)| &**view));
        let pools = views.flat_map(|view| &view.pools).filter(|pool| pool.is_used());
        let entries = pools.flat_map(|pool| &pool.entries);
        let (mut found, mut has_interface) = (BTreeSet::new(), false);
        for entry in entries.filter(|entry| entry.admin_state != Some(AdminState::Down)) {
            match &entry.matcher {
                NodeMatcher::Address(ip) if nodes.claimants(*ip).len() > 1 => {
                    found.insert(Claimed::Address(*ip));
                }
                NodeMatcher::Machine(machine) if nodes.machine_claimants(machine.as_str()).len() > 1 => {
                    found.insert(Claimed::Machine(machine.as_str().to_owned()));
                }
                NodeMatcher::Interface(_) => has_interface = true,
                _ => {}
            }
        }
        let machines = nodes.contested().map(|(claimed, _)| claimed);
        let machines = machines.filter(|claimed| has_interface && matches!(claimed, Claimed::Machine(_)));
        found.extend(machines.cloned());
        found
    }

    /// Whether every load balancer of the cluster was planned with the signal.
    pub(super) fn are_planned(&self, period: &SignalPeriod) -> bool {
        self.managed().all(|one| one.status.has_planned(period.generation))
    }
}

/// Whether the list was sent after the read that the plan was made from.
fn is_newer(listing: &Listing, status: &LoadBalancerStatus) -> bool {
    let listed_at = listing.requested_at;
    listed_at.is_some_and(|at| status.observed_at.is_none_or(|planned| planned < at))
}

/// The admin states of these entries of a pool in a list that the pool writer has not adopted yet; none if the plan is as new as the list.
/// Others may be among them: a pool has thousands, of which a plan has a status for few.
fn listed_after_plan<'a>(
    listing: &'a Listing,
    load_balancer: &PlannedLoadBalancer,
    pool: &PoolId,
    planned: &[EntryStatus],
) -> HashMap<&'a EntryKey, Option<AdminState>> {
    let is_newer = is_newer(listing, &load_balancer.status);
    let listed = listing.load_balancers.get(&load_balancer.id).filter(|_| is_newer);
    let pool = listed.and_then(|view| view.pools.iter().find(|known| known.id == *pool));
    let Some(pool) = pool else { return HashMap::new() };
    let planned: FingerprintSet = planned.iter().map(|entry| entry.key.fingerprint()).collect();
    // Of entries with the same key the first counts.
    let entries = pool.entries.iter().rev();
    let listed = entries.filter_map(|entry| Some((entry.key.as_ref()?, entry.admin_state)));
    listed
        .filter(|(key, _)| planned.may_contain(key.fingerprint()))
        .collect()
}
