//! The target state of each Node's pool entries, from the signals of all Nodes. Pure.
//!
//! `headgate_core::node::SignalRules` say what a signal is, and `headgate_core::node::SignalPeriods` when it counts and when its end does.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::{Moment, age_by_wall_clock};
use headgate_core::node::{
    DEBOUNCE, MarkerFact, OUT_OF_SERVICE_TAINT, PeriodChange, Signal, SignalPeriod, SignalPeriods,
};
use headgate_kubernetes::leader::NodeSummary;
use jiff::Timestamp;
use tokio::time::Instant;

use super::settings::AdminStateMode;
use crate::pool::{ClusterNode, EntryOwner, InterfaceCache, NodeIndex, PoolEntry};

mod signalled_nodes;

use signalled_nodes::SharedFilter;
pub(super) use signalled_nodes::SignalledNodes;

/// How long a Node must be other than Ready until it counts as lost: the heartbeats of working nodes are late when the API server is
/// overloaded.
pub(super) const NOT_READY_GRACE: Duration = Duration::from_mins(1);
/// The reason of the condition of a node that was read `Down` in every managed pool, or in none.
pub(super) const ADMIN_STATE_DOWN: &str = "AdminStateDown";

/// What a pool entry is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// `Down`: its Node has a signal.
    Down,
    /// What it is: the end of the signal does not count yet, or the signal must last before it counts, or the Nodes are stale.
    Unchanged,
    /// `None`: the probe decides.
    None,
}

impl TargetState {
    /// The target state in a mode: `off` never targets `Down`.
    #[must_use]
    pub(crate) fn in_mode(self, mode: AdminStateMode) -> Self {
        if mode == AdminStateMode::Disabled {
            Self::None
        } else {
            self
        }
    }
}

/// The Nodes and the target states of their pool entries.
#[derive(Clone, Debug, Default)]
pub struct TargetStates {
    /// Grows with each change that a plan may depend on: with all but those of headgate's own condition, of holds, and of what only
    /// maintenances read.
    pub(crate) generation: u64,
    /// Grows with each change of a hold alone, on which only a plan depends that chose by holds.
    pub(super) hold_generation: u64,
    /// All Nodes of the cluster, with or without a signal.
    pub nodes: NodeIndex,
    /// Of the Nodes with a signal, or with one lately. By the name of the Node.
    periods: HashMap<String, SignalPeriods>,
    /// The UIDs of the Nodes whose last period ended because the out-of-service taint left a Node that is ready.
    left_out_of_service: HashSet<String>,
    /// The Nodes that are not Ready: the UID, and when the Node counts as lost. By the name of the Node.
    not_ready: HashMap<String, (String, Instant)>,
    /// The names of the Nodes with a signal for health answers.
    probed_out: BTreeSet<String>,
    /// The names of the Nodes with a hold.
    held: BTreeSet<String>,
    /// The names of the Nodes that [`has_unsettled_marker`] is true of.
    unsettled: BTreeSet<String>,
    stale_since: Option<Timestamp>,
    /// Of the Nodes whose entries do not have the target state `None`.
    signalled: SharedFilter,
    /// Of the Nodes that the guard chooses from.
    guarded: SharedFilter,
    /// Whether control-plane nodes are in no load balancer.
    exclude_control_plane: bool,
    /// Whether this leader writes the condition: where nobody does, one that was left behind proves nothing.
    writes_condition: bool,
}

impl TargetStates {
    /// Those of no Node. `exclude_control_plane` is the cloud's setting `excludeMasterFromStandardLB`; `writes_condition`: whether this process
    /// writes the condition of nodes while it leads.
    #[must_use]
    pub fn new(exclude_control_plane: bool, writes_condition: bool) -> Self {
        Self {
            exclude_control_plane,
            writes_condition,
            ..Self::default()
        }
    }

