//! What the last reads of all managed load balancers prove about a Node with a signal: that it is out of service, that it is not, or
//! nothing. Pure. The marker and the reads that maintenances wait for both follow from [`prove`].
//!
//! Invariant: [`ReadProof::Out`] needs a list of load balancers that is not older than [`MAX_LIST_AGE`], plans of all of them that know
//! the signal, entries of the Node that are all `Down` by the newest read or list, and no entry that may be the Node's without being
//! known as such. What is said about it, and how long an answer may be awaited, is left to the callers.

use std::collections::HashMap;
use std::time::Duration;

use headgate_azure::{AdminState, LoadBalancerId};
use jiff::Timestamp;
use tokio::time::Instant;

use super::editor::LoadBalancerStatus;
use super::plan::EntryStatus;
use super::settings::AdminStateMode;
use super::target_states::{SignalPeriod, TargetStates};
use crate::pool::{Claimed, ClusterNode, Listing};

/// The age of the last list from which it proves nothing. While a Node has a signal, a list is due every 15 s.
pub(super) const MAX_LIST_AGE: Duration = Duration::from_secs(45);

/// One managed load balancer, as it was planned last.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedLoadBalancer<'a> {
    pub(super) id: &'a LoadBalancerId,
    pub(super) status: &'a LoadBalancerStatus,
}

/// The last reads, and what they are compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastReads<'a> {
    /// The Nodes and their signals.
    pub(super) targets: &'a TargetStates,
    /// Every managed load balancer.
    pub(super) load_balancers: &'a [PlannedLoadBalancer<'a>],
    /// The last list. A pool writer does not adopt it while it waits for ARM.
    pub(super) listing: &'a Listing,
    /// Whether it is known that the cluster has no Service of type `LoadBalancer`, and so no load balancer.
    pub(super) has_no_load_balancer_service: bool,
    /// What the leader writes.
    pub(super) mode: AdminStateMode,
    /// The time of the evaluation.
    pub(super) now: Instant,
}

/// An entry of a Node, and its load balancer.
#[derive(Clone, Copy)]
pub(super) struct OwnEntry<'a> {
    pub(super) entry: &'a EntryStatus,
    pub(super) load_balancer: PlannedLoadBalancer<'a>,
}

/// What the reads prove.
#[derive(Clone)]
pub(super) enum ReadProof<'a> {
    /// No managed load balancer sends new connections to the Node.
    Out,
    /// These entries are in service.
    InService {
        entries: Vec<&'a EntryStatus>,
        /// Whether every load balancer was planned with the signal, so that the entries are all there are.
        is_planned: bool,
    },
    /// Nothing.
    Nothing(MissingProof),
}

/// Why the reads prove nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MissingProof {
    /// The leader sets no Node `Down`.
    ModeOff,
    /// The Nodes are known as of then only.
    NodesStale(Timestamp),
    /// Not every load balancer was planned with the signal.
    NotPlanned,
    /// The last list is too old, or there is none.
    NotListed,
    /// No load balancer has the cluster's names, which may be wrong: Services want one, or are not known.
    NoLoadBalancer,
    /// The Node has nothing by which its entries are found.
    NotIdentified,
    /// Another Node has this address or machine, too.
    Contested(Claimed),
    /// The entry of an interface that is not known yet may be the Node's.
    InterfaceUnknown,
    /// The entry of an interface that cannot be read may be the Node's. The message names pool and interface.
    InterfaceUnreadable(String),
}

/// The load balancers of these statuses.
pub(super) fn planned(statuses: &[(LoadBalancerId, LoadBalancerStatus)]) -> Vec<PlannedLoadBalancer<'_>> {
    let planned = statuses.iter().map(|(id, status)| PlannedLoadBalancer { id, status });
    planned.collect()
}

/// The entries of each Node, by its UID.
pub(super) fn entries_by_node<'a>(load_balancers: &[PlannedLoadBalancer<'a>]) -> HashMap<&'a str, Vec<OwnEntry<'a>>> {
    let mut entries: HashMap<&str, Vec<OwnEntry<'_>>> = HashMap::new();
    for load_balancer in load_balancers {
        for entry in &load_balancer.status.entries {
            let own = OwnEntry {
                entry,
                load_balancer: *load_balancer,
            };
            entries.entry(&entry.node.uid).or_default().push(own);
        }
    }
    entries
}

