//! The guard: how many entries of a pool stay in service, and which ones although their Nodes have signals. Pure.
//!
//! A pool whose entries are all `Down`, or by default all fail their probe, serves nothing: whether Azure's `AllProbedUp` overrides `Down`
//! is not documented.
//! An entry can serve if it is not `Down` and its Node is Ready, carries no signal and is not excluded from load balancers.
//! Where probes reach headgate, the signals for `/healthz` count for that as well, from their first observation: agents count
//! by their own clocks, so one that must last may count for them before it counts for the leader. There, a Node without an agent never
//! can serve, and is no part of a percentage.
//! If fewer than the minimum can serve, entries whose Nodes' signals are all revocable are held back: of Ready Nodes, and of those
//! that are not Ready but not lost yet ([`TargetStates`]), which come last.
//!
//! `rule_guard` counts the Nodes of single rules, which may need more of a Node; `brake` says how many become `Down` at a time.
//!
//! Invariants: an entry is held back only while too few others can serve, as the last read showed them; so it is released only
//! after a read shows a replacement. A held entry stays the choice while it is valid. An entry of a Node that is about to
//! end (`ClusterNode::is_terminal`) is never held back. A `Down` that is not headgate's is never lifted.

use std::collections::BTreeSet;

use headgate_azure::{AdminState, PoolId};
use headgate_core::node::{Signal, SignalRules};
use tokio::time::Instant;

use super::ledger::LedgerEntry;
use super::plan::PlanInputs;
use super::target_states::{TargetState, TargetStates};
use crate::pool::{ClusterNode, EntryOwner, PoolView};
use crate::service_index::ServiceIndex;
use headgate_core::settings::IntOrPercent;

/// The settings of the guard, and what it needs of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardSettings {
    /// The setting `adminState.minimumInService`.
    pub minimum_in_service: IntOrPercent,
    /// The setting `adminState.maxNewDown`.
    pub max_new_down: IntOrPercent,
    /// The agents' health port, by which probes of headgate are recognized.
    pub health_port: u16,
    /// With which signals an agent answers 503.
    pub health_rules: SignalRules,
    /// Whether this process has the service account that may record holds on Nodes.
    pub may_write_holds: bool,
}

impl GuardSettings {
    /// Whether nothing is ever held back.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        self.minimum_in_service == Self::DISABLED.minimum_in_service && self.max_new_down == Self::DISABLED.max_new_down
    }

    /// No guard.
    pub const DISABLED: Self = Self {
        minimum_in_service: IntOrPercent::Int(0),
        max_new_down: IntOrPercent::ALL,
        health_port: 0,
        health_rules: SignalRules { matchers: Vec::new() },
        may_write_holds: false,
    };
}

/// The entries that the last plan held back: the pool, and the UID of the Node.
pub type HeldEntries = BTreeSet<(PoolId, String)>;

/// What a plan needs of the guard.
#[derive(Clone, Copy, Debug)]
pub struct GuardInputs<'a> {
    /// The settings.
    pub settings: &'a GuardSettings,
    /// The present choice.
    pub held: &'a HeldEntries,
    /// Which Nodes serve the rules of Local Services; `None` leaves these rules out.
    pub services: Option<&'a ServiceIndex>,
}

/// An entry whose Node may have a signal, with what decides whether it may be held back.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimedEntry<'a> {
    pub(super) index: usize,
    pub(super) owner: EntryOwner<'a>,
    /// The target state of its Node, whatever the mode.
    pub(super) target: TargetState,
    pub(super) observed: Option<AdminState>,
    pub(super) ledger_entry: Option<LedgerEntry>,
}

