//! The plan: from a load balancer as it was read, the target states and the ledger to the edits to write. Pure.
//!
//! | signal on the Node | the entry | in the ledger | becomes |
//! |---|---|---|---|
//! | yes | `None` | | `Down` |
//! | yes | `Down` | | stays |
//! | no | `Down` | yes | `None` |
//! | no | `Down` | no | stays, or `None` with `adminState.foreignDown: Restore` |
//! | | `Up`, or an unknown value | | stays |
//!
//! The guard holds entries back (see `guard` and `rule_guard`): their target state is `None` although the Node has a signal for admin states or for
//! health answers.
//!
//! In a load balancer that is not configured any more only the third row applies.
//!
//! An entry that belongs to no Node stays as it is, and so does an entry whose Node's signal ended a moment ago. An entry of a
//! Node that a label excludes from load balancers is not set `Down`, unless the Node is being deleted. If it is `Down` already, it
//! stays so until the signal ends: the Node is about to leave the pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_azure::{AdminState, PoolId};
use headgate_core::clock::Moment;

use super::brake::hold_waiting;
use super::guard::{ClaimedEntry, GuardInputs, entries_to_hold_back};
use super::ledger::{Ledger, LedgerEntry, LedgerStage, PoolLedger};
use super::rule_guard::{HeldFor, RuleGuard};
use super::settings::{AdminStateMode, ForeignDown};
use super::target_states::{SignalledNodes, TargetState, TargetStates};
use crate::pool::{
    AdminStateChange, ClusterNode, EntryKey, EntryOwner, InterfaceCache, LoadBalancerView, PoolEdit, PoolEntry,
    PoolView,
};
use headgate_core::settings::IntOrPercent;

/// What the leader may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whether admin states are written at all.
    pub mode: AdminStateMode,
    /// What happens to a `Down` that is not in the ledger.
    pub foreign_down: ForeignDown,
}

/// What a plan is made from besides the load balancer.
#[derive(Clone, Copy, Debug)]
pub struct PlanInputs<'a> {
    /// The machines of network interfaces.
    pub interfaces: &'a InterfaceCache,
    /// The Nodes and their target states.
    pub targets: &'a TargetStates,
    /// The entries that headgate set `Down`.
    pub ledger: &'a Ledger,
    /// Whether admin states are written, and what happens to a foreign `Down`.
    pub policy: Policy,
    /// How many entries stay in service, and which are held back now.
    pub guard: GuardInputs<'a>,
    /// Whether the load balancer is the cluster's. In another one, headgate's `Down` is given back, and nothing else is changed.
    pub is_configured: bool,
    /// The time of the plan: a signal's end counts after a moment.
    pub now: Moment,
}

/// A pool entry whose Node has or had a signal, or that is in the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryStatus {
    /// The resource id of the entry's pool.
    pub pool: PoolId,
    /// Identifies the entry in the pool.
    pub key: EntryKey,
    /// The Node that the entry belongs to.
    pub node: Arc<ClusterNode>,
    /// The target state of the Node at the time of the plan.
    pub target: TargetState,
    /// The admin state that was read; `None` for an unknown value.
    pub observed: Option<AdminState>,
    /// The admin state that is due to be written; `None` if the entry stays as it is.
    pub becomes: Option<AdminState>,
    /// What the ledger has about the entry.
    pub ledger_entry: Option<LedgerEntry>,
    /// Whether an admin state has an effect in this pool.
    pub probe_coverage: ProbeCoverage,
    /// Whether the guard keeps the entry in service although its Node has a signal.
    pub is_held_back: bool,
    /// Why it does.
    pub held_for: HeldFor,
}

impl EntryStatus {
    /// Whether a write is due.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.becomes.is_some()
    }

    /// Whether the entry is `Down` and headgate set it so.
    #[must_use]
    pub fn is_set_by_headgate(&self) -> bool {
        let is_owned = |entry: LedgerEntry| entry.stage != LedgerStage::Restored || self.target == TargetState::None;
        self.observed == Some(AdminState::Down) && self.ledger_entry.is_some_and(is_owned)
    }
}

/// How many of a pool's rules have a probe. Rules without one ignore admin states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeCoverage {
    /// Every rule of the pool has a probe.
    All,
    /// Some rules of the pool have a probe.
    Partial,
    /// No rule of the pool has a probe.
    None,
}

impl ProbeCoverage {
    fn new(pool: &PoolView) -> Self {
        match (pool.is_probed(), pool.has_rule_without_probe()) {
            (true, false) => Self::All,
            (true, true) => Self::Partial,
            (false, _) => Self::None,
        }
    }
}

