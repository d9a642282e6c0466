//! Whether the nodes of a report are where they should be: what `--wait` waits for. Pure.

use super::report::StatusReport;

/// Phrases about entries.
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
        if needs_azure {
            let errors = [
                ("load balancers are", &self.azure_error),
                ("the ledger is", &self.ledger_error),
            ];
            let known = errors
                .into_iter()
                .filter_map(|(what, error)| Some((what, error.as_ref()?)));
            found.extend(known.map(|(what, error)| format!("{what} not known: {error}")));
        }
        let entries = self
            .nodes
            .iter()
            .flat_map(|node| node.entries.iter().map(move |entry| (node, entry)));
        let mut due = entries.filter(|(_, entry)| entry.pending || entry.waiting);
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
        found.leader.as_mut().unwrap().alive = false;
        assert_eq!(found.unsettled(false), ["no leader is alive"]);
        found.nodes = (0..9).flat_map(|_| report().nodes).collect();
        assert_eq!(found.unsettled(false).last().unwrap(), "4 more entries are pending");
    }
}
