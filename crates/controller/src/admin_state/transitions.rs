//! Transitions of Nodes: which events and ledger changes follow from what all load balancers show. Pure.
//!
//! A Node gets one event when all its entries are `Down`, and one when all are restored. The ledger's stages say which of them
//! is recorded already, so a new leader does not repeat it. A failure gets an event when it begins, when it becomes another
//! one, and every 5 min; a terminal one only once.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{AdminState, ErrorClass, PoolId};
use headgate_core::clock::Moment;
use headgate_core::node::{DRAINING_TAINT, SignalPeriod};
use headgate_core::telemetry::first_names;
use headgate_kubernetes::EventKind;
use jiff::Timestamp;
use tokio::time::Instant;

use super::last_reads::{LastReads, OwnEntry};
use super::ledger::{LedgerChange, LedgerEntry, LedgerStage};
use super::plan::{EntryStatus, ProbeCoverage};
use super::target_states::TargetState;
use crate::pool::{ClusterNode, LastError};

/// Until a failure that persists gets another event.
const FAILURE_REPEAT_INTERVAL: Duration = Duration::from_mins(5);
/// Until a failure with another code of the same class gets an event: in an outage the codes alternate.
const CHANGED_FAILURE_INTERVAL: Duration = Duration::from_mins(1);
/// The pools that one event names.
pub(super) const MAX_POOLS_NAMED: usize = 8;
/// The API server accepts 1,024 bytes.
const MAX_NOTE_BYTES: usize = 1000;

/// What headgate does when admin states of a Node's entries change, or when they cannot.
const UPDATE: &str = "UpdateLoadBalancer";
/// What headgate does to find out which Node an entry belongs to.
const IDENTIFY: &str = "IdentifyNode";

// The events on Nodes.
pub(super) const DOWN: EventKind = EventKind::normal("LoadBalancerAdminStateDown", "ExcludeNode");
pub(super) const NONE: EventKind = EventKind::normal("LoadBalancerRestored", "RestoreNode");
pub(super) const UPDATE_FAILED: EventKind = EventKind::warning("LoadBalancerUpdateFailed", UPDATE);
pub(super) const NO_ELIGIBLE_ADDRESS: EventKind = EventKind::warning("LoadBalancerPoolEmpty", UPDATE);
pub(super) const NODES_STALE: EventKind = EventKind::warning("NodesStale", "WatchNodes");
pub(super) const HELD_BACK: EventKind = EventKind::warning("NodeKeptInService", "KeepNode");
pub(super) const ADDRESS_CONTESTED: EventKind = EventKind::warning("NodeAddressNotUnique", IDENTIFY);
/// Several Nodes have the same machine.
pub(super) const MACHINE_CONTESTED: EventKind = EventKind::warning("ProviderIDNotUnique", IDENTIFY);

/// What ARM refuses whatever is retried, by its code: the event that names it, and what to do.
const FORBIDDEN: [(&str, EventKind, &str); 3] = [
    (
        "AuthorizationFailed",
        EventKind::warning("AzureRoleMissing", UPDATE),
        ": assign headgate's role to its identity on the resource group of the load balancers",
    ),
    (
        "LinkedAuthorizationFailed",
        EventKind::warning("AzureLinkedScopeForbidden", UPDATE),
        ": assign headgate's role on the resource that the message names, too, such as the virtual network",
    ),
    (
        "DenyAssignmentAuthorizationFailed",
        EventKind::warning("AzureDenyAssignment", UPDATE),
        "; no role helps, because the node resource group is locked (always in AKS Automatic)",
    ),
];

/// An event to record on a Node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeEvent {
    pub(super) node: Arc<ClusterNode>,
    pub(super) kind: EventKind,
    pub(super) note: String,
}

impl NodeEvent {
    /// An event with this text as its note, which is cut to [`MAX_NOTE_BYTES`].
    pub(super) fn new(node: &Arc<ClusterNode>, kind: EventKind, text: String) -> Self {
        Self {
            node: Arc::clone(node),
            kind,
            note: truncate(text),
        }
    }

    /// The event on a signalled Node if the work of the term cannot start.
    pub(super) fn work_not_started(node: &Arc<ClusterNode>, reason: &str) -> Self {
        let reason = reason.trim_end_matches('.');
        let text = format!("Admin state not updated: {reason}. headgate retries at growing intervals.");
        Self::new(node, UPDATE_FAILED, text)
    }

    /// The event on the leader's own Node when the Nodes have become stale.
    pub(super) fn nodes_stale(own: &Arc<ClusterNode>, since: Timestamp) -> Self {
        Self {
            node: Arc::clone(own),
            kind: NODES_STALE,
            note: format!(
                "The Nodes could not be listed or watched since {since:.0}. Until they can, admin states are not written and \
                 stay as they are; the log of this node's headgate says why."
            ),
        }
    }
}