/// The indexes of the entries to hold back in a pool that a rule uses.
///
/// `owned` are all entries of the pool whose Nodes have a signal for admin states or for health answers.
pub(super) fn entries_to_hold_back(
    pool: &PoolView,
    owned: &[ClaimedEntry<'_>],
    inputs: &PlanInputs<'_>,
) -> BTreeSet<usize> {
    let (targets, guard, now) = (inputs.targets, inputs.guard, inputs.now.mono);
    let (minimum, size) = (guard.settings.minimum_in_service, pool.entries.len());
    if minimum.rounded_up(size) == 0 {
        return BTreeSet::new();
    }
    let is_probed = pool.probes_headgate(guard.settings.health_port);
    let lacks_agent = |node: &ClusterNode| is_probed && node.lacks_agent;
    let minimum = match minimum {
        IntOrPercent::Percent(_) if is_probed => {
            let owners = pool.entries.iter().filter_map(|entry| inputs.owner(entry));
            minimum.rounded_up(size - owners.filter(|owner| lacks_agent(owner.node)).count())
        }
        _ => minimum.rounded_up(size),
    };
    // A signal that ended a moment ago is no signal; the entry stays as it is.
    let is_signalled = |node: &ClusterNode| targets.target_state(node, now) == TargetState::Down;
    let fails_probes = |node: &ClusterNode| is_probed && !node.health_signals.is_empty();
    let can_serve =
        |node: &ClusterNode| is_alive(node) && !is_signalled(node) && !fails_probes(node) && !lacks_agent(node);
    // What probes alone take out, a recorded hold alone brings back.
    let is_candidate = |entry: &&ClaimedEntry<'_>| {
        let node = entry.owner.node;
        let is_coverable = !is_probed || !(node.lacks_agent || ends_for_its_agent(node));
        let is_out = entry.target == TargetState::Down
            || entry.observed == Some(AdminState::Down) && targets.is_damped(node, now);
        // The hold would be one claimant's, and the probe may reach another.
        let is_alone = entry.owner.claimants.len() == 1;
        is_alone && is_coverable && (is_out || fails_probes(node) && guard.settings.may_write_holds)
    };
    let needed = minimum - count_in_service(pool, inputs, can_serve, minimum);
    if needed == 0 {
        return BTreeSet::new();
    }
    // An interface whose lookup failed, or is not done yet, may belong to a Node that serves: nothing is lifted because of it.
    let is_complete = inputs.interfaces.knows_pool(pool);
    let name = pool.id.short_name();
    let may_be_held = |entry: &&ClaimedEntry<'_>| {
        is_candidate(entry) && entry.may_be_in_service(is_complete) && may_be_alive(entry.owner.node, targets, now)
    };
    let mut candidates: Vec<_> = owned
        .iter()
        .filter(may_be_held)
        .map(|entry| {
            let node = entry.owner.node;
            let hold = node.hold.as_ref();
            let is_recorded = hold.is_some_and(|hold| hold.pools.contains(&name));
            let is_held = is_recorded || guard.held.contains(&(pool.id.clone(), node.uid.clone()));
            // Ready Nodes first, then the present choice, then what is in service, then Nodes without a signal;
            // false comes first. The same Node is chosen in all its pools.
            let order = [
                !node.ready,
                !is_held,
                entry.observed == Some(AdminState::Down) || fails_probes(node) && !guard.settings.may_write_holds,
                !targets.is_damped(node, now),
                hold.is_none(),
            ];
            (order, node.name.as_str(), entry.index)
        })
        .collect();
    candidates.sort_unstable();
    candidates.into_iter().take(needed).map(|(.., index)| index).collect()
}

impl ClaimedEntry<'_> {
    /// Whether it is in service, or headgate can bring it back.
    pub(super) fn may_be_in_service(&self, may_lift: bool) -> bool {
        match self.observed {
            Some(AdminState::None | AdminState::Up) => true,
            Some(AdminState::Down) => may_lift && self.ledger_entry.is_some(),
            None => false,
        }
    }
}

/// Whether connections to the Node work, whatever its signals.
pub(super) fn is_alive(node: &ClusterNode) -> bool {
    node.ready && !node.is_terminal() && node.excluded.is_none()
}

/// Whether its agent answers 503 whatever others do, about every Service too.
pub(super) fn ends_for_its_agent(node: &ClusterNode) -> bool {
    !node.health_signals.iter().all(Signal::is_revocable)
}

/// Whether connections to the Node may work, whatever its signals: a heartbeat that is late says little at first.
pub(super) fn may_be_alive(node: &ClusterNode, targets: &TargetStates, now: Instant) -> bool {
    let is_ready = node.ready || !targets.is_lost(node, now);
    is_ready && !node.is_terminal() && node.excluded.is_none()
}

/// The number of entries that can serve; counts up to `enough`, since each entry needs a lookup.
fn count_in_service(
    pool: &PoolView,
    inputs: &PlanInputs<'_>,
    can_serve: impl Fn(&ClusterNode) -> bool,
    enough: usize,
) -> usize {
    let up = pool
        .entries
        .iter()
        .filter(|entry| matches!(entry.admin_state, Some(AdminState::None | AdminState::Up)));
    let in_service = up.filter(|entry| {
        // Claims that are equal leave open which Node has the address: one of them that works keeps the entry in service.
        let owner = inputs.owner(entry);
        owner.is_some_and(|owner| owner.claimants.iter().any(|node| can_serve(node)))
    });
    in_service.take(enough).count()
}

#[cfg(test)]
mod tests;
