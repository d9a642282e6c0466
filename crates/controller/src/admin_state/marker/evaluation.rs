//! What the condition of each Node should say. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use headgate_azure::{AdminState, LoadBalancerId};
use headgate_node::{MarkerCondition, MarkerState, MarkerStatus};
use tokio::time::Instant;

use super::super::editor::LoadBalancerStatus;
use super::super::plan::{EntryStatus, ProbeCoverage};
use super::super::settings::AdminStateMode;
use super::super::target_states::{SignalPeriod, TargetStates};
use crate::pool::{ClusterNode, Listing};

/// The age of the last list from which it proves nothing. While a Node has a signal, a list is due every 15 s.
const MAX_LIST_AGE: Duration = Duration::from_secs(45);
/// After the start of a term: until then a condition that a leader before confirmed stays, unless a read disproves it.
const TAKEOVER_TIME: Duration = Duration::from_secs(15);
/// After a signal: a plan usually follows within milliseconds, and the first write says what it shows.
const FIRST_PLAN_TIME: Duration = Duration::from_secs(1);
/// The pools, and the rules, that a message names.
const MAX_NAMES: usize = 8;

/// By the name of the Node.
pub(in super::super) type Markers = BTreeMap<String, MarkerState>;

/// What all conditions should say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Evaluation {
    pub(in super::super) markers: Markers,
    /// When another evaluation may differ although nothing has happened.
    pub(in super::super) next_at: Option<Instant>,
}

/// One managed load balancer, as it was planned last.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct PlannedLoadBalancer<'a> {
    pub(in super::super) id: &'a LoadBalancerId,
    pub(in super::super) status: &'a LoadBalancerStatus,
}

/// What the conditions follow from.
#[derive(Clone, Debug)]
pub(in super::super) struct MarkerInputs<'a> {
    /// The Nodes and their signals.
    pub(in super::super) targets: &'a TargetStates,
    /// Every managed load balancer.
    pub(in super::super) load_balancers: Vec<PlannedLoadBalancer<'a>>,
    /// The last list. A pool writer does not adopt it while it waits for ARM.
    pub(in super::super) listing: &'a Listing,
    /// What the leader writes.
    pub(in super::super) mode: AdminStateMode,
    /// When the work of the term started.
    pub(in super::super) started_at: Instant,
    /// The time of the evaluation.
    pub(in super::super) now: Instant,
}