    /// Makes these all Nodes. Those that are the same as before cost a comparison of pointers.
    pub(crate) fn update(&mut self, nodes: &BTreeMap<String, Arc<ClusterNode>>, now: Moment) {
        let (mut deleted, mut changed) = (Vec::new(), Vec::new());
        let mut known = self.nodes.iter().peekable();
        for node in nodes.values() {
            // Most are: without a look at what the pointer points to.
            if known.next_if(|known| Arc::ptr_eq(known, node)).is_some() {
                continue;
            }
            while let Some(gone) = known.next_if(|known| known.name < node.name) {
                deleted.push(gone.name.clone());
            }
            known.next_if(|known| known.name == node.name);
            changed.push(Arc::clone(node));
        }
        deleted.extend(known.map(|gone| gone.name.clone()));
        for name in deleted {
            self.remove(&name);
        }
        for node in changed {
            self.apply(node, now);
        }
    }

    /// Adds or replaces a Node; returns whether anything changed.
    pub fn apply(&mut self, node: impl Into<Arc<ClusterNode>>, now: Moment) -> bool {
        let mut node = node.into();
        if self.exclude_control_plane {
            node = node.exclude_control_plane();
        }
        let name = node.name.clone();
        let before = self.nodes.by_name(&name).cloned();
        if !self.nodes.apply(node) {
            return false;
        }
        let Some(node) = self.nodes.by_name(&name).cloned() else {
            return true;
        };
        if node.ready {
            self.not_ready.remove(&name);
        } else if self.not_ready.get(&name).is_none_or(|(uid, _)| *uid != node.uid) {
            // Another leader may have observed it for longer.
            let since = node.not_ready_since.filter(|_| before.is_none());
            let age = since.map_or(Duration::ZERO, |since| age_by_wall_clock(since, now));
            let lost_at = now.mono + NOT_READY_GRACE.saturating_sub(age);
            self.not_ready.insert(name.clone(), (node.uid.clone(), lost_at));
        }
        keep_name(&mut self.probed_out, &name, !node.health_signals.is_empty());
        keep_name(&mut self.held, &name, node.hold.is_some());
        keep_name(&mut self.unsettled, &name, has_unsettled_marker(&node));
        let has_other_hold = before.as_ref().is_some_and(|before| before.hold != node.hold);
        // A hold proves that signals count.
        let may_start = has_other_hold && self.periods(&node).is_some_and(|periods| !periods.pending().is_empty());
        if may_start || before.as_ref().is_none_or(|before| plans_differ(before, &node)) {
            self.next_generation();
            self.update_period(&node, before.as_deref(), now);
            if let Some(before) = before {
                self.renew_periods(&before, Some(&node));
            }
        } else {
            self.hold_generation += u64::from(has_other_hold);
        }
        true
    }

