//! What the condition of each Node should say. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::AdminState;
use headgate_node::{MarkerCondition, MarkerState, MarkerStatus};
use headgate_telemetry::first_names;
use tokio::time::Instant;

use super::super::plan::{EntryStatus, ProbeCoverage};
use super::super::read_proof::{
    LastReads, MAX_LIST_AGE, MissingProof, OwnEntry, ReadProof, entries_by_node, present_signal, prove,
};
use super::super::target_states::SignalPeriod;
use super::super::transitions::short_name;
use crate::pool::{Claimed, ClusterNode, Listing};

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

/// What the conditions follow from.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct MarkerInputs<'a> {
    /// The last reads of all managed load balancers.
    pub(in super::super) reads: LastReads<'a>,
    /// When the work of the term started.
    pub(in super::super) started_at: Instant,
}

/// What the reads say about a Node.
enum Evidence {
    Out(String),
    NotOut(&'static str, String),
    /// Nothing until then: the term or the signal has only begun.
    NotBefore(Instant),
}

/// What the conditions should say: of every Node with a signal, and of those without one that do not show that yet.
#[must_use]
pub(in super::super) fn evaluate(inputs: &MarkerInputs<'_>) -> Evaluation {
    let targets = inputs.reads.targets;
    let entries = entries_by_node(inputs.reads.load_balancers);
    let mut evaluation = Evaluation::default();
    let is_unsettled = |node: &&Arc<ClusterNode>| node.marker.as_ref().is_some_and(|shown| !shown.is_without_signal());
    let unsettled = targets.nodes.iter().filter(is_unsettled);
    for node in targets.nodes_with_periods().chain(unsettled) {
        let own = entries.get(node.uid.as_str()).map_or(&[][..], Vec::as_slice);
        let (state, next_at) = evaluate_node(inputs, node, own);
        evaluation.next_at = evaluation.next_at.into_iter().chain(next_at).min();
        evaluation.markers.extend(state.map(|state| (node.name.clone(), state)));
    }
    evaluation
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
    let Some(period) = present_signal(inputs.reads.targets, node) else {
        // Stale Nodes show no end of a signal.
        let is_unsettled = node.marker.as_ref().is_some_and(|shown| !shown.is_without_signal());
        let is_due = is_unsettled && inputs.reads.targets.stale_since().is_none();
        let ended = || MarkerState::without_signal(node.uid.clone(), node.marker.clone());
        return (is_due.then(ended), None);
    };
    match evidence(inputs, node, period, own) {
        Evidence::Out(message) => {
            let next_at = inputs.reads.listing.requested_at.map(|at| at + MAX_LIST_AGE);
            (Some(state(MarkerStatus::True, "AdminStateDown", message)), next_at)
        }
        Evidence::NotOut(reason, message) => (Some(state(MarkerStatus::False, reason, message)), None),
        Evidence::NotBefore(next_at) => (None, Some(next_at)),
    }
}

fn evidence(inputs: &MarkerInputs<'_>, node: &ClusterNode, period: &SignalPeriod, own: &[OwnEntry<'_>]) -> Evidence {
    let reads = &inputs.reads;
    let is_shown_out = node
        .marker
        .as_ref()
        .is_some_and(|shown| shown.status == MarkerStatus::True.as_str());
    let may_wait = |until: Instant| reads.now < until && reads.listing.last_error.is_none();
    let (reason, message) = match prove(reads, node, period, own) {
        ReadProof::Out => return Evidence::Out(down_message(reads.listing, own)),
        ReadProof::InService { entries, is_planned } => {
            // The message is complete once every load balancer is planned. A `True` is disproved by one entry.
            let wait_until = period.since.mono + FIRST_PLAN_TIME;
            if !is_planned && !is_shown_out && may_wait(wait_until) {
                return Evidence::NotBefore(wait_until);
            }
            ("NotDown", not_down_message(node, &entries))
        }
        ReadProof::Nothing(MissingProof::NotPlanned) => {
            let wait_until = if is_shown_out {
                inputs.started_at + TAKEOVER_TIME
            } else {
                period.since.mono + FIRST_PLAN_TIME
            };
            if may_wait(wait_until) {
                return Evidence::NotBefore(wait_until);
            }
            let message = "Not every managed load balancer has been read since the signal.";
            ("NotRead", message.to_owned())
        }
        ReadProof::Nothing(missing) => missing_message(&missing),
    };
    Evidence::NotOut(reason, message)
}

/// Reason and message of a condition for which the reads prove nothing.
fn missing_message(missing: &MissingProof) -> (&'static str, String) {
    match missing {
        MissingProof::ModeOff => {
            let message = "adminState.mode is off: the leader sets no node Down.";
            ("AdminStateOff", message.to_owned())
        }
        MissingProof::NodesStale(since) => ("NodesStale", format!("The Nodes are known as of {since:.0} only.")),
        MissingProof::NotPlanned | MissingProof::NotListed => {
            let message = format!(
                "The load balancers were not listed in the last {} s.",
                MAX_LIST_AGE.as_secs()
            );
            ("NotRead", message)
        }
        MissingProof::NoLoadBalancer => {
            let message = "There is no load balancer with the cluster's names (azure.clusterName): headgate status shows which it looks for.";
            ("NoLoadBalancer", message.to_owned())
        }
        MissingProof::NotIdentified => {
            let message = "The Node has neither an InternalIP nor a providerID, so its pool entries are not known.";
            ("NotIdentified", message.to_owned())
        }
        MissingProof::Contested(Claimed::Machine(machine)) => {
            let message =
                format!("{machine} is the machine of another Node, too, so its pool entries may be that one's.");
            ("MachineContested", message)
        }
        MissingProof::Contested(Claimed::Address(address)) => {
            let message =
                format!("{address} is an InternalIP of another Node, too, so a pool entry with it may be this node's.");
            ("AddressContested", message)
        }
        MissingProof::InterfaceUnknown | MissingProof::InterfaceUnreadable(_) => {
            let message =
                "A network interface of a pool is not known yet or cannot be read: its entry may be this node's.";
            ("NotRead", message.to_owned())
        }
    }
}

fn not_down_message(node: &ClusterNode, in_service: &[&EntryStatus]) -> String {
    let pools = pool_names(in_service.iter().copied());
    let mut message = format!("Not Down in {pools}.");
    if let Some(entry) = in_service.iter().find(|entry| entry.is_held_back) {
        message = format!("{message} The guard holds the node back: {}.", entry.held_for.reason());
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
    let rules = first_names(rules.collect::<BTreeSet<_>>(), MAX_NAMES);
    if !rules.is_empty() {
        message = format!("{message} These rules have no health probe and ignore Down: {rules}.");
    }
    message
}

/// The names of the entries' pools.
fn pool_names<'a>(entries: impl Iterator<Item = &'a EntryStatus>) -> String {
    let pools: BTreeSet<_> = entries.map(|entry| short_name(&entry.pool)).collect();
    first_names(pools, MAX_NAMES)
}

#[cfg(test)]
mod tests;