/// The number of entries of one pool; the metrics `headgate_pool_*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCounts {
    /// The pool's resource id.
    pub pool: PoolId,
    /// The number of entries in the pool.
    pub entries: usize,
    /// Entries with the target state `Down`, without those that are held back.
    pub desired_down: usize,
    /// Entries that are `Down`, by headgate or foreign.
    pub actual_down: usize,
    /// Entries that get new connections once the plan is written.
    pub eligible: usize,
    /// Entries that the guard keeps in service although their Nodes have signals.
    pub held_back: usize,
    /// Entries that stay in service for a while, because `adminState.maxNewDown` others become `Down` first.
    pub waiting: usize,
    /// Whether a rule of the pool probes headgate.
    pub probes_headgate: bool,
}

/// What is due in one load balancer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// One for each pool that changes; those that set an entry `Down` come first.
    pub edits: Vec<PoolEdit>,
    /// The entries with a target state or a ledger entry, pool by pool.
    pub entries: Vec<EntryStatus>,
    /// The pools that a load-balancing rule uses.
    pub pools: Vec<PoolCounts>,
}

/// Plans one load balancer.
#[must_use]
pub fn plan(view: &LoadBalancerView, inputs: &PlanInputs<'_>) -> Plan {
    let mut plan = Plan::default();
    let signalled = inputs.targets.signalled_nodes(inputs.now.mono);
    let is_guarded = !inputs.guard.settings.is_disabled()
        && inputs.is_configured
        && inputs.policy.mode != AdminStateMode::Disabled
        && inputs.targets.stale_since().is_none();
    let guarded = is_guarded.then(|| inputs.targets.guarded_nodes(inputs.now.mono));
    for pool in &view.pools {
        plan.add_pool(pool, inputs, &signalled, guarded.as_deref());
    }
    if inputs.policy.mode == AdminStateMode::Observe {
        plan.edits.clear();
    }
    plan.edits.sort_by_key(|edit| !edit.sets_down());
    plan
}

impl Plan {
    /// The number of entries that change.
    #[must_use]
    pub fn change_count(&self) -> usize {
        self.edits.iter().map(|edit| edit.admin_states.len()).sum()
    }

    /// Keeps the changes of these Nodes only.
    pub(super) fn retain_changes(&mut self, is_kept: impl Fn(&ClusterNode) -> bool) {
        for edit in &mut self.edits {
            edit.admin_states.retain(|change| is_kept(&change.node));
        }
        self.edits.retain(|edit| !edit.admin_states.is_empty());
        for entry in self.entries.iter_mut().filter(|entry| !is_kept(&entry.node)) {
            entry.becomes = None;
        }
    }

    fn add_pool(
        &mut self,
        pool: &PoolView,
        inputs: &PlanInputs<'_>,
        signalled: &SignalledNodes,
        guarded: Option<&SignalledNodes>,
    ) {
        let policy = inputs.policy;
        let may_set_down = inputs.is_configured && pool.is_used();
        let (ledger, probe_coverage) = (inputs.ledger.pool(&pool.id), ProbeCoverage::new(pool));
        let mut changes = Vec::new();
        let mut counts = PoolCounts {
            pool: pool.id.clone(),
            entries: pool.entries.len(),
            desired_down: 0,
            actual_down: 0,
            eligible: 0,
            held_back: 0,
            waiting: 0,
            probes_headgate: pool.probes_headgate(inputs.guard.settings.health_port),
        };
        let guarded = guarded.filter(|_| pool.is_used());
        let claimed = guarded.map_or_else(Vec::new, |guarded| claimed_entries(pool, &ledger, inputs, guarded));
        let held_back = held_back(pool, &claimed, inputs);
        let mut claimed = claimed.into_iter().peekable();
        for (index, entry) in pool.entries.iter().enumerate() {
            let observed = entry.admin_state;
            counts.actual_down += usize::from(observed == Some(AdminState::Down));
            let mut planned = observed;
            let ledger_entry = entry.key.as_ref().and_then(|key| ledger.entry(key));
            let held = held_back.get(&index);
            let claimed = claimed.next_if(|claimed| claimed.index == index);
            let is_relevant = claimed.is_some()
                || ledger_entry.is_some()
                || observed == Some(AdminState::Down)
                || signalled.may_match(&entry.matcher, inputs.interfaces);
            // Other entries are not looked up: that is most of the time of a plan.
            if is_relevant
                && let Some(key) = &entry.key
                && let Some((node, target)) = claimed
                    .map(|claimed| (claimed.owner.node, claimed.target))
                    .or_else(|| inputs.owner_and_target(entry))
            {
                let target = target.in_mode(policy.mode);
                let wanted = if held.is_some() { TargetState::None } else { target };
                // In the mode `Observe` nothing is written, so nothing is kept in service either.
                let held = held.filter(|_| policy.mode == AdminStateMode::Enforce);
                let becomes = next_admin_state(node, wanted, observed, ledger_entry, policy)
                    .filter(|_| may_set_down || ledger_entry.is_some())
                    .filter(|to| may_set_down || *to != AdminState::Down);
                counts.desired_down += usize::from(wanted == TargetState::Down && node.exempting_label().is_none());
                let waits = held.is_some_and(|held| held.brake);
                counts.waiting += usize::from(waits);
                counts.held_back += usize::from(held.is_some() && !waits);
                planned = becomes.filter(|_| policy.mode != AdminStateMode::Observe).or(observed);
                let is_shown = if target == TargetState::None || !inputs.is_configured {
                    ledger_entry.is_some()
                } else {
                    pool.is_used()
                };
                if is_shown || held.is_some() || becomes.is_some() {
                    self.entries.push(EntryStatus {
                        pool: pool.id.clone(),
                        key: key.clone(),
                        node: Arc::clone(node),
                        target,
                        observed,
                        becomes,
                        ledger_entry,
                        probe_coverage,
                        is_held_back: held.is_some(),
                        held_for: held.cloned().unwrap_or_default(),
                    });
                }
                changes.extend(becomes.map(|to| AdminStateChange {
                    index,
                    key: key.clone(),
                    node: Arc::clone(node),
                    to,
                }));
            }
            counts.eligible += usize::from(planned != Some(AdminState::Down));
        }
        if !changes.is_empty() {
            self.edits.push(PoolEdit {
                pool: pool.id.clone(),
                admin_states: changes,
                members: None,
            });
        }
        if may_set_down {
            self.pools.push(counts);
        }
    }
}

