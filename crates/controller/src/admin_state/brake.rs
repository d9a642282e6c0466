//! The brake: signals that do not announce the end of the machine by themselves set no more than `guard.maxNewDown` of a pool's
//! entries `Down` within [`WINDOW`], the oldest signals first. A cordon, a condition, a label or a maintenance may be a mistake that
//! meets every node at once. Pure.
//!
//! Invariants: a Node with another signal, an eviction notice or a deletion never waits: there a wait would cost connections. What the
//! ledger has as headgate's is not new, so a `Down` that another writer lost is written again at once; and the ledger's times count for
//! the next leader as well. What waits is a hold (see `guard`), so agents answer 200 where probes reach headgate.

use std::collections::BTreeMap;
use std::time::Duration;

use headgate_azure::AdminState;
use headgate_clock::Moment;
use headgate_node::Signal;
use jiff::Timestamp;

use super::int_or_percent::IntOrPercent;
use super::ledger::{LedgerEntry, LedgerStage};
use super::rule_guard::{ClaimedEntry, HeldFor};
use super::target_states::{SignalPeriod, TargetState, TargetStates};
use crate::pool::ClusterNode;

/// For how long a new `Down` counts.
const WINDOW: Duration = Duration::from_mins(5);

/// Adds the entries that wait to those that are held back. `owned` are the entries whose Nodes may have a signal.
pub(super) fn hold_waiting(
    owned: &[ClaimedEntry<'_>],
    pool_size: usize,
    limit: IntOrPercent,
    targets: &TargetStates,
    now: Moment,
    held: &mut BTreeMap<usize, HeldFor>,
) {
    let mut new = 0;
    let mut candidates = Vec::new();
    for entry in owned {
        let node = entry.owner.node;
        let period = targets.signal_period(node);
        let Some(period) = period.filter(|period| !announces_end(node, period)) else {
            continue;
        };
        if let Some(known) = entry.ledger_entry.filter(|known| known.stage != LedgerStage::Restored) {
            new += usize::from(is_new(known, now.wall));
            continue;
        }
        let is_due = targets.target_state(node, now.mono) == TargetState::Down
            && entry.observed == Some(AdminState::None)
            && node.exempting_label().is_none()
            && !held.contains_key(&entry.index);
        if is_due {
            candidates.push((period.since.mono, &node.name, entry.index));
        }
    }
    candidates.sort_unstable();
    let room = limit.rounded_down(pool_size).saturating_sub(new);
    for (.., index) in candidates.into_iter().skip(room) {
        held.entry(index).or_default().brake = true;
    }
}

/// Whether a signal, or anything else on the Node, announces the end of the machine.
fn announces_end(node: &ClusterNode, period: &SignalPeriod) -> bool {
    let announces = |name: &String| name.parse().is_ok_and(|signal: Signal| signal.announces_end());
    // A condition of the settings makes a Node terminal, because it may announce the end.
    let is_terminal = node.is_terminal && !node.signals.keys().any(|signal| matches!(signal, Signal::Condition(_)));
    node.is_deleting || node.eviction_at.is_some() || is_terminal || period.signals.iter().any(announces)
}

/// Whether the `Down` counts as new. One that is not written yet does; a time that is far ahead is another machine's clock.
fn is_new(entry: LedgerEntry, now: Timestamp) -> bool {
    entry.stage == LedgerStage::Intended || now.duration_since(entry.since).unsigned_abs() < WINDOW
}

#[cfg(test)]
mod tests;
