//! What a node with a signal waits for, in a few words, and the connections that it still has. Pure.

use super::report::{EntryRow, NodeRow, StatusReport};
use crate::why::MaintainedNodeRow;

/// Parts of one text.
const MAX_PARTS: usize = 3;

impl NodeRow {
    /// What the node waits for; empty if it has no signal and nothing is to be restored.
    pub(crate) fn waits_for(&self, report: &StatusReport) -> String {
        let count = |is: fn(&EntryRow) -> bool| self.entries.iter().filter(|entry| is(entry)).count();
        let total = self.entries.len();
        let mut parts = Vec::new();
        let (brake, held) = (
            count(|entry| entry.waiting),
            count(|entry| entry.held_back && !entry.waiting),
        );
        if brake > 0 {
            parts.push(format!("its turn in {brake} of {total} pools (adminState.maxNewDown)"));
        }
        if held > 0 {
            parts.push(format!("others that can serve: held back in {held} of {total} pools"));
        }
        let is_due =
            |becomes| move |entry: &&EntryRow| entry.pending && !entry.waiting && entry.becomes == Some(becomes);
        let to_down = self.entries.iter().filter(is_due("Down")).count();
        if to_down > 0 && report.mode == "Enforce" {
            parts.push(format!("a write of Down in {to_down} of {total} pools"));
        } else if to_down > 0 {
            parts.push(format!("nothing: adminState.mode is {}", report.mode));
        }
        if self.entries.iter().any(|entry| is_due("None")(&entry)) {
            parts.push("a write that gives it back".to_owned());
        }
        let drained = self.connections_drained.as_ref();
        if drained.is_some_and(|condition| condition.status == "False" && !self.signals.is_empty()) {
            parts.push("the end of its connections".to_owned());
        }
        let maintained = report.maintenances.iter().flat_map(|row| &row.nodes);
        parts.extend(maintained.filter(|row| row.node == self.name).filter_map(pods));
        if parts.is_empty() && !self.signals.is_empty() {
            parts.push(match (report.azure_error.is_some(), self.entries.is_empty()) {
                (true, _) => "not known".to_owned(),
                (false, true) => "nothing: it is in no pool".to_owned(),
                (false, false) => "nothing: out".to_owned(),
            });
        }
        parts.truncate(MAX_PARTS);
        parts.join("; ")
    }

    /// The number of connections by the Node's condition; `None` if they are not counted.
    pub(crate) fn open_connections(&self) -> Option<u64> {
        let condition = self.connections_drained.as_ref()?;
        match &*condition.reason {
            "ConnectionsOpen" => condition.message.split(' ').next()?.parse().ok(),
            "NoConnections" | "Confirming" | "NotOutOfLoadBalancers" => Some(0),
            _ => None,
        }
    }
}

/// What keeps the pods of a node that is drained.
fn pods(row: &MaintainedNodeRow) -> Option<String> {
    let left = row.pods_left();
    let blocked = row.blockers_total;
    match (left, blocked) {
        (0, 0) => None,
        (left, 0) => Some(format!("{left} pods to leave")),
        (left, blocked) => Some(format!("{left} pods to leave, {blocked} of them blocked")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::MarkerRow;
    use super::super::text::tests::report;
    use super::*;

    fn condition(status: &str, reason: &str, message: &str) -> MarkerRow {
        MarkerRow {
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn a_node_waits_for_writes_the_guard_and_connections() {
        let mut found = report();
        let mut node = found.nodes[0].clone();
        assert_eq!(node.waits_for(&found), "a write of Down in 1 of 2 pools");
        found.mode = "Observe";
        assert_eq!(node.waits_for(&found), "nothing: adminState.mode is Observe");
        found.mode = "Enforce";
        (node.entries[0].held_back, node.entries[1].waiting) = (true, true);
        assert_eq!(
            node.waits_for(&found),
            "its turn in 1 of 2 pools (adminState.maxNewDown); others that can serve: held back in 1 of 2 pools"
        );
        node.entries = vec![EntryRow {
            becomes: Some("None"),
            ..node.entries[1].clone()
        }];
        node.entries[0].waiting = false;
        assert_eq!(node.waits_for(&found), "a write that gives it back");
        node.entries.clear();
        assert_eq!(node.waits_for(&found), "nothing: it is in no pool");
        node.connections_drained = Some(condition(
            "False",
            "ConnectionsOpen",
            "12 connections pass through this node: 12 a/b.",
        ));
        assert_eq!(node.waits_for(&found), "the end of its connections");
        node.signals.clear();
        assert_eq!(node.waits_for(&found), "");
    }

    #[test]
    fn connections_are_those_of_the_condition() {
        let mut node = report().nodes[0].clone();
        for (reason, message, expected) in [
            (
                "ConnectionsOpen",
                "12 connections pass through this node: 12 a/b.",
                Some(12),
            ),
            (
                "ConnectionsOpen",
                "1 connection passes through this node: 1 a/b.",
                Some(1),
            ),
            ("NoConnections", "No connection passes through this node.", Some(0)),
            ("NotCounted", "Connections are not counted: refused.", None),
            ("ConnectionsOpen", "many", None),
        ] {
            node.connections_drained = Some(condition("False", reason, message));
            assert_eq!(node.open_connections(), expected, "{reason} {message}");
        }
        node.connections_drained = None;
        assert_eq!(node.open_connections(), None);
    }
}
