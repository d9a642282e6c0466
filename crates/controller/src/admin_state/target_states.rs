//! The target state of each Node's pool entries, from the signals of all Nodes. Pure.
//!
//! `headgate_node::SignalRules` say what a signal is. A signal counts at once, unless its matcher says how long it must last. Its end
//! counts after [`DEBOUNCE`] without a signal, so that no traffic arrives between one taint and the next, and [`RESTORE_INTERVAL`] after
//! the one before: a signal that flaps costs no more writes of load balancers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use headgate_clock::Moment;
use headgate_node::{OUT_OF_SERVICE_TAINT, Signal};
use jiff::Timestamp;
use tokio::time::Instant;

use super::settings::AdminStateMode;
use crate::pool::{ClusterNode, EntryOwner, InterfaceCache, NodeIndex, PoolEntry};

mod signalled_nodes;

pub use signalled_nodes::SignalledNodes;

/// How long a Node must be without a signal.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// From one end of a Node's signals that counts to the next.
const RESTORE_INTERVAL: Duration = Duration::from_secs(30);
/// How long an ended signal period is kept. Its end is written and reported by then.
const ENDED_PERIOD_TTL: Duration = Duration::from_mins(10);
/// How long a Node must be other than Ready until it counts as lost: the heartbeats of working nodes are late when the API server is
/// overloaded.
pub(super) const NOT_READY_GRACE: Duration = Duration::from_mins(1);

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
    pub fn in_mode(self, mode: AdminStateMode) -> Self {
        if mode == AdminStateMode::Off { Self::None } else { self }
    }
}

/// From a Node's first signal to [`ENDED_PERIOD_TTL`] after its last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalPeriod {
    /// Of the Node; a Node created again under the same name does not inherit the period.
    pub uid: String,
    /// The names of the signals that are present, or of those that were last.
    pub signals: BTreeSet<String>,
    /// When the first signal was observed.
    pub since: Moment,
    /// [`TargetStates::generation`] when the period last started or ended.
    pub generation: u64,
    /// When the last signal was gone.
    pub ended_at: Option<Instant>,
    /// Whether it ended because the out-of-service taint left a Node that is ready.
    pub left_out_of_service_while_ready: bool,
    /// When an earlier end counted.
    restored_at: Option<Instant>,
}

impl SignalPeriod {
    /// When the end counts.
    fn restores_at(&self) -> Option<Instant> {
        let debounced = self.ended_at? + DEBOUNCE;
        Some(
            self.restored_at
                .map_or(debounced, |at| debounced.max(at + RESTORE_INTERVAL)),
        )
    }
}

/// The Nodes and the target states of their pool entries.
#[derive(Clone, Debug, Default)]
pub struct TargetStates {
    /// Grows with each change that a plan may depend on: with all but those of headgate's own condition.
    pub generation: u64,
    /// All Nodes of the cluster, with or without a signal.
    pub nodes: NodeIndex,
    /// By the name of the Node.
    periods: HashMap<String, SignalPeriod>,
    /// The Nodes with signals that must last before they count; by the name of the Node.
    pending: HashMap<String, PendingSignals>,
    /// The Nodes that are not Ready: the UID, and when this was observed first. By the name of the Node.
    not_ready: HashMap<String, (String, Instant)>,
    stale_since: Option<Timestamp>,
}

/// The signals of a Node that do not count yet.
#[derive(Clone, Debug)]
struct PendingSignals {
    uid: String,
    /// When each was observed first.
    since: BTreeMap<Signal, Instant>,
    /// When the first of them counts.
    next: Instant,
}

