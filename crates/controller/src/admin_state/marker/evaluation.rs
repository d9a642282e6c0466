//! What the condition of each Node should say. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_azure::AdminState;
use headgate_core::node::{
    MarkerCondition, MarkerFact, MarkerStatus, NodeTraffic, SignalPeriod, TrafficByNode, Unproved,
};
use headgate_core::telemetry::first_names;
use headgate_kubernetes::MarkerState;
use tokio::time::Instant;

use super::super::last_reads::{LastReads, OwnEntry};
use super::super::plan::{EntryStatus, ProbeCoverage};
use super::super::settings::AdminStateMode;
use super::super::target_states::{ADMIN_STATE_DOWN, has_unsettled_marker};
use super::super::traffic::MAX_LIST_AGE;
use super::super::transitions::{pool_names, statuses};
use crate::pool::{ClusterNode, Listing};

/// After the start of a term: until then a condition that a leader before confirmed stays, unless a read disproves it, and no hold begins
/// because of network interfaces that are not looked up.
pub(in super::super) const TAKEOVER_TIME: Duration = Duration::from_secs(15);
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
    pub(in super::super) reads: &'a LastReads<'a>,
    /// What they prove.
    pub(in super::super) traffic: &'a TrafficByNode,
    /// When the work of the term started.
    pub(in super::super) started_at: Instant,
}

/// What the conditions should say: of every Node with a signal, and of those without one that do not show that yet.
#[must_use]
pub(in super::super) fn evaluate(inputs: &MarkerInputs<'_>) -> Evaluation {
    let targets = inputs.reads.targets;
    let mut evaluation = Evaluation::default();
    for node in targets.nodes_with_periods().chain(targets.unsettled_nodes()) {
        let (state, next_at) = evaluate_node(inputs, node);
        evaluation.next_at = evaluation.next_at.into_iter().chain(next_at).min();
        evaluation.markers.extend(state.map(|state| (node.name.clone(), state)));
    }
    evaluation
}

/// What the condition of a Node should say, and until when.
fn evaluate_node(inputs: &MarkerInputs<'_>, node: &ClusterNode) -> (Option<MarkerState>, Option<Instant>) {
    let reads = inputs.reads;
    let present = reads.present_signal(node);
    let Some((traffic, period)) = inputs.traffic.get(&node.name).zip(present) else {
        // Stale Nodes show no end of a signal, and one that must last may have counted for the leader before.
        let is_out = node.marker.as_ref().is_some_and(MarkerFact::is_out);
        let may_have_signal = !is_out && reads.targets.is_all_pending(node);
        let is_due = has_unsettled_marker(node) && !may_have_signal && reads.targets.stale_since().is_none();
        let ended = || MarkerState::without_signal(node.uid.clone(), node.marker.clone());
        return (is_due.then(ended), None);
    };
    if let Some(until) = awaited_until(inputs, node, period, traffic) {
        return (None, Some(until));
    }
    let (status, reason, message) = match traffic {
        NodeTraffic::Out { .. } => {
            let own: Vec<_> = reads.managed_entries(node).collect();
            let message = down_message(reads.listing, &own);
            (MarkerStatus::True, ADMIN_STATE_DOWN, message)
        }
        NodeTraffic::InService { .. } | NodeTraffic::HeldBack { .. } => {
            let message = not_down_message(reads.mode, node, &reads.in_service(node));
            (MarkerStatus::False, "NotDown", message)
        }
        NodeTraffic::Unknown(why) => {
            let message = format!("It is not known whether the node is out: {why}.");
            (MarkerStatus::False, why.reason(), message)
        }
    };
    let wanted = MarkerCondition {
        status,
        reason,
        message,
    };
    let is_out = status == MarkerStatus::True;
    let next_at = reads.listing.received_at.map(|at| at + MAX_LIST_AGE);
    let state = MarkerState::new(node.uid.clone(), wanted, node.marker.clone());
    (Some(state), next_at.filter(|_| is_out))
}

/// Until when the condition stays as it is, because the term or the signal has only begun. A `True` is disproved by one entry.
fn awaited_until(
    inputs: &MarkerInputs<'_>,
    node: &ClusterNode,
    period: &SignalPeriod,
    traffic: &NodeTraffic,
) -> Option<Instant> {
    let reads = inputs.reads;
    let is_shown_out = node.marker.as_ref().is_some_and(MarkerFact::is_out);
    let first_plan = period.since.mono + FIRST_PLAN_TIME;
    let until = match traffic {
        NodeTraffic::Unknown(Unproved::NotPlanned | Unproved::NotListed(_)) if is_shown_out => {
            inputs.started_at + TAKEOVER_TIME
        }
        NodeTraffic::Unknown(Unproved::NotPlanned | Unproved::NotListed(_)) => first_plan,
        // The message is complete once every load balancer is planned.
        NodeTraffic::InService { .. } | NodeTraffic::HeldBack { .. } if !is_shown_out && !reads.are_planned(period) => {
            first_plan
        }
        _ => return None,
    };
    (reads.now.mono < until && reads.listing.last_error.is_none()).then_some(until)
}

fn not_down_message(mode: AdminStateMode, node: &ClusterNode, in_service: &[&EntryStatus]) -> String {
    let pools = pool_names(in_service);
    let mut message = format!("Not Down in {pools}.");
    if mode == AdminStateMode::Observe {
        message += " adminState.mode is Observe.";
    }
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

fn down_message(listing: &Listing, own: &[&OwnEntry<'_>]) -> String {
    let mut message = match pool_names(&statuses(own)) {
        pools if pools.is_empty() => "Every managed load balancer was read without an entry of this node.".to_owned(),
        pools => format!("Read back as Down in {pools}; in no other managed pool."),
    };
    let unprobed = own.iter().filter(|own| own.entry.probe_coverage != ProbeCoverage::All);
    let rules = unprobed.flat_map(|own| {
        let view = listing.load_balancers.get(&own.load_balancer.id);
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

#[cfg(test)]
mod tests;
