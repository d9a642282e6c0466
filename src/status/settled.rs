//! Whether the nodes of a report are where they should be: what `--wait` waits for. Pure.

use headgate_core::node::Unproved;
use headgate_core::telemetry::first_names;

use super::report::{Selection, StatusReport};

/// Phrases about entries, and names in one.
const MAX_PHRASES: usize = 5;

impl StatusReport {
    /// What is not done yet, or not known, in phrases; empty if every shown node is where its signals want it. What the guard holds
    /// back, or another writer has set, stays as it is. `needs_azure` is whether load balancers must be known.
    pub(crate) fn unsettled(&self, needs_azure: bool) -> Vec<String> {
        let mut found = Vec::new();
        let of_leader = match (&self.leader, &self.leader_error) {
            (_, Some(error)) => Some(format!("the leader is not known: {error}")),
            (Some(leader), None) if !leader.alive => Some("no leader is alive".to_owned()),
            _ => None,
        };
        found.extend(of_leader);
        if !self.missing_nodes.is_empty() {
            let missing = first_names(&self.missing_nodes, MAX_PHRASES);
            found.push(format!("the report lacks the selected {missing}"));
        } else if self.selection == Selection::Named && self.nodes.is_empty() {
            found.push("no node is selected".to_owned());
        }
        // A leader decides nothing about stale Nodes, so that no entry is pending.
        let work = self.leader_work.as_ref();
        let stale = work.and_then(|work| work.nodes_stale_since);
        found.extend(stale.map(|since| format!("Nodes are not confirmed since {since:.0}")));
        if needs_azure {
            let list_error = work.and_then(|work| work.list_error.as_ref());
            found.extend(list_error.map(|error| format!("load balancers are not listed: {error}")));
            let unreadable = self.unreadable_load_balancers.iter();
            found.extend(unreadable.map(|row| format!("{} cannot be read: {}", row.id, row.why)));
            found.extend(self.unattributed.iter().take(MAX_PHRASES).cloned());
            let unidentified = self.nodes.iter().filter(|node| node.unidentified).take(MAX_PHRASES);
            found.extend(unidentified.map(|node| format!("{}: {}", node.name, Unproved::NotIdentified)));
            let errors = [
                ("load balancers are", &self.azure_error),
                ("the ledger is", &self.ledger_error),
            ];
            let known = errors
                .into_iter()
                .filter_map(|(what, error)| Some((what, error.as_ref()?)));
            found.extend(known.map(|(what, error)| format!("{what} not known: {error}")));
        }
        let mut due = self.entries().filter(|(_, entry)| entry.pending || entry.waiting);
        let named = due.by_ref().take(MAX_PHRASES).map(|(node, entry)| {
            let becomes = entry.becomes.unwrap_or("Down");
            let (load_balancer, pool) = (&entry.load_balancer, &entry.pool);
            format!("{} is to become {becomes} in {load_balancer}/{pool}", node.name)
        });
        found.extend(named);
        let more = due.count();
        if more > 0 {
            found.push(format!("{more} more entries are pending"));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::node::Unproved;
    use jiff::Timestamp;

    use super::super::report::{LeaderWork, UnreadableRow};
    use super::super::text::tests::report;

    #[test]
    fn pending_entries_and_what_is_not_known_are_not_settled() {
        let mut found = report();
        assert_eq!(found.unsettled(true), ["n1 is to become Down in internal/kubernetes"]);
        let entry = &mut found.nodes[0].entries[1];
        (entry.pending, entry.becomes, entry.held_back) = (false, None, true);
        assert!(
            found.unsettled(true).is_empty(),
            "the guard's hold is no change to come"
        );
        found.azure_error = Some("refused".to_owned());
        assert_eq!(found.unsettled(true), ["load balancers are not known: refused"]);
        assert!(found.unsettled(false).is_empty());
        found.azure_error = None;
        found.unattributed = vec!["an interface is not known".to_owned()];
        assert_eq!(found.unsettled(true), found.unattributed);
        assert!(found.unsettled(false).is_empty());
        found.unattributed.clear();
        found.nodes[0].unidentified = true;
        assert_eq!(found.unsettled(true), [format!("n1: {}", Unproved::NotIdentified)]);
        assert!(found.unsettled(false).is_empty());
        found.nodes[0].unidentified = false;
        found.leader_work = Some(LeaderWork {
            list_error: Some("403".to_owned()),
            nodes_stale_since: Some(Timestamp::from_second(600).unwrap()),
            ..LeaderWork::default()
        });
        found.unreadable_load_balancers = vec![UnreadableRow {
            id: "/lb".to_owned(),
            why: "403".to_owned(),
        }];
        let of_leader = [
            "Nodes are not confirmed since 1970-01-01T00:10:00Z",
            "load balancers are not listed: 403",
            "/lb cannot be read: 403",
        ];
        assert_eq!(found.unsettled(true), of_leader);
        assert_eq!(found.unsettled(false), of_leader[..1]);
        (found.leader_work, found.unreadable_load_balancers) = (None, Vec::new());
        found.leader.as_mut().unwrap().alive = false;
        assert_eq!(found.unsettled(false), ["no leader is alive"]);
        found.nodes = (0..9).flat_map(|_| report().nodes).collect();
        assert_eq!(found.unsettled(false).last().unwrap(), "4 more entries are pending");
    }

    #[test]
    fn a_selection_is_settled_only_if_all_its_nodes_are_known() {
        for (selected, expected) in [
            (&["n2"][..], None),
            (&["n2", "n8", "n9"], Some("the report lacks the selected n8, n9")),
            (&[], Some("no node is selected")),
        ] {
            let mut found = report();
            let names: Vec<String> = selected.iter().map(ToString::to_string).collect();
            found.retain_selected(&names);
            assert_eq!(found.unsettled(true), Vec::from_iter(expected), "{selected:?}");
        }
    }
}