/// What the reads say about a Node.
enum Evidence {
    Out(String),
    NotOut(&'static str, String),
    /// Nothing until then: the term or the signal has only begun.
    NotBefore(Instant),
}

/// What the conditions should say: of every Node with a signal, and of those that have the condition without one.
#[must_use]
pub(in super::super) fn evaluate(inputs: &MarkerInputs<'_>) -> Evaluation {
    let mut entries: HashMap<&str, Vec<OwnEntry<'_>>> = HashMap::new();
    for load_balancer in &inputs.load_balancers {
        for entry in &load_balancer.status.entries {
            let own = OwnEntry {
                entry,
                load_balancer: *load_balancer,
            };
            entries.entry(&entry.node.uid).or_default().push(own);
        }
    }
    let mut evaluation = Evaluation::default();
    for node in inputs.targets.nodes.iter() {
        let own = entries.get(node.uid.as_str()).map_or(&[][..], Vec::as_slice);
        let (state, next_at) = evaluate_node(inputs, node, own);
        evaluation.next_at = evaluation.next_at.into_iter().chain(next_at).min();
        evaluation.markers.extend(state.map(|state| (node.name.clone(), state)));
    }
    evaluation
}

/// An entry of a Node, and its load balancer.
#[derive(Clone, Copy)]
struct OwnEntry<'a> {
    entry: &'a EntryStatus,
    load_balancer: PlannedLoadBalancer<'a>,
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

/// What the condition of a Node should say, and until when.
fn evaluate_node(
    inputs: &MarkerInputs<'_>,
    node: &ClusterNode,
    own: &[OwnEntry<'_>],
) -> (Option<MarkerState>, Option<Instant>) {
    let state = |status, reason, message| {
        let wanted = MarkerCondition {
            status,
            reason,
            message,
        };
        MarkerState::new(node.uid.clone(), wanted, node.marker.clone())
    };
    let period = inputs.targets.signal_period(node);
    let Some(period) = period.filter(|period| period.ended_at.is_none()) else {
        // Stale Nodes show no end of a signal.
        let is_due = node.marker.is_some() && inputs.targets.stale_since().is_none();
        let ended = || MarkerState::without_signal(node.uid.clone(), node.marker.clone());
        return (is_due.then(ended), None);
    };
    match evidence(inputs, node, period, own) {
        Evidence::Out(message) => {
            let next_at = inputs.listing.requested_at.map(|at| at + MAX_LIST_AGE);
            (Some(state(MarkerStatus::True, "AdminStateDown", message)), next_at)
        }
        Evidence::NotOut(reason, message) => (Some(state(MarkerStatus::False, reason, message)), None),
        Evidence::NotBefore(next_at) => (None, Some(next_at)),
    }
}

fn evidence(inputs: &MarkerInputs<'_>, node: &ClusterNode, period: &SignalPeriod, own: &[OwnEntry<'_>]) -> Evidence {
    if inputs.mode == AdminStateMode::Off {
        let message = "adminState.mode is off: the leader sets no node Down.";
        return Evidence::NotOut("AdminStateOff", message.to_owned());
    }
    if let Some(since) = inputs.targets.stale_since() {
        return Evidence::NotOut("NodesStale", format!("The Nodes are known as of {since:.0} only."));
    }
    let in_service = own.iter().filter(|own| !own.is_down(inputs.listing));
    let in_service: Vec<_> = in_service.map(|own| own.entry).collect();
    let is_planned = |one: &PlannedLoadBalancer<'_>| one.status.has_planned(period.generation);
    let is_read = inputs.listing.requested_at.is_some() && inputs.load_balancers.iter().all(is_planned);
    let is_shown_out = node
        .marker
        .as_ref()
        .is_some_and(|shown| shown.status == MarkerStatus::True.as_str());
    if !in_service.is_empty() {
        // The message is complete once every load balancer is planned. A `True` is disproved by one entry.
        let wait_until = period.since.mono + FIRST_PLAN_TIME;
        if !is_read && !is_shown_out && inputs.now < wait_until && inputs.listing.last_error.is_none() {
            return Evidence::NotBefore(wait_until);
        }
        return Evidence::NotOut("NotDown", not_down_message(node, &in_service));
    }
    if !is_read {
        let wait_until = if is_shown_out {
            inputs.started_at + TAKEOVER_TIME
        } else {
            period.since.mono + FIRST_PLAN_TIME
        };
        if inputs.now < wait_until && inputs.listing.last_error.is_none() {
            return Evidence::NotBefore(wait_until);
        }
        let message = "Not every managed load balancer has been read since the signal.";
        return Evidence::NotOut("NotRead", message.to_owned());
    }
    let listed_at = inputs.listing.requested_at;
    if listed_at.is_none_or(|at| inputs.now >= at + MAX_LIST_AGE) {
        let message = format!(
            "The load balancers were not listed in the last {} s.",
            MAX_LIST_AGE.as_secs()
        );
        return Evidence::NotOut("NotRead", message);
    }
    if inputs.load_balancers.is_empty() {
        let message = "There is no load balancer with the cluster's names (azure.clusterName): headgate status shows which it looks for.";
        return Evidence::NotOut("NoLoadBalancer", message.to_owned());
    }
    if node.addresses.is_empty() && node.machine.is_empty() {
        let message = "The Node has neither an InternalIP nor a providerID, so its pool entries are not known.";
        return Evidence::NotOut("NotIdentified", message.to_owned());
    }
    let is_contested = |address| inputs.targets.nodes.claimants(address).len() > 1;
    if let Some(address) = node.addresses.iter().copied().find(|address| is_contested(*address)) {
        let message =
            format!("{address} is an InternalIP of another Node, too, so a pool entry with it may be this node's.");
        return Evidence::NotOut("AddressContested", message);
    }
    let mut statuses = inputs.load_balancers.iter().map(|one| one.status);
    if statuses.any(|status| !status.covers_interfaces || !status.unreadable_pools.is_empty()) {
        let message = "A network interface of a pool is not known yet or cannot be read: its entry may be this node's.";
        return Evidence::NotOut("NotRead", message.to_owned());
    }
    Evidence::Out(down_message(inputs.listing, own))
}

fn not_down_message(node: &ClusterNode, in_service: &[&EntryStatus]) -> String {
    let pools = pool_names(in_service.iter().copied());
    let mut message = format!("Not Down in {pools}.");
    if in_service.iter().any(|entry| entry.is_held_back) {
        message += " The guard holds the node back: too few others can serve.";
    }
    if in_service.iter().any(|entry| entry.observed == Some(AdminState::Up)) {
        message += " An entry is Up, which is an operator's decision.";
    }
    if let Some(label) = node.exempting_label() {
        message = format!("{message} The label {label} keeps it from being set Down.");
    }
    message
}

fn down_message(listing: &Listing, own: &[OwnEntry<'_>]) -> String {
    let mut message = match pool_names(own.iter().map(|own| own.entry)) {
        pools if pools.is_empty() => "Every managed load balancer was read without an entry of this node.".to_owned(),
        pools => format!("Read back as Down in {pools}; in no other managed pool."),
    };
    let unprobed = own.iter().filter(|own| own.entry.probe_coverage != ProbeCoverage::All);
    let rules = unprobed.flat_map(|own| {
        let view = listing.load_balancers.get(own.load_balancer.id);
        let pools = view.into_iter().flat_map(|view| &view.pools);
        let rules = pools
            .filter(|pool| pool.id == own.entry.pool)
            .flat_map(|pool| &pool.rules);
        let rules = rules.filter(|rule| rule.probe.is_none());
        rules.map(|rule| format!("{}/{}", own.load_balancer.id.name(), rule.name))
    });
    let rules = first_names(rules.collect());
    if !rules.is_empty() {
        message = format!("{message} These rules have no health probe and ignore Down: {rules}.");
    }
    message
}

/// The names of the entries' pools.
fn pool_names<'a>(entries: impl Iterator<Item = &'a EntryStatus>) -> String {
    first_names(
        entries
            .map(|entry| format!("{}/{}", entry.pool.load_balancer().name(), entry.pool.name()))
            .collect(),
    )
}

/// The first [`MAX_NAMES`] names.
fn first_names(all: BTreeSet<String>) -> String {
    let more = all.len().saturating_sub(MAX_NAMES);
    let mut first: Vec<_> = all.into_iter().take(MAX_NAMES).collect();
    if more > 0 {
        first.push(format!("{more} more"));
    }
    first.join(", ")
}

#[cfg(test)]
mod tests;