    /// Removes a Node; returns whether it was there.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        if let Some(periods) = self.periods.remove(name) {
            self.left_out_of_service.remove(periods.uid());
        }
        self.not_ready.remove(name);
        self.probed_out.remove(name);
        self.held.remove(name);
        self.unsettled.remove(name);
        let Some(node) = self.nodes.by_name(name).cloned() else {
            return false;
        };
        self.nodes.remove(name);
        self.next_generation();
        self.renew_periods(&node, None);
        true
    }

    /// An earlier plan knew other owners of the entries that this Node claimed or claims now: it does not prove that their owner is out.
    fn renew_periods(&mut self, before: &ClusterNode, after: Option<&ClusterNode>) {
        if after.is_some_and(|after| before.claims().eq(after.claims())) {
            return;
        }
        let after = after.into_iter().flat_map(ClusterNode::claims);
        for claimed in before.claims().chain(after) {
            for node in self.nodes.claimants_of(&claimed) {
                if let Some(periods) = self.periods.get_mut(&node.name) {
                    periods.renew(self.generation);
                }
            }
        }
    }

    fn next_generation(&mut self) {
        self.generation += 1;
        (self.signalled, self.guarded) = Default::default();
    }

    fn update_period(&mut self, node: &ClusterNode, before: Option<&ClusterNode>, now: Moment) {
        let mut periods = self.periods.remove(&node.name).unwrap_or_default();
        if periods.uid() != node.uid {
            self.left_out_of_service.remove(periods.uid());
        }
        // Only a leader writes a hold: it proves to a leader that has just begun that these signals count. So does the condition, which names
        // no signal: where all must last, one has.
        let is_held = |signal: &str| {
            let hold = node.hold.as_ref();
            hold.is_some_and(|hold| hold.signals.contains(signal) && !hold.pending.contains(signal))
        };
        let must_last = || node.signals.values().all(|after| !after.is_zero());
        let shows_down = |shown: &MarkerFact| shown.is_out() && shown.reason == ADMIN_STATE_DOWN;
        let may_prove = self.writes_condition && before.is_none();
        let is_found_down = may_prove && node.marker.as_ref().is_some_and(shows_down) && must_last();
        let known_since = |signal: &Signal| (is_found_down || is_held(signal.name())).then_some(now.wall);
        let change = periods.observe(&node.uid, &node.signals, known_since, |_| None, self.generation, now);
        match change {
            Some(PeriodChange::Ended) if node.ready && before.is_some_and(is_out_of_service) => {
                self.left_out_of_service.insert(node.uid.clone());
            }
            Some(_) => drop(self.left_out_of_service.remove(&node.uid)),
            None => {}
        }
        if !periods.is_empty() {
            self.periods.insert(node.name.clone(), periods);
        }
    }

    /// The next time after `after` at which a target state changes without an event, or a period can be dropped.
    #[must_use]
    pub(crate) fn next_deadline(&self, after: Instant) -> Option<Instant> {
        let deadlines = self.periods.values().flat_map(SignalPeriods::deadlines);
        let deadlines = deadlines.chain(self.not_ready.values().map(|(_, lost_at)| *lost_at));
        deadlines.filter(|deadline| *deadline > after).min()
    }

    /// Whether the Node has not been Ready for [`NOT_READY_GRACE`].
    pub(super) fn is_lost(&self, node: &ClusterNode, now: Instant) -> bool {
        let known = self.not_ready.get(&node.name).filter(|(uid, _)| *uid == node.uid);
        known.is_some_and(|(_, lost_at)| now >= *lost_at)
    }

    /// Makes a deadline that has passed count as a change, and signals that have lasted long enough as signals.
    pub(crate) fn advance_generation(&mut self, now: Moment) {
        self.next_generation();
        for periods in self.periods.values_mut() {
            if periods.advance(self.generation, now).is_some() {
                self.left_out_of_service.remove(periods.uid());
            }
        }
    }

    /// Drops the periods that ended [`headgate_core::node::ENDED_PERIOD_TTL`] ago.
    pub(crate) fn drop_ended_periods(&mut self, now: Instant) {
        (self.signalled, self.guarded) = Default::default();
        self.periods.retain(|_, periods| {
            periods.drop_ended(now);
            if periods.period().is_none() {
                self.left_out_of_service.remove(periods.uid());
            }
            !periods.is_empty()
        });
    }

    /// Records that the Nodes are stale, and when they were known to be current last; or that they are current.
    pub(crate) fn set_stale_since(&mut self, since: Option<Timestamp>) {
        self.stale_since = since;
        self.next_generation();
    }

    /// When the Nodes were known to be current last, if they are stale: every target state is [`TargetState::Unchanged`] then.
    #[must_use]
    pub fn stale_since(&self) -> Option<Timestamp> {
        self.stale_since
    }

    /// The target state of a Node's entries.
    #[must_use]
    pub fn target_state(&self, node: &ClusterNode, now: Instant) -> TargetState {
        self.target_of(self.periods(node), now)
    }

    fn target_of(&self, periods: Option<&SignalPeriods>, now: Instant) -> TargetState {
        if self.stale_since.is_some() {
            return TargetState::Unchanged;
        }
        // A signal may count already for a leader that has observed it for longer.
        let is_pending = periods.is_some_and(|periods| !periods.pending().is_empty());
        match periods.and_then(SignalPeriods::period).map(SignalPeriod::restores_at) {
            Some(None) => TargetState::Down,
            Some(Some(restores_at)) if now < restores_at => TargetState::Unchanged,
            _ if is_pending => TargetState::Unchanged,
            _ => TargetState::None,
        }
    }

    /// Whether a Node without a signal stays out only because its signal flaps.
    pub(super) fn is_damped(&self, node: &ClusterNode, now: Instant) -> bool {
        self.periods(node).is_some_and(|periods| self.damps(periods, now))
    }

    fn damps(&self, periods: &SignalPeriods, now: Instant) -> bool {
        let ended_at = periods.period().and_then(|period| period.ended_at);
        let is_over = self.stale_since.is_none() && ended_at.is_some_and(|at| now >= at + DEBOUNCE);
        is_over && self.target_of(Some(periods), now) == TargetState::Unchanged
    }

    /// The Node that decides about a pool entry. Among several of which the entry names none, one that is lost, such as the former Node of a
    /// machine that has registered under another name, decides only where no other claimant is left.
    #[must_use]
    pub fn owner(&self, entry: &PoolEntry, interfaces: &InterfaceCache, now: Instant) -> Option<EntryOwner<'_>> {
        entry.owner(&self.nodes, interfaces, |node| {
            let reason = match self.target_state(node, now) {
                TargetState::None => 0,
                TargetState::Unchanged => 1,
                TargetState::Down => 2,
            };
            // If all are lost, what took the machine out stays in force while it restarts.
            let is_lost = self.is_lost(node, now);
            (is_lost, if is_lost { 2 - reason } else { reason })
        })
    }

    /// What the election needs to know of all Nodes, to the leader on the Node `own`.
    #[must_use]
    pub(crate) fn summary(&self, own: &str, now: Instant) -> NodeSummary {
        let has_signal = |node: &ClusterNode| self.target_state(node, now) != TargetState::None;
        NodeSummary::new(self.nodes.iter(), own, has_signal)
    }

    /// The signal period of a Node, if it has one that is not dropped yet.
    #[must_use]
    pub fn signal_period(&self, node: &ClusterNode) -> Option<&SignalPeriod> {
        self.periods(node)?.period()
    }

    fn periods(&self, node: &ClusterNode) -> Option<&SignalPeriods> {
        self.periods.get(&node.name).filter(|periods| periods.uid() == node.uid)
    }

    /// Whether the Node's last signal ended because the out-of-service taint left it while it was ready.
    #[must_use]
    pub(crate) fn left_out_of_service_while_ready(&self, node: &ClusterNode) -> bool {
        self.left_out_of_service.contains(&node.uid)
    }

    /// The Nodes with a hold: most are without one, and a look at each of thousands costs more than a search of the few.
    pub(super) fn held_nodes(&self) -> impl Iterator<Item = &Arc<ClusterNode>> {
        self.held.iter().filter_map(|name| self.nodes.by_name(name))
    }

    /// The Nodes that [`has_unsettled_marker`] is true of.
    pub(super) fn unsettled_nodes(&self) -> impl Iterator<Item = &Arc<ClusterNode>> {
        self.unsettled.iter().filter_map(|name| self.nodes.by_name(name))
    }

    /// The Nodes with a signal period that is not dropped yet.
    pub(super) fn nodes_with_periods(&self) -> impl Iterator<Item = &Arc<ClusterNode>> {
        self.nodes_where(|_| true)
    }

    /// The Nodes with a signal period for which `is_wanted` is true. Only these are looked up by name.
    fn nodes_where(&self, is_wanted: impl Fn(&SignalPeriods) -> bool) -> impl Iterator<Item = &Arc<ClusterNode>> {
        let periods = self.periods.iter();
        let wanted = periods.filter(move |(_, periods)| periods.period().is_some() && is_wanted(periods));
        wanted.filter_map(|(name, periods)| self.nodes.by_name(name).filter(|node| node.uid == periods.uid()))
    }

    /// Whether the Node has signals, of which none has counted yet. For the leader before, some may have.
    pub(super) fn is_all_pending(&self, node: &ClusterNode) -> bool {
        let periods = self.periods(node);
        periods.is_some_and(|periods| periods.period().is_none() && !periods.pending().is_empty())
    }

    /// The names of the Node's signals that must last before they count, and have not yet.
    #[must_use]
    pub(crate) fn pending_signals(&self, node: &ClusterNode) -> BTreeSet<String> {
        let signals = self
            .periods(node)
            .into_iter()
            .flat_map(|periods| periods.pending().keys());
        signals.map(ToString::to_string).collect()
    }

    /// The Nodes whose entries do not have the target state `None`.
    pub(super) fn signalled_nodes(&self, now: Instant) -> Arc<SignalledNodes> {
        let is_signalled = |periods: &SignalPeriods| self.target_of(Some(periods), now) != TargetState::None;
        let make = || SignalledNodes::new(self.nodes_where(is_signalled));
        self.signalled.at(now, make, || self.next_target_change(now))
    }

    /// The Nodes that admin states or probes take out, or soon may: what the guard chooses from.
    pub(super) fn guarded_nodes(&self, now: Instant) -> Arc<SignalledNodes> {
        let is_guarded = |periods: &SignalPeriods| {
            self.target_of(Some(periods), now) == TargetState::Down || self.damps(periods, now)
        };
        let make = || {
            let probed_out = self.probed_out.iter().filter_map(|name| self.nodes.by_name(name));
            SignalledNodes::new(probed_out.chain(self.nodes_where(is_guarded)))
        };
        self.guarded.at(now, make, || self.next_target_change(now))
    }

    /// When time alone changes a target state, or whether a Node is damped.
    fn next_target_change(&self, now: Instant) -> Option<Instant> {
        let times = self.all_periods().flat_map(|period| {
            let debounced = period.ended_at.map(|at| at + DEBOUNCE);
            debounced.into_iter().chain(period.restores_at())
        });
        times.filter(|at| *at > now).min()
    }

    fn all_periods(&self) -> impl Iterator<Item = &SignalPeriod> {
        self.periods.values().filter_map(SignalPeriods::period)
    }

    /// Whether a Node has a signal, or had one in the last [`headgate_core::node::ENDED_PERIOD_TTL`].
    #[must_use]
    pub(crate) fn has_signal_periods(&self) -> bool {
        self.all_periods().next().is_some()
    }

    /// The generation of the newest start or end of a signal period; 0 if there is none.
    #[must_use]
    pub(crate) fn last_signal_generation(&self) -> u64 {
        let generations = self.all_periods().map(|period| period.generation);
        generations.max().unwrap_or_default()
    }

    /// How many Nodes have each signal that counts, by the name of the signal.
    #[must_use]
    pub(crate) fn nodes_by_signal(&self) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for signal in self.periods.values().flat_map(|periods| periods.present().keys()) {
            match counts.get_mut(signal.name()) {
                Some(count) => *count += 1,
                None => drop(counts.insert(signal.to_string(), 1)),
            }
        }
        counts
    }
}