/// What follows from a reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Effects {
    pub(super) events: Vec<NodeEvent>,
    pub(super) ledger_changes: Vec<LedgerChange>,
    /// From the observation of a Node's signal to the read that shows all its entries `Down`, where it had some from the start and none of them
    /// was held back.
    pub(super) signal_to_down: Vec<Duration>,
}

impl OwnEntry<'_> {
    fn is_read_down(&self) -> bool {
        self.entry.observed == Some(AdminState::Down)
    }

    fn stage(&self) -> Option<LedgerStage> {
        self.ledger_entry.map(|entry| entry.stage)
    }

    /// Whether it is `Down` by headgate and that is not in an event yet.
    fn is_newly_down(&self) -> bool {
        self.is_read_down() && matches!(self.stage(), Some(LedgerStage::Intended | LedgerStage::Restored))
    }

    /// Whether a `Down` of headgate's is gone.
    fn is_newly_restored(&self) -> bool {
        !self.is_read_down() && matches!(self.stage(), Some(LedgerStage::Intended | LedgerStage::Down))
    }

    fn change_stage(&self, stage: LedgerStage, now: Moment) -> LedgerChange {
        let since = now.wall;
        LedgerChange::new(&self.entry.pool, &self.entry.key, Some(LedgerEntry { stage, since }))
    }
}

impl LastReads<'_> {
    /// Whether a list and the plans that followed the signal show no entry of the Node, nor one that may be its.
    fn has_no_entry(&self, node: &ClusterNode, period: &SignalPeriod) -> bool {
        let is_listed = self.listing.requested_at.is_some_and(|at| at >= period.since.mono);
        let mut statuses = self.statuses();
        is_listed
            && !self.entries.contains_key(&*node.uid)
            && self.are_planned(period)
            && statuses.all(|status| status.covers_interfaces && status.unreadable_pools.is_empty())
    }

    /// The Nodes with the target state `Down` that have no entry in a pool with an unreadable interface: it may be theirs.
    fn nodes_of_unreadable_pools(&self) -> impl Iterator<Item = (&Arc<ClusterNode>, &LastError)> {
        let unreadable = self.statuses().flat_map(|load_balancer| {
            let pools = load_balancer.unreadable_pools.iter();
            pools.map(move |unreadable| (load_balancer, unreadable))
        });
        unreadable.flat_map(move |(load_balancer, unreadable)| {
            let has_no_entry = move |node: &&Arc<ClusterNode>| {
                let mut entries = self.entries.get(&*node.uid).into_iter().flatten();
                node.exempting_label().is_none() && !entries.any(|own| own.entry.pool == unreadable.pool)
            };
            // A plan from before the signal says nothing about it.
            let is_planned = move |node: &&Arc<ClusterNode>| {
                let period = self.targets.signal_period(node);
                period.is_some_and(|period| load_balancer.has_planned(period.generation))
            };
            let targeted = self
                .targets
                .nodes
                .iter()
                .filter(|node| self.target_state(node) == TargetState::Down);
            let affected = targeted.filter(is_planned).filter(has_no_entry);
            affected.map(|node| (node, &unreadable.last_error))
        })
    }
}

/// The events of this term that the ledger does not record.
#[derive(Debug, Default)]
pub(super) struct TransitionTracker {
    /// By the Node's UID.
    failures: HashMap<String, ReportedFailure>,
    /// When the last signal period began in which an entry was held back, or there was none, by the Node's UID.
    unmeasured: HashMap<String, Instant>,
    exhausted_pools: BTreeSet<PoolId>,
}

/// The last failure with an event.
#[derive(Clone, Debug)]
struct ReportedFailure {
    class: ErrorClass,
    code: String,
    at: Instant,
}