impl TargetStates {
    /// Adds or replaces a Node; returns whether anything changed.
    pub fn apply(&mut self, node: ClusterNode, now: Moment) -> bool {
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
            self.not_ready.insert(name, (node.uid.clone(), now.mono));
        }
        if before
            .as_ref()
            .is_none_or(|before| !differ_in_marker_only(before, &node))
        {
            self.generation += 1;
            self.update_period(&node, before.as_deref(), now);
        }
        true
    }

    /// Removes a Node; returns whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        self.periods.remove(name);
        self.pending.remove(name);
        self.not_ready.remove(name);
        let is_known = self.nodes.remove(name);
        self.generation += u64::from(is_known);
        is_known
    }

    /// The names of the signals that have lasted long enough. One that counted in the present period goes on counting.
    fn counting_signals(&mut self, node: &ClusterNode, now: Moment) -> BTreeSet<String> {
        let known = self.pending.remove(&node.name).filter(|known| known.uid == node.uid);
        let period = self
            .periods
            .get(&node.name)
            .filter(|period| period.uid == node.uid && period.ended_at.is_none());
        let mut counting = BTreeSet::new();
        let (mut since, mut next) = (BTreeMap::new(), None);
        for (signal, after) in &node.signals {
            let first = known
                .as_ref()
                .and_then(|known| known.since.get(signal))
                .copied()
                .unwrap_or(now.mono);
            // Only a leader writes a hold: it proves to a leader that has just begun that these signals count.
            let is_held = node
                .hold
                .as_ref()
                .is_some_and(|hold| hold.signals.contains(signal.name()) && !hold.pending.contains(signal.name()));
            let has_counted = is_held || period.is_some_and(|period| period.signals.contains(signal.name()));
            if has_counted || first + *after <= now.mono {
                counting.insert(signal.to_string());
            } else {
                since.insert(signal.clone(), first);
                next = Some(next.unwrap_or(first + *after).min(first + *after));
            }
        }
        if let Some(next) = next {
            let uid = node.uid.clone();
            self.pending
                .insert(node.name.clone(), PendingSignals { uid, since, next });
        }
        counting
    }

    fn update_period(&mut self, node: &ClusterNode, before: Option<&ClusterNode>, now: Moment) {
        let signals = self.counting_signals(node, now);
        let period = self.periods.remove(&node.name).filter(|period| period.uid == node.uid);
        let period = match period {
            None if signals.is_empty() => return,
            Some(mut period) if signals.is_empty() => {
                if period.ended_at.is_none() {
                    period.ended_at = Some(now.mono);
                    period.generation = self.generation;
                    period.left_out_of_service_while_ready = node.ready && before.is_some_and(is_out_of_service);
                }
                period
            }
            Some(period) => SignalPeriod {
                signals,
                restored_at: period.restores_at().filter(|at| *at <= now.mono).or(period.restored_at),
                generation: if period.ended_at.is_some() {
                    self.generation
                } else {
                    period.generation
                },
                ended_at: None,
                left_out_of_service_while_ready: false,
                ..period
            },
            None => SignalPeriod {
                uid: node.uid.clone(),
                signals,
                since: now,
                generation: self.generation,
                ended_at: None,
                left_out_of_service_while_ready: false,
                restored_at: None,
            },
        };
        self.periods.insert(node.name.clone(), period);
    }

    /// The next time after `after` at which a target state changes without an event, or a period can be dropped.
    #[must_use]
    pub fn next_deadline(&self, after: Instant) -> Option<Instant> {
        let expired = |period: &SignalPeriod| Some(period.ended_at? + ENDED_PERIOD_TTL);
        let ended = self.periods.values();
        let deadlines = ended
            .flat_map(|period| [period.restores_at(), expired(period)])
            .flatten();
        let deadlines = deadlines.chain(self.pending.values().map(|pending| pending.next));
        let deadlines = deadlines.chain(self.not_ready.values().map(|(_, since)| *since + NOT_READY_GRACE));
        deadlines.filter(|deadline| *deadline > after).min()
    }

    /// Whether the Node has not been Ready for [`NOT_READY_GRACE`].
    pub(super) fn is_lost(&self, node: &ClusterNode, now: Instant) -> bool {
        let since = self.not_ready.get(&node.name).filter(|(uid, _)| *uid == node.uid);
        since.is_some_and(|(_, since)| now >= *since + NOT_READY_GRACE)
    }

    /// Makes a deadline that has passed count as a change, and signals that have lasted long enough as signals.
    pub fn advance_generation(&mut self, now: Moment) {
        self.generation += 1;
        let due = self.pending.iter().filter(|(_, pending)| pending.next <= now.mono);
        let due: Vec<_> = due.filter_map(|(name, _)| self.nodes.by_name(name).cloned()).collect();
        for node in due {
            self.update_period(&node, Some(&node), now);
        }
    }

    /// Drops the periods that ended [`ENDED_PERIOD_TTL`] ago.
    pub fn drop_ended_periods(&mut self, now: Instant) {
        self.periods
            .retain(|_, period| period.ended_at.is_none_or(|ended_at| ended_at + ENDED_PERIOD_TTL > now));
    }

    /// Records that the Nodes are stale, and when they were known to be current last; or that they are current.
    pub fn set_stale_since(&mut self, since: Option<Timestamp>) {
        self.stale_since = since;
        self.generation += 1;
    }

    /// When the Nodes were known to be current last, if they are stale: every target state is [`TargetState::Unchanged`] then.
    #[must_use]
    pub fn stale_since(&self) -> Option<Timestamp> {
        self.stale_since
    }

    /// The target state of a Node's entries.
    #[must_use]
    pub fn target_state(&self, node: &ClusterNode, now: Instant) -> TargetState {
        if self.stale_since.is_some() {
            return TargetState::Unchanged;
        }
        // A signal may count already for a leader that has observed it for longer.
        let is_pending = self
            .pending
            .get(&node.name)
            .is_some_and(|pending| pending.uid == node.uid);
        match self.signal_period(node).map(SignalPeriod::restores_at) {
            Some(None) => TargetState::Down,
            Some(Some(restores_at)) if now < restores_at => TargetState::Unchanged,
            _ if is_pending => TargetState::Unchanged,
            _ => TargetState::None,
        }
    }

    /// Whether a Node without a signal stays out only because its signal flaps.
    pub(super) fn is_damped(&self, node: &ClusterNode, now: Instant) -> bool {
        let period = self.signal_period(node).filter(|_| self.stale_since.is_none());
        let ended_at = period.and_then(|period| period.ended_at);
        ended_at.is_some_and(|at| now >= at + DEBOUNCE) && self.target_state(node, now) == TargetState::Unchanged
    }

    /// The Node that decides about a pool entry. One that is lost, such as the former Node of a machine that has registered under
    /// another name, decides only where no other claimant is left.
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

    /// The signal period of a Node, if it has one that is not dropped yet.
    #[must_use]
    pub fn signal_period(&self, node: &ClusterNode) -> Option<&SignalPeriod> {
        self.periods.get(&node.name).filter(|period| period.uid == node.uid)
    }

    /// The Nodes with a signal period that is not dropped yet.
    pub(super) fn nodes_with_periods(&self) -> impl Iterator<Item = &Arc<ClusterNode>> {
        self.periods.keys().filter_map(|name| self.nodes.by_name(name))
    }

    /// The names of the Node's signals that must last before they count, and have not yet.
    #[must_use]
    pub fn pending_signals(&self, node: &ClusterNode) -> BTreeSet<String> {
        let pending = self.pending.get(&node.name).filter(|pending| pending.uid == node.uid);
        let signals = pending.into_iter().flat_map(|pending| pending.since.keys());
        signals.map(ToString::to_string).collect()
    }

    /// The Nodes whose entries do not have the target state `None`.
    #[must_use]
    pub fn signalled_nodes(&self, now: Instant) -> SignalledNodes<'_> {
        let nodes = self.periods.keys().filter_map(|name| self.nodes.by_name(name));
        SignalledNodes::new(nodes.filter(|node| self.target_state(node, now) != TargetState::None))
    }

    /// The Nodes that admin states or probes take out, or soon may: what the guard chooses from.
    #[must_use]
    pub(super) fn guarded_nodes(&self, now: Instant) -> SignalledNodes<'_> {
        let probed_out = self.nodes.iter().filter(|node| !node.health_signals.is_empty());
        let signalled = self.periods.keys().filter_map(|name| self.nodes.by_name(name));
        let signalled =
            signalled.filter(|node| self.target_state(node, now) == TargetState::Down || self.is_damped(node, now));
        SignalledNodes::new(probed_out.chain(signalled))
    }

    /// Whether a Node has a signal, or had one in the last [`ENDED_PERIOD_TTL`].
    #[must_use]
    pub fn has_signal_periods(&self) -> bool {
        !self.periods.is_empty()
    }

    /// The generation of the newest start or end of a signal period; 0 if there is none.
    #[must_use]
    pub fn last_signal_generation(&self) -> u64 {
        let generations = self.periods.values().map(|period| period.generation);
        generations.max().unwrap_or_default()
    }

    /// How many Nodes have each signal that counts, by the name of the signal.
    #[must_use]
    pub fn nodes_by_signal(&self) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let present = self.periods.values().filter(|period| period.ended_at.is_none());
        for signal in present.flat_map(|period| &period.signals) {
            match counts.get_mut(signal) {
                Some(count) => *count += 1,
                None => drop(counts.insert(signal.clone(), 1)),
            }
        }
        counts
    }
}

/// Whether only the condition differs that headgate itself writes.
fn differ_in_marker_only(one: &ClusterNode, other: &ClusterNode) -> bool {
    let with_marker_of_other = || ClusterNode {
        marker: other.marker.clone(),
        ..one.clone()
    };
    one.marker != other.marker && with_marker_of_other() == *other
}

fn is_out_of_service(node: &ClusterNode) -> bool {
    let mut taints = node.taints.iter();
    taints.any(|taint| taint.key == OUT_OF_SERVICE_TAINT && taint.effect == "NoExecute")
}

#[cfg(test)]
mod kept_verdicts;

#[cfg(test)]
mod tests;
