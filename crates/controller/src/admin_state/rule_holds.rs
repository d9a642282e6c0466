//! Events about Nodes that the guard keeps in service because rules of Local Services need them, or may, or because others become
//! `Down` first. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::plan::EntryStatus;
use super::planner::LoadBalancerStatus;
use super::rule_guard::HeldFor;
use super::target_states::TargetStates;
use super::transitions::{EventKind, NodeEvent, pool_names, truncate};

/// The Nodes that have an event: one for each hold and what it is for, by the UID of the Node.
#[derive(Debug, Default)]
pub(super) struct RuleHoldTracker {
    reported: BTreeMap<String, HeldFor>,
}

impl RuleHoldTracker {
    /// The events about holds that are new, or for other Services than before.
    pub(super) fn evaluate(&mut self, load_balancers: &[LoadBalancerStatus], targets: &TargetStates) -> Vec<NodeEvent> {
        let mut entries: BTreeMap<&str, Vec<&EntryStatus>> = BTreeMap::new();
        for entry in load_balancers.iter().flat_map(|one| &one.entries) {
            let others = HeldFor {
                minimum: false,
                ..entry.held_for.clone()
            };
            if others.is_news() {
                entries.entry(&entry.node.uid).or_default().push(entry);
            }
        }
        let (mut events, mut reported) = (Vec::new(), BTreeMap::new());
        for (uid, entries) in entries {
            let held_for = HeldFor {
                minimum: false,
                ..HeldFor::union(entries.iter().copied())
            };
            let Some(node) = entries.first().map(|entry| &entry.node) else {
                continue;
            };
            let signals = targets.signal_period(node).map(|period| &period.signals);
            if self.reported.get(uid) != Some(&held_for) {
                events.push(NodeEvent {
                    node: Arc::clone(node),
                    kind: EventKind::HeldBack,
                    note: note(&entries, &held_for, signals),
                });
            }
            reported.insert(uid.to_owned(), held_for);
        }
        self.reported = reported;
        events
    }
}

fn note(entries: &[&EntryStatus], held_for: &HeldFor, signals: Option<&BTreeSet<String>>) -> String {
    let signals: Vec<_> = signals.into_iter().flatten().map(String::as_str).collect();
    let mut note = format!(
        "Kept in service in {} despite {}: {}.",
        pool_names(entries),
        signals.join(", "),
        held_for.reason(),
    );
    if !entries
        .iter()
        .any(|entry| entry.held_for.minimum || entry.held_for.brake)
    {
        note.push_str(" /healthz of this node still answers 503, so rules that probe it use other nodes.");
    }
    truncate(note)
}