impl TransitionTracker {
    /// The effects of what changed since the last reads.
    pub(super) fn evaluate(&mut self, reads: &LastReads<'_>) -> Effects {
        let mut effects = Effects::default();
        let now = reads.now.mono;
        let mut failing = BTreeSet::new();
        let signalled = || reads.targets.nodes_with_periods();
        for node in signalled() {
            let period = reads.present_signal(node);
            if let Some(period) = period.filter(|period| reads.has_no_entry(node, period)) {
                self.unmeasured.insert(node.uid.clone(), period.since.mono);
            }
        }
        for entries in reads.entries.values() {
            self.evaluate_node(reads, entries, &mut failing, &mut effects);
        }
        if let Some(error) = &reads.listing.last_error {
            let all = reads.targets.nodes.iter();
            let affected = all.filter(|node| {
                reads.target_state(node) == TargetState::Down && !reads.entries.contains_key(node.uid.as_str())
            });
            for node in affected {
                failing.insert(node.uid.clone());
                self.report_failure(node, error, now, &mut effects);
            }
        }
        for (node, error) in reads.nodes_of_unreadable_pools() {
            // A failure of the Node's own entries comes first.
            if failing.insert(node.uid.clone()) {
                self.report_failure(node, error, now, &mut effects);
            }
        }
        self.failures.retain(|uid, _| failing.contains(uid));
        let signalled: BTreeSet<&str> = signalled().map(|node| &*node.uid).collect();
        self.unmeasured.retain(|uid, _| signalled.contains(&**uid));
        self.evaluate_pools(reads, &mut effects);
        effects
    }

    fn evaluate_node(
        &mut self,
        reads: &LastReads<'_>,
        entries: &[OwnEntry<'_>],
        failing: &mut BTreeSet<String>,
        effects: &mut Effects,
    ) {
        let Some(first) = entries.first() else { return };
        let node = &first.entry.node;
        let target = reads.target_state(node);
        let period = reads.targets.signal_period(node);
        let since = period.map(|period| period.since.mono);
        if let Some(since) = since.filter(|_| entries.iter().any(|entry| entry.entry.is_held_back)) {
            self.unmeasured.insert(node.uid.clone(), since);
        }
        let pending = entries.iter().filter(|entry| entry.entry.is_pending());
        let error = pending
            .clone()
            .find_map(|entry| entry.load_balancer.status.last_error.as_ref());
        if let Some(error) = error {
            failing.insert(node.uid.clone());
            self.report_failure(node, error, reads.now.mono, effects);
        }
        // A load balancer whose plan is older than the period may have more entries of the Node.
        let is_outdated = entries.iter().any(|entry| entry.entry.target != target)
            || period.is_some_and(|period| {
                let mut load_balancers = reads.statuses();
                !load_balancers.all(|load_balancer| load_balancer.has_planned(period.generation))
            });
        if is_outdated || pending.count() > 0 {
            return;
        }
        match target {
            TargetState::Down => {
                let lifted = entries.iter().filter(|entry| entry.is_newly_restored());
                let lifted = lifted.filter(|entry| entry.entry.is_held_back);
                let changes = lifted.map(|entry| entry.change_stage(LedgerStage::Restored, reads.now));
                effects.ledger_changes.extend(changes);
                let new: Vec<_> = entries.iter().filter(|entry| entry.is_newly_down()).collect();
                // An entry that stays in service is not pending.
                if new.is_empty() || !reads.in_service(node).is_empty() {
                    return;
                }
                let changes = new.iter().map(|entry| entry.change_stage(LedgerStage::Down, reads.now));
                effects.ledger_changes.extend(changes);
                let mut all = entries.iter();
                if !all.any(|entry| entry.is_read_down() && entry.stage() == Some(LedgerStage::Down)) {
                    let signals = period.map(|period| period.names().into_iter().collect::<Vec<_>>());
                    let since = since.filter(|since| self.unmeasured.get(&node.uid) != Some(since));
                    let took = since.map(|since| reads.now.mono.saturating_duration_since(since));
                    effects.signal_to_down.extend(took);
                    let text = down_note(&statuses(&new), &signals.unwrap_or_default());
                    effects.events.push(NodeEvent::new(node, DOWN, text));
                }
            }
            TargetState::None => {
                let restored: Vec<_> = entries.iter().filter(|entry| entry.is_newly_restored()).collect();
                let changes = restored
                    .iter()
                    .map(|entry| entry.change_stage(LedgerStage::Restored, reads.now));
                effects.ledger_changes.extend(changes);
                // Without this stage there was no event about the `Down`, either.
                if restored.iter().any(|entry| entry.stage() == Some(LedgerStage::Down)) {
                    let left = reads.targets.left_out_of_service_while_ready(node);
                    let text = none_note(&statuses(&restored), left);
                    effects.events.push(NodeEvent::new(node, NONE, text));
                }
            }
            TargetState::Unchanged => {}
        }
    }

    fn report_failure(&mut self, node: &Arc<ClusterNode>, error: &LastError, now: Instant, effects: &mut Effects) {
        let reported = self.failures.get(&node.uid);
        let is_due = reported.is_none_or(|reported| {
            let is_repeated = error.class != ErrorClass::Terminal && now >= reported.at + FAILURE_REPEAT_INTERVAL;
            let is_changed = reported.code != error.code && now >= reported.at + CHANGED_FAILURE_INTERVAL;
            reported.class != error.class || is_changed || is_repeated
        });
        if !is_due {
            return;
        }
        let failure = ReportedFailure {
            class: error.class,
            code: error.code.clone(),
            at: now,
        };
        self.failures.insert(node.uid.clone(), failure);
        let forbidden = FORBIDDEN
            .iter()
            .find(|(code, ..)| code.eq_ignore_ascii_case(&error.code));
        let (kind, remedy) = forbidden.map_or((UPDATE_FAILED, ""), |(_, kind, remedy)| (*kind, *remedy));
        let outlook = match error.class {
            ErrorClass::Terminal => {
                "headgate retries at growing intervals; it fails until an operator corrects the cause"
            }
            ErrorClass::Stale | ErrorClass::Retriable => "headgate retries",
        };
        let message = error.message.trim_end_matches('.');
        let text = format!("Admin state not updated: {message}. {outlook}{remedy}.");
        effects.events.push(NodeEvent::new(node, kind, text));
    }

    /// Warns once about each pool in which no entry gets new connections because of a signal.
    fn evaluate_pools(&mut self, reads: &LastReads<'_>, effects: &mut Effects) {
        let load_balancers = reads.statuses();
        let pools = || load_balancers.clone().flat_map(|load_balancer| &load_balancer.pools);
        let is_exhausted = |id: &PoolId| {
            let mut found = pools().filter(|counts| counts.pool == *id);
            found.any(|counts| counts.eligible == 0 && counts.desired_down > 0)
        };
        self.exhausted_pools.retain(is_exhausted);
        for counts in pools() {
            if counts.eligible > 0 || counts.desired_down == 0 || !self.exhausted_pools.insert(counts.pool.clone()) {
                continue;
            }
            let entries = load_balancers
                .clone()
                .flat_map(|load_balancer| load_balancer.entries.iter());
            let mut down = entries.filter(|entry| entry.pool == counts.pool && entry.target == TargetState::Down);
            let Some(entry) = down.next() else { continue };
            let note = format!(
                "All {} addresses of pool {} are Down or about to be: none of them gets new connections.",
                counts.entries,
                counts.pool.short_name()
            );
            effects
                .events
                .push(NodeEvent::new(&entry.node, NO_ELIGIBLE_ADDRESS, note));
        }
    }
}

/// The names of the entries' pools, at most [`MAX_POOLS_NAMED`].
pub(super) fn pool_names(entries: &[&EntryStatus]) -> String {
    let pools: BTreeSet<_> = entries.iter().map(|entry| entry.pool.short_name()).collect();
    first_names(pools, MAX_POOLS_NAMED)
}

pub(super) fn statuses<'a>(entries: &[&OwnEntry<'a>]) -> Vec<&'a EntryStatus> {
    entries.iter().map(|own| own.entry).collect()
}

