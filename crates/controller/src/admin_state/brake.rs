//! The brake: signals that do not announce the end of the machine by themselves set no more than `adminState.maxNewDown` of a pool's
//! entries `Down` within [`WINDOW`], the signals first that this leader has seen for longest. A cordon, a maintenance, or what only the
//! settings list, such as a taint or a condition, may be a mistake that meets every node at once. Pure.
//!
//! Invariants: a Node with another signal, an eviction notice, a deletion or a maintenance's deadline never waits: there a wait would cost
//! connections. What the ledger has as headgate's is not new, so a `Down` that another writer lost is written again at once; and the
//! ledger's times count for the next leader as well. What waits is a hold (see `guard`), so agents answer 200 where probes reach headgate.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_azure::AdminState;
use headgate_core::node::Signal;
use jiff::Timestamp;

use super::guard::ClaimedEntry;
use super::ledger::{LedgerEntry, LedgerStage};
use super::plan::PlanInputs;
use super::rule_guard::HeldFor;
use super::target_states::TargetState;
use crate::pool::ClusterNode;

/// For how long a new `Down` counts.
const WINDOW: Duration = Duration::from_mins(5);

/// Adds the entries that wait to those that are held back. `owned` are the entries whose Nodes may have a signal, and those in the ledger.
pub(super) fn hold_waiting(
    owned: &[ClaimedEntry<'_>],
    pool_size: usize,
    inputs: &PlanInputs<'_>,
    held: &mut BTreeMap<usize, HeldFor>,
) {
    let mut new = 0;
    let mut candidates = Vec::new();
    for entry in owned {
        let node = entry.owner.node;
        let period = inputs.targets.signal_period(node);
        // What must last again has perhaps set the entry `Down` under the leader before.
        if announces_end(node) || period.is_none() && !inputs.targets.is_all_pending(node) {
            continue;
        }
        let may_be_set = node.exempting_label().is_none();
        if let Some(known) = entry.ledger_entry.filter(|known| known.stage != LedgerStage::Restored) {
            // One whose write is due counts until it is written.
            let is_due = known.stage == LedgerStage::Intended
                && entry.target == TargetState::Down
                && entry.observed != Some(AdminState::Down)
                && may_be_set;
            new += usize::from(is_due || is_new(known, inputs.now.wall));
            continue;
        }
        let is_due = entry.target == TargetState::Down
            && entry.observed == Some(AdminState::None)
            && may_be_set
            && !held.contains_key(&entry.index);
        if let Some(period) = period.filter(|_| is_due) {
            candidates.push((period.since.mono, &node.name, entry.index));
        }
    }
    candidates.sort_unstable();
    let room = inputs
        .guard
        .settings
        .max_new_down
        .rounded_down(pool_size)
        .saturating_sub(new);
    for (.., index) in candidates.into_iter().skip(room) {
        held.entry(index).or_default().brake = true;
    }
}

/// Whether a signal, of whatever list, or anything else on the Node announces the end of the machine.
fn announces_end(node: &ClusterNode) -> bool {
    let mut signals = node.signals.keys().chain(&node.health_signals);
    node.ends || node.present_notice().is_some() || has_deadline(node) || signals.any(Signal::announces_end)
}

/// Whether the node is gone at the deadline of its maintenances: only then autoscalers are not kept away from it.
fn has_deadline(node: &ClusterNode) -> bool {
    node.maintenance_taint.is_some() && node.was_unschedulable.is_some() && !node.is_kept_from_scale_down
}

/// Whether the `Down` counts as new. A time that is far ahead is another machine's clock. A new leader whose clock is ahead by
/// [`WINDOW`] takes the `Down` of the leader before it for old ones, and sets as many entries `Down` again.
fn is_new(entry: LedgerEntry, now: Timestamp) -> bool {
    now.duration_since(entry.since).unsigned_abs() < WINDOW
}

#[cfg(test)]
mod tests;