/// The present signal of a Node.
pub(super) fn present_signal<'a>(targets: &'a TargetStates, node: &ClusterNode) -> Option<&'a SignalPeriod> {
    targets.signal_period(node).filter(|period| period.ended_at.is_none())
}

/// What the reads prove about a Node whose signal is `period`; `own` are its entries.
pub(super) fn prove<'a>(
    reads: &LastReads<'_>,
    node: &ClusterNode,
    period: &SignalPeriod,
    own: &[OwnEntry<'a>],
) -> ReadProof<'a> {
    if reads.mode == AdminStateMode::Off {
        return ReadProof::Nothing(MissingProof::ModeOff);
    }
    if let Some(since) = reads.targets.stale_since() {
        return ReadProof::Nothing(MissingProof::NodesStale(since));
    }
    let is_known = |one: &PlannedLoadBalancer<'_>| one.status.has_planned(period.generation);
    let is_planned = reads.listing.requested_at.is_some() && reads.load_balancers.iter().all(is_known);
    let in_service = own.iter().filter(|own| !own.is_down(reads.listing));
    let entries: Vec<_> = in_service.map(|own| own.entry).collect();
    if !entries.is_empty() {
        return ReadProof::InService { entries, is_planned };
    }
    match missing_proof(reads, node, is_planned) {
        Some(missing) => ReadProof::Nothing(missing),
        None => ReadProof::Out,
    }
}

/// Why entries that are all `Down` do not prove that the Node is out.
fn missing_proof(reads: &LastReads<'_>, node: &ClusterNode, is_planned: bool) -> Option<MissingProof> {
    if !is_planned {
        return Some(MissingProof::NotPlanned);
    }
    let listed_at = reads.listing.requested_at;
    if listed_at.is_none_or(|at| reads.now >= at + MAX_LIST_AGE) {
        return Some(MissingProof::NotListed);
    }
    if reads.load_balancers.is_empty() && !reads.has_no_load_balancer_service {
        return Some(MissingProof::NoLoadBalancer);
    }
    if node.addresses.is_empty() && node.machine.is_empty() {
        return Some(MissingProof::NotIdentified);
    }
    let addresses = node.addresses.iter().copied().map(Claimed::Address);
    let machine = Some(&node.machine).filter(|machine| !machine.is_empty());
    let mut claims = addresses.chain(machine.cloned().map(Claimed::Machine));
    if let Some(claimed) = claims.find(|claimed| reads.targets.nodes.claimants_of(claimed).len() > 1) {
        return Some(MissingProof::Contested(claimed));
    }
    let statuses = || reads.load_balancers.iter().map(|one| one.status);
    if let Some(unreadable) = statuses().flat_map(|status| &status.unreadable_pools).next() {
        return Some(MissingProof::InterfaceUnreadable(unreadable.last_error.message.clone()));
    }
    let is_unknown = statuses().any(|status| !status.covers_interfaces);
    is_unknown.then_some(MissingProof::InterfaceUnknown)
}

impl OwnEntry<'_> {
    /// Whether the newest read or list shows the entry `Down`, and the plan keeps it so.
    fn is_down(&self, listing: &Listing) -> bool {
        let is_read_down = self.entry.observed == Some(AdminState::Down) && !self.entry.is_held_back;
        is_read_down && !self.is_disproved(listing)
    }

    /// Whether a list that the pool writer has not adopted yet shows another admin state.
    fn is_disproved(&self, listing: &Listing) -> bool {
        let Some((requested_at, view)) = listing.load_balancer(self.load_balancer.id) else {
            return false;
        };
        if self
            .load_balancer
            .status
            .observed_at
            .is_some_and(|at| at >= requested_at)
        {
            return false;
        }
        let pool = view.pools.iter().find(|pool| pool.id == self.entry.pool);
        let mut entries = pool.into_iter().flat_map(|pool| &pool.entries);
        let listed = entries.find(|entry| entry.key.as_ref() == Some(&self.entry.key));
        listed.is_some_and(|entry| entry.admin_state != Some(AdminState::Down))
    }
}