/// Whether more differs than the condition and the hold that headgate itself writes, and what only maintenances read.
fn plans_differ(one: &ClusterNode, other: &ClusterNode) -> bool {
    let one = ClusterNode {
        marker: other.marker.clone(),
        hold: other.hold.clone(),
        connections: other.connections.clone(),
        is_upgrade_paused: other.is_upgrade_paused,
        cluster_api_machine: other.cluster_api_machine.clone(),
        labels: other.labels.clone(),
        conditions: other.conditions.clone(),
        unschedulable: other.unschedulable,
        ..one.clone()
    };
    one != *other
}

/// Whether the Node's condition says anything but that it has no signal.
pub(super) fn has_unsettled_marker(node: &ClusterNode) -> bool {
    node.marker.as_ref().is_some_and(|shown| !shown.is_without_signal())
}

/// Adds a name, or removes it.
fn keep_name(names: &mut BTreeSet<String>, name: &str, is_kept: bool) {
    if !is_kept {
        names.remove(name);
    } else if !names.contains(name) {
        names.insert(name.to_owned());
    }
}

fn is_out_of_service(node: &ClusterNode) -> bool {
    let mut taints = node.taints.iter();
    taints.any(|taint| taint.key == OUT_OF_SERVICE_TAINT && taint.effect == "NoExecute")
}

#[cfg(test)]
mod kept_verdicts;

#[cfg(test)]
mod tests;
