//! Events about Nodes that the guard keeps in service because rules of Local Services need them, or may, or because others become
//! `Down` first. Pure.

use std::collections::{BTreeMap, BTreeSet};

use headgate_core::node::SignalPeriod;

use super::holds::{DesiredHold, DesiredHolds};
use super::last_reads::{LastReads, OwnEntry};
use super::plan::EntryStatus;
use super::rule_guard::HeldFor;
use super::transitions::{HELD_BACK, NodeEvent, pool_names};

/// The Nodes that have an event: one for each hold and what it is for, by the UID of the Node.
#[derive(Debug, Default)]
pub(super) struct RuleHoldTracker {
    reported: BTreeMap<String, HeldFor>,
}

impl RuleHoldTracker {
    /// The events about holds that are new, or for other Services than before. A hold that an earlier leader recorded for the same reason
    /// has its event already. `holds` follow from the same reads; `awaits_lookups` is as of these.
    pub(super) fn evaluate(
        &mut self,
        reads: &LastReads<'_>,
        holds: &DesiredHolds,
        awaits_lookups: bool,
    ) -> Vec<NodeEvent> {
        // What the minimum keeps has an event of its own.
        let of_rules = |held_for: HeldFor| HeldFor {
            minimum: false,
            ..held_for.without_listing()
        };
        let is_held = |entry: &&EntryStatus| of_rules(entry.held_for.clone()).is_news();
        let (mut events, mut reported) = (Vec::new(), BTreeMap::new());
        for (uid, own) in &reads.entries {
            // Beside interfaces that are not looked up yet it is not known who else serves.
            let is_unplanned = |own: &OwnEntry<'_>| own.load_balancer.status.planned_generation.is_none();
            if awaits_lookups && own.iter().any(is_unplanned) {
                let before = self.reported.remove_entry(*uid);
                reported.extend(before);
                continue;
            }
            let entries: Vec<_> = own.iter().map(|own| own.entry).filter(is_held).collect();
            let held_for = of_rules(HeldFor::union(entries.iter().copied()));
            let Some(node) = entries.first().map(|entry| &entry.node) else {
                continue;
            };
            let signals = reads
                .targets
                .signal_period(node)
                .map(SignalPeriod::names)
                .unwrap_or_default();
            let is_reported = match self.reported.get(*uid) {
                Some(reported) => *reported == held_for,
                None => holds.get(&node.name).is_some_and(DesiredHold::is_recorded),
            };
            if !is_reported {
                let text = note(&entries, &held_for, &signals);
                events.push(NodeEvent::new(node, HELD_BACK, text));
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
    note
}

#[cfg(test)]
mod tests {
    use headgate_core::clock::Clock;
    use headgate_core::node::NodeHold;

    use super::super::fixtures::{
        DRAIN, held_by_brake, held_by_minimum, held_for, ledger, node, plan_inputs, planned, target_states, view,
    };
    use super::super::guard::GuardSettings;
    use super::super::holds::{Unplanned, desired_holds};
    use super::super::plan::plan;
    use super::super::planner::LoadBalancerStatus;
    use super::super::settings::AdminStateMode;
    use super::*;
    use crate::pool::Listing;
    use crate::service_index::Unknown;

    /// The notes of the events after reads that show an entry of a Node with a signal, held for this.
    fn notes(tracker: &mut RuleHoldTracker, held_for: &HeldFor) -> Vec<String> {
        notes_beside(tracker, held_for, &mut None)
    }

    /// The same where this is recorded on the Node, and then what is to be.
    fn notes_beside(tracker: &mut RuleHoldTracker, held_for: &HeldFor, recorded: &mut Option<NodeHold>) -> Vec<String> {
        notes_while(false, tracker, held_for, recorded)
    }

    fn notes_while(
        awaits_lookups: bool,
        tracker: &mut RuleHoldTracker,
        held_for: &HeldFor,
        recorded: &mut Option<NodeHold>,
    ) -> Vec<String> {
        let (now, ledger) = (Clock::System.now(), ledger(&[]));
        let mut node = node(1, &[DRAIN]);
        node.hold = recorded.take();
        let targets = target_states(&[node], now);
        let pools = view(&[("p", &[(1, "-"), (2, "-")], true)]);
        let mut entries = plan(&pools, &plan_inputs(&targets, &ledger, now)).entries;
        entries[0].held_for = held_for.clone();
        let load_balancers = [planned(LoadBalancerStatus {
            entries: entries.into(),
            ..LoadBalancerStatus::default()
        })];
        let listing = Listing::default();
        let mode = AdminStateMode::Enforce;
        let reads = LastReads::new(&targets, &load_balancers, &ledger, &listing, mode, now);
        let (planned, guard) = (Unplanned::Named(BTreeSet::new()), GuardSettings::DISABLED);
        let holds = desired_holds(&reads, &planned, &guard, false);
        *recorded = holds.get("n1").and_then(|hold| hold.record(now.wall));
        let events = tracker.evaluate(&reads, &holds, awaits_lookups).into_iter();
        events
            .map(|event| format!("{}: {}", event.node.name, event.note))
            .collect()
    }

    #[test]
    fn a_hold_has_one_event_until_it_is_for_something_else() {
        let mut tracker = RuleHoldTracker::default();
        let web = held_for("shop/web");
        assert_eq!(
            notes(&mut tracker, &web),
            [format!(
                "n1: Kept in service in lb/p despite drain: {}. /healthz of this node still answers 503, so rules that probe it use \
                 other nodes.",
                web.reason()
            )]
        );
        assert!(notes(&mut tracker, &web).is_empty());
        assert_eq!(notes(&mut tracker, &held_for("shop/api")).len(), 1);
        assert!(notes(&mut tracker, &HeldFor::default()).is_empty());
        assert_eq!(notes(&mut tracker, &web).len(), 1, "a hold that begins again");
        // Before interfaces are looked up no event is recorded, and what was recorded stays known.
        assert!(notes_while(true, &mut tracker, &held_for("shop/api"), &mut None).is_empty());
        assert!(notes(&mut tracker, &web).is_empty());
    }

    #[test]
    fn new_leader_repeats_no_event_about_what_is_recorded_for_the_same_reason() {
        let waits = held_by_brake();
        let listing = HeldFor {
            unknown: Some(Unknown::Listing),
            ..waits.clone()
        };
        let needed = held_for("shop/web");
        let mut recorded = None;
        let first = notes_beside(&mut RuleHoldTracker::default(), &waits, &mut recorded);
        assert_eq!(first.len(), 1);
        let mut next = RuleHoldTracker::default();
        for held_for in [&listing, &waits] {
            let notes = notes_beside(&mut next, held_for, &mut recorded);
            assert_eq!(notes, [""; 0], "{held_for:?}");
        }
        let mut next = RuleHoldTracker::default();
        assert_eq!(notes_beside(&mut next, &needed, &mut recorded).len(), 1);
        assert_eq!(notes_beside(&mut next, &waits, &mut recorded).len(), 1);
        recorded = recorded.map(|hold| NodeHold {
            pools: ["other/p".to_owned()].into(),
            ..hold
        });
        let elsewhere = notes_beside(&mut RuleHoldTracker::default(), &waits, &mut recorded);
        assert_eq!(elsewhere.len(), 1);
    }

    #[test]
    fn what_waits_answers_200_and_what_the_minimum_keeps_has_an_event_of_its_own() {
        let mut tracker = RuleHoldTracker::default();
        let waits = held_by_brake();
        let reason = waits.reason();
        assert_eq!(
            notes(&mut tracker, &waits),
            [format!("n1: Kept in service in lb/p despite drain: {reason}.")]
        );
        assert!(notes(&mut tracker, &held_by_minimum()).is_empty());
    }
}
