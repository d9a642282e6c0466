//! The holds of all Nodes, from the plans of all load balancers, and the events about new ones. Pure.
//!
//! A hold names the pools in which the guard keeps the Node's entries in service, and the signals that it covers: those of the
//! Node now, for admin states and for health answers. What only rules of Local Services need is
//! recorded for `why` and turns no answer (see `rule_guard`). So a new signal is covered only once the leader has planned with it.
//! `hold_intents` publishes the holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headgate_azure::PoolId;
use headgate_core::node::{NodeHold, SignalPeriod};
use headgate_core::telemetry::first_names;
use jiff::Timestamp;
use tokio::time::Instant;

use super::guard::{GuardSettings, may_be_alive};
use super::last_reads::LastReads;
use super::rule_guard::HeldFor;
use super::target_states::TargetStates;
use super::transitions::{HELD_BACK, MAX_POOLS_NAMED, NodeEvent};
use crate::pool::ClusterNode;

/// The longest reason that is recorded: the signals and the pools need room, too.
const MAX_REASON_BYTES: usize = 512;

/// What is to be recorded on one Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DesiredHold {
    pub(super) node: Arc<ClusterNode>,
    /// Without the time of the record.
    pub(super) hold: NodeHold,
    /// Those of its pools in which too few others can serve.
    pub(super) needed: BTreeSet<String>,
}

impl DesiredHold {
    pub(super) fn new(node: &Arc<ClusterNode>, hold: NodeHold) -> Self {
        Self {
            node: Arc::clone(node),
            hold: NodeHold {
                node_uid: node.uid.clone(),
                renewed_at: Timestamp::UNIX_EPOCH,
                ..hold
            },
            needed: BTreeSet::new(),
        }
    }

    /// Whether the Node has a record for this reason and one of these pools.
    pub(super) fn is_recorded(&self) -> bool {
        let recorded = self.node.hold.as_ref();
        recorded.is_some_and(|it| it.reason == self.hold.reason && !it.pools.is_disjoint(&self.hold.pools))
    }

    /// What is recorded on the Node; `None` if it is more than an agent reads.
    pub(super) fn record(&self, renewed_at: Timestamp) -> Option<NodeHold> {
        let mut hold = self.hold.clone();
        hold.renewed_at = renewed_at;
        hold.bounded()
    }
}

/// The holds of all Nodes, by the name of the Node.
pub(super) type DesiredHolds = BTreeMap<String, DesiredHold>;

/// The load balancers that this term has not planned yet, or cannot plan because of its configuration. What is recorded for their pools
/// stays, so that holds do not end while ARM does not answer the next leader, or because of a mistake in `azure.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unplanned {
    /// None is known: no list has succeeded.
    All,
    /// These, by name.
    Named(BTreeSet<String>),
}

impl Unplanned {
    fn contains(&self, pool: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => pool.split_once('/').is_some_and(|(name, _)| {
                // The ledger has names in lower case.
                names.iter().any(|unplanned| unplanned.eq_ignore_ascii_case(name))
            }),
        }
    }
}

/// The holds that follow from what all load balancers show. `awaits_lookups`: a load balancer whose network interfaces are not all looked
/// up asks for none yet, as its plan counts too few that can serve.
pub(super) fn desired_holds(
    reads: &LastReads<'_>,
    unplanned: &Unplanned,
    guard: &GuardSettings,
    awaits_lookups: bool,
) -> DesiredHolds {
    let (targets, now) = (reads.targets, reads.now.mono);
    let probing = reads.statuses().flat_map(|status| &status.pools);
    let probing: BTreeSet<&PoolId> = probing
        .filter(|pool| pool.probes_headgate)
        .map(|pool| &pool.pool)
        .collect();
    let mut holds = if guard.is_disabled() {
        DesiredHolds::new()
    } else {
        kept_holds(unplanned, targets, now)
    };
    for own in reads.entries.values() {
        let own = own
            .iter()
            .filter(|own| !awaits_lookups || own.load_balancer.status.planned_generation.is_some());
        let entries = own.map(|own| own.entry).filter(|entry| entry.held_for.is_news());
        let Some(planned) = entries.clone().next().map(|entry| &entry.node) else {
            continue;
        };
        // The Node as it is now: the plan may be older.
        let node = targets.nodes.by_name(&planned.name);
        let Some(node) = node.filter(|node| node.uid == planned.uid) else {
            continue;
        };
        let period = targets.signal_period(node).filter(|period| period.ended_at.is_none());
        let mut signals = period.map(SignalPeriod::names).unwrap_or_default();
        // The agent answers 503 for these, or soon may. For a condition of health alone it goes on to.
        let revocable = node.health_signals.iter().filter(|signal| signal.is_revocable());
        signals.extend(revocable.map(ToString::to_string));
        if signals.is_empty() {
            continue;
        }
        let desired = holds.entry(node.name.clone());
        let desired = desired.or_insert_with(|| DesiredHold::new(node, NodeHold::default()));
        let hold = &mut desired.hold;
        hold.pending = targets.pending_signals(node);
        hold.pending.retain(|name| signals.contains(name));
        hold.signals = signals;
        hold.reason = HeldFor::union(entries.clone()).without_listing().reason();
        hold.reason.truncate(hold.reason.floor_char_boundary(MAX_REASON_BYTES));
        for entry in entries {
            let name = entry.pool.short_name();
            // What a rule needs does not turn the agent's answer: rules that probe it have other Nodes.
            let is_for_agents = entry.held_for.minimum || entry.held_for.brake;
            hold.probes_headgate |= is_for_agents && probing.contains(&entry.pool);
            if entry.held_for.minimum {
                desired.needed.insert(name.clone());
            }
            hold.pools.insert(name);
        }
    }
    holds
}

