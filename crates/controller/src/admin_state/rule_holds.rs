//! Events about Nodes that the guard keeps in service because rules of Local Services need them, or may, or because others become
//! `Down` first. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headgate_core::node::SignalPeriod;

use super::last_reads::LastReads;
use super::plan::EntryStatus;
use super::rule_guard::HeldFor;
use super::transitions::{HELD_BACK, NodeEvent, pool_names, truncate};

/// The Nodes that have an event: one for each hold and what it is for, by the UID of the Node.
#[derive(Debug, Default)]
pub(super) struct RuleHoldTracker {
    reported: BTreeMap<String, HeldFor>,
}

impl RuleHoldTracker {
    /// The events about holds that are new, or for other Services than before.
    pub(super) fn evaluate(&mut self, reads: &LastReads<'_>) -> Vec<NodeEvent> {
        let is_held = |entry: &&EntryStatus| {
            let others = HeldFor {
                minimum: false,
                ..entry.held_for.clone()
            };
            others.is_news()
        };
        let (mut events, mut reported) = (Vec::new(), BTreeMap::new());
        for (uid, own) in &reads.entries {
            let entries: Vec<_> = own.iter().map(|own| own.entry).filter(is_held).collect();
            let held_for = HeldFor {
                minimum: false,
                ..HeldFor::union(entries.iter().copied())
            };
            let Some(node) = entries.first().map(|entry| &entry.node) else {
                continue;
            };
            let signals = reads
                .targets
                .signal_period(node)
                .map(SignalPeriod::names)
                .unwrap_or_default();
            if self.reported.get(*uid) != Some(&held_for) {
                events.push(NodeEvent {
                    node: Arc::clone(node),
                    kind: HELD_BACK,
                    note: note(&entries, &held_for, &signals),
                });
            }
            reported.insert((*uid).to_owned(), held_for);
        }
        self.reported = reported;
        events
    }
}

fn note(entries: &[&EntryStatus], held_for: &HeldFor, signals: &BTreeSet<String>) -> String {
    let signals: Vec<_> = signals.iter().map(String::as_str).collect();
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
