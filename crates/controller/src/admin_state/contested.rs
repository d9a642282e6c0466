//! Events about addresses and machines that several Nodes claim. Pure.
//!
//! Invariant: at most [`MAX_CLAIMS_REPORTED`] of them are reported within [`REPORT_TTL`], whatever a node writes into its
//! `status.addresses`. `pool::PoolEntry::owner` decides what happens to their entries.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::transitions::{ADDRESS_CONTESTED, MACHINE_CONTESTED, NodeEvent};
use crate::pool::{Claimed, ClusterNode, NodeIndex};

const MAX_CLAIMS_REPORTED: usize = 8;
/// The claimants of one address or machine that have an event, and are named in it.
const MAX_CLAIMANTS_NAMED: usize = 8;
/// How long a report counts after the claim has ended, and until other claimants are reported.
const REPORT_TTL: Duration = Duration::from_mins(5);

/// The contested claims that have events.
#[derive(Debug, Default)]
pub(super) struct ContestedTracker {
    reported: BTreeMap<Claimed, Report>,
}

#[derive(Debug)]
struct Report {
    /// By UID.
    claimants: BTreeSet<String>,
    at: Instant,
}

impl ContestedTracker {
    /// The events about new claims: one on each claimant.
    pub(super) fn evaluate(&mut self, nodes: &NodeIndex, now: Instant) -> Vec<NodeEvent> {
        self.reported
            .retain(|claimed, report| nodes.claimants_of(claimed).len() > 1 || now < report.at + REPORT_TTL);
        let total = nodes.contested().count();
        let mut events = Vec::new();
        for (claimed, claimants) in nodes.contested() {
            let uids: BTreeSet<String> = claimants.iter().map(|node| node.uid.clone()).collect();
            match self.reported.get(claimed) {
                Some(report) if uids.is_subset(&report.claimants) || now < report.at + REPORT_TTL => continue,
                None if self.reported.len() >= MAX_CLAIMS_REPORTED => continue,
                _ => {}
            }
            let note = note(claimed, claimants, total);
            let claimants = claimants.iter().take(MAX_CLAIMANTS_NAMED);
            let kind = match claimed {
                Claimed::Address(_) => ADDRESS_CONTESTED,
                Claimed::Machine(_) => MACHINE_CONTESTED,
            };
            events.extend(claimants.map(|node| NodeEvent::new(node, kind, note.clone())));
            let report = Report {
                claimants: uids,
                at: now,
            };
            self.reported.insert(claimed.clone(), report);
        }
        events
    }
}