impl<'a> PlanInputs<'a> {
    /// Who an entry belongs to.
    pub(super) fn owner(&self, entry: &PoolEntry) -> Option<EntryOwner<'a>> {
        self.targets.owner(entry, self.interfaces, self.now.mono)
    }

    /// The Node that decides about an entry, and its target state.
    fn owner_and_target(&self, entry: &PoolEntry) -> Option<(&'a Arc<ClusterNode>, TargetState)> {
        let node = self.owner(entry)?.node;
        Some((node, self.targets.target_state(node, self.now.mono)))
    }
}

/// The pool's entries whose Nodes may have a signal, and those in the ledger, in their order. `guarded` are the Nodes that the guard chooses
/// from.
fn claimed_entries<'a>(
    pool: &PoolView,
    ledger: &PoolLedger<'_>,
    inputs: &PlanInputs<'a>,
    guarded: &SignalledNodes,
) -> Vec<ClaimedEntry<'a>> {
    let entries = pool.entries.iter().enumerate();
    let claimed = entries.filter_map(|(index, entry)| {
        let key = entry.key.as_ref()?;
        let ledger_entry = ledger.entry(key);
        if ledger_entry.is_none() && !guarded.may_match(&entry.matcher, inputs.interfaces) {
            return None;
        }
        let owner = inputs.owner(entry)?;
        Some(ClaimedEntry {
            index,
            owner,
            target: inputs.targets.target_state(owner.node, inputs.now.mono),
            observed: entry.admin_state,
            ledger_entry,
        })
    });
    claimed.collect()
}

/// The pool's entries that the guard keeps in service, by their indexes.
fn held_back(pool: &PoolView, claimed: &[ClaimedEntry<'_>], inputs: &PlanInputs<'_>) -> BTreeMap<usize, HeldFor> {
    if claimed.is_empty() {
        return BTreeMap::new();
    }
    let mut held = BTreeMap::<usize, HeldFor>::new();
    for index in entries_to_hold_back(pool, claimed, inputs) {
        held.entry(index).or_default().minimum = true;
    }
    if inputs.guard.settings.minimum_in_service != IntOrPercent::Int(0) {
        RuleGuard { pool, inputs }.hold_back(claimed, &mut held);
    }
    // Where nothing is written, nothing waits.
    if inputs.policy.mode == AdminStateMode::Enforce && inputs.guard.settings.max_new_down != IntOrPercent::ALL {
        hold_waiting(claimed, pool.entries.len(), inputs, &mut held);
    }
    held
}

/// The table above: what an entry of this Node becomes; `None` if it stays.
fn next_admin_state(
    node: &ClusterNode,
    target: TargetState,
    observed: Option<AdminState>,
    ledger_entry: Option<LedgerEntry>,
    policy: Policy,
) -> Option<AdminState> {
    let restores_foreign = policy.foreign_down == ForeignDown::Restore && policy.mode == AdminStateMode::Enforce;
    match (target, observed?) {
        (TargetState::Down, AdminState::None) if node.exempting_label().is_none() => Some(AdminState::Down),
        (TargetState::None, AdminState::Down) if ledger_entry.is_some() || restores_foreign => Some(AdminState::None),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