/// What is recorded for load balancers that are not planned, on Nodes that may still be held and have, or had a moment ago, a signal.
fn kept_holds(unplanned: &Unplanned, targets: &TargetStates, now: Instant) -> DesiredHolds {
    let has_signals = |node: &ClusterNode| {
        let counts = targets.signal_period(node).is_some() || !node.health_signals.is_empty();
        counts || !targets.pending_signals(node).is_empty()
    };
    let may_be_held = |node: &&Arc<ClusterNode>| may_be_alive(node, targets, now) && has_signals(node);
    let kept = targets.held_nodes().filter(may_be_held).filter_map(|node| {
        let recorded = node.hold.as_ref()?;
        let mut hold = recorded.clone();
        hold.pools.retain(|pool| unplanned.contains(pool));
        (!hold.pools.is_empty()).then(|| (node.name.clone(), DesiredHold::new(node, hold)))
    });
    kept.collect()
}

/// The held Nodes that have an event: one from the start to the end of a hold, also if more pools follow.
#[derive(Debug, Default)]
pub(super) struct HoldTracker {
    /// By UID.
    reported: BTreeSet<String>,
}

impl HoldTracker {
    /// The events about holds that are new. A hold that an earlier leader recorded has its event already.
    pub(super) fn evaluate(&mut self, holds: &DesiredHolds, guard: &GuardSettings) -> Vec<NodeEvent> {
        let is_recorded = |hold: &DesiredHold| {
            let recorded = hold.node.hold.as_ref();
            recorded.is_some_and(|recorded| !recorded.pools.is_disjoint(&hold.needed))
        };
        let is_new = |hold: &&DesiredHold| !is_recorded(hold) && !self.reported.contains(&hold.node.uid);
        let event = |hold: &DesiredHold| NodeEvent::new(&hold.node, HELD_BACK, held_back_note(hold, guard));
        let needed = || holds.values().filter(|hold| !hold.needed.is_empty());
        let events = needed().filter(is_new).map(event).collect();
        self.reported = needed().map(|hold| hold.node.uid.clone()).collect();
        events
    }
}

fn held_back_note(hold: &DesiredHold, guard: &GuardSettings) -> String {
    let pools = first_names(&hold.needed, MAX_POOLS_NAMED);
    let signals: Vec<_> = hold.hold.signals.iter().map(String::as_str).collect();
    let mut note = format!(
        "Kept in service in {pools} despite {}: without this node, fewer than {} of its addresses would serve \
         (adminState.minimumInService).",
        signals.join(", "),
        guard.minimum_in_service
    );
    if hold.hold.probes_headgate && !guard.may_write_holds {
        note.push_str(
            " /healthz of this node still answers 503, so health probes take it out: only a leader of \
             headgate-controller may record a hold on a Node.",
        );
    }
    if hold.hold.probes_headgate && hold.record(Timestamp::UNIX_EPOCH).is_none() {
        // First, because the signals may fill the note.
        note.insert_str(
            0,
            "/healthz of this node still answers 503, so health probes take it out: the names of its signals exceed the 4096 bytes of \
             a hold. ",
        );
    }
    note
}

#[cfg(test)]
mod tests;