fn note(claimed: &Claimed, claimants: &[Arc<ClusterNode>], total: usize) -> String {
    let named: Vec<_> = claimants
        .iter()
        .take(MAX_CLAIMANTS_NAMED)
        .map(|node| node.name.as_str())
        .collect();
    let more = match claimants.len().saturating_sub(MAX_CLAIMANTS_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let others = match total.saturating_sub(1) {
        0 => String::new(),
        others => format!(" {others} more addresses or machines are contested."),
    };
    let named = named.join(", ");
    match claimed {
        Claimed::Address(address) => format!(
            "{address} is an InternalIP of {named}{more}. The Node that a pool entry with this address names decides about the entry; \
             if it names none of them, it is set Down only while all of them have a signal. Check status.addresses of these \
             Nodes.{others}"
        ),
        Claimed::Machine(machine) => format!(
            "{machine} is the machine of {named}{more}. Its pool entries are set Down only while all of these Nodes have a signal. Check \
             spec.providerID, and delete the Node that is not this machine's.{others}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use headgate_core::clock::Clock;
    use proptest::prelude::*;

    use super::super::fixtures::{DRAIN, ledger, node, plan_inputs, target_states, view};
    use super::super::ledger::LedgerStage;
    use super::super::plan::plan;
    use super::super::target_states::TargetStates;
    use super::*;

    /// Nodes that all claim these addresses beside their own.
    fn index(count: u8, shared: &[&str]) -> NodeIndex {
        let mut index = NodeIndex::default();
        for number in 1..=count {
            let mut node = node(number, &[]);
            node.addresses
                .extend(shared.iter().map(|address| address.parse::<IpAddr>().unwrap()));
            index.apply(node);
        }
        index
    }

    #[test]
    fn each_claimant_has_one_event_that_names_all() {
        let mut tracker = ContestedTracker::default();
        let now = Clock::System.now().mono;
        let events = tracker.evaluate(&index(2, &["10.0.9.9"]), now);
        let about: Vec<_> = events.iter().map(|event| event.node.name.as_str()).collect();
        assert_eq!(about, ["n1", "n2"]);
        assert!(
            events[0]
                .note
                .starts_with("10.0.9.9 is an InternalIP of n1, n2. The Node"),
            "{}",
            events[0].note
        );
        assert!(tracker.evaluate(&index(2, &["10.0.9.9"]), now).is_empty());
        assert!(tracker.evaluate(&index(1, &["10.0.9.9"]), now).is_empty());
        assert!(
            tracker.evaluate(&index(2, &["10.0.9.9"]), now).is_empty(),
            "the claim comes and goes"
        );
        // A third claimant is reported, later.
        assert!(tracker.evaluate(&index(3, &["10.0.9.9"]), now).is_empty());
        assert_eq!(tracker.evaluate(&index(3, &["10.0.9.9"]), now + REPORT_TTL).len(), 3);
        let later = now + 2 * REPORT_TTL;
        assert!(
            tracker.evaluate(&index(3, &["10.0.9.9"]), later).is_empty(),
            "the same claim"
        );
        assert!(tracker.evaluate(&index(1, &["10.0.9.9"]), later).is_empty());
        assert_eq!(tracker.evaluate(&index(2, &["10.0.9.9"]), later).len(), 2);
    }

    #[test]
    fn claims_of_many_addresses_have_few_events() {
        let addresses: Vec<String> = (0..200).map(|number| format!("10.1.0.{number}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut tracker = ContestedTracker::default();
        let now = Clock::System.now().mono;
        let events = tracker.evaluate(&index(20, &addresses), now);
        assert_eq!(events.len(), MAX_CLAIMS_REPORTED * MAX_CLAIMANTS_NAMED);
        assert!(
            events[0].note.contains("n1, n10, n11") || events[0].note.contains("n1, n2, n3"),
            "{}",
            events[0].note
        );
        assert!(
            events[0].note.contains("and 12 more")
                && events[0]
                    .note
                    .ends_with("199 more addresses or machines are contested.")
        );
        assert!(tracker.evaluate(&index(20, &addresses), now).is_empty());
    }

    #[test]
    fn former_node_of_a_machine_decides_nothing_once_it_is_lost() {
        let mut former = node(2, &[]);
        former.ready = false;
        former.addresses = node(1, &[]).addresses;
        let mut now = Clock::System.now();
        let mut restarting = node(1, &[DRAIN]);
        restarting.ready = false;
        let targets = target_states(&[node(1, &[DRAIN]), former.clone()], now);
        let all_lost = target_states(&[restarting, former.clone()], now);
        former.not_ready_since = Some(now.wall - jiff::SignedDuration::from_mins(1));
        let found_lost = target_states(&[node(1, &[DRAIN]), former], now);
        let mut view = view(&[("p", &[(1, "-")], true)]);
        Arc::make_mut(&mut view.pools[0]).entries[0].name = None;
        let changes =
            |targets: &TargetStates, now| plan(&view, &plan_inputs(targets, &ledger(&[]), now)).change_count();
        assert_eq!(changes(&targets, now), 0, "its heartbeat may be late");
        assert_eq!(changes(&found_lost, now), 1, "it was lost before this leader began");
        now.mono = targets.next_deadline(now.mono).unwrap();
        assert_eq!(changes(&targets, now), 1);
        assert_eq!(changes(&all_lost, now), 1, "what restarts stays out");
    }

    proptest! {
        /// Whatever nodes claim, taint and register anew: a named entry follows the signal of its own node alone, and another one
        /// is `Down` only while all claimants of its address have a signal.
        #[test]
        fn claims_neither_cause_nor_block_a_drain_of_another_node(
            signals in proptest::collection::vec(any::<bool>(), 4),
            ages in proptest::collection::vec(0_i64..3, 4),
            claims in proptest::collection::vec((0_usize..4, 0_usize..4), 0..6),
            named in proptest::collection::vec(any::<bool>(), 4),
            was_down in proptest::collection::vec(any::<bool>(), 4),
        ) {
            let mut nodes: Vec<ClusterNode> = (1..=4)
                .zip(&signals)
                .map(|(number, signalled)| node(number, if *signalled { &[DRAIN] } else { &[] }))
                .collect();
            for (node, age) in nodes.iter_mut().zip(ages) {
                node.created = jiff::Timestamp::from_second(age).unwrap();
            }
            let own: Vec<IpAddr> = nodes.iter().map(|node| node.addresses[0]).collect();
            for (claimant, victim) in &claims {
                nodes[*claimant].addresses.push(own[*victim]);
            }
            let state = |index: usize| if was_down[index] { "Down" } else { "-" };
            let entries: Vec<(u8, &str)> = (1..=4).zip((0..4).map(state)).collect();
            let mut view = view(&[("p", &entries, true)]);
            for (entry, _) in Arc::make_mut(&mut view.pools[0]).entries.iter_mut().zip(&named).filter(|(_, named)| !**named) {
                entry.name = None;
            }
            let downs: Vec<_> = (1..=4).zip(&was_down).filter(|(_, down)| **down).collect();
            let recorded: Vec<_> = downs.iter().map(|(number, _)| ("p", *number, LedgerStage::Down)).collect();
            let now = Clock::System.now();
            let plan = plan(&view, &plan_inputs(&target_states(&nodes, now), &ledger(&recorded), now));
            let changes: BTreeMap<usize, &str> = plan
                .edits
                .iter()
                .flat_map(|edit| &edit.admin_states)
                .map(|change| (change.index, change.to.as_str()))
                .collect();
            for (index, address) in own.iter().enumerate() {
                let is_down = changes.get(&index).map_or(was_down[index], |to| *to == "Down");
                let all = nodes.iter().zip(&signals).filter(|(node, _)| node.addresses.contains(address));
                let expected = if named[index] { signals[index] } else { all.into_iter().all(|(_, signalled)| *signalled) };
                prop_assert_eq!(is_down, expected, "entry {}: {:?}", index + 1, changes);
            }
        }
    }
}