fn down_note(entries: &[&EntryStatus], signals: &[String]) -> String {
    let with_coverage = |coverage| -> Vec<&EntryStatus> {
        let found = entries.iter().filter(|entry| entry.probe_coverage == coverage);
        found.copied().collect()
    };
    let (unprobed, partly) = (
        with_coverage(ProbeCoverage::None),
        with_coverage(ProbeCoverage::Partial),
    );
    let mut note = format!(
        "Down in {} because of {}: no new connections.",
        pool_names(entries),
        signals.join(", ")
    );
    if !unprobed.is_empty() {
        let _ = write!(
            note,
            " It has no effect in {}: no rule of it has a health probe.",
            pool_names(&unprobed)
        );
    }
    if !partly.is_empty() {
        let _ = write!(
            note,
            " It has no effect on the rules of {} without a health probe.",
            pool_names(&partly)
        );
    }
    note
}

fn none_note(entries: &[&EntryStatus], left_out_of_service: bool) -> String {
    let mut note = format!(
        "None again in {}: health probes decide about new connections.",
        pool_names(entries)
    );
    if left_out_of_service {
        let _ = write!(
            note,
            " The taint node.kubernetes.io/out-of-service was removed from a Ready node, as cloud-controller-manager does; \
             to keep traffic away from a node that is up, use {DRAINING_TAINT}."
        );
    }
    note
}

/// Cuts a note to [`MAX_NOTE_BYTES`].
fn truncate(note: String) -> String {
    if note.len() <= MAX_NOTE_BYTES {
        return note;
    }
    let mut ends = (0..=MAX_NOTE_BYTES).rev();
    let end = ends.find(|end| note.is_char_boundary(*end)).unwrap_or_default();
    format!("{}…", &note[..end])
}

#[cfg(test)]
mod tests;
