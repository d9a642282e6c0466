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
            let is_out = self.entries.iter().all(|entry| entry.admin_state == Some("Down"));
            let may_have_more = self.unidentified || !report.unattributed.is_empty();
            parts.push(if report.azure_error.is_some() {
                "not known".to_owned()
            } else if is_out && may_have_more {
                "not known: it may have more pool entries".to_owned()
            } else if self.entries.is_empty() {
                "nothing: it is in no pool".to_owned()
            } else {
                self.why_no_change_is_due(report)
            });
        }
        parts.truncate(MAX_PARTS);
        parts.join("; ")
    }

    /// Why no change of a signalled node's entries is due, where the guard holds none of them back.
    fn why_no_change_is_due(&self, report: &StatusReport) -> String {
        let in_state = |state| {
            self.entries
                .iter()
                .filter(move |entry| entry.admin_state == Some(state))
                .count()
        };
        let (total, up) = (self.entries.len(), in_state("Up"));
        let in_service = total - in_state("Down");
        let is_stale = report
            .leader_work
            .as_ref()
            .is_some_and(|work| work.nodes_stale_since.is_some());
        if in_service == 0 {
            "nothing: Down in every pool".to_owned()
        } else if report.mode != "Enforce" {
            format!("nothing: adminState.mode is {}", report.mode)
        } else if is_stale {
            "a list of Nodes: they are not confirmed".to_owned()
        } else if !self.signals.iter().any(|signal| signal.admin_state) {
            format!("nothing: no signal counts for admin states, in service in {in_service} of {total} pools")
        } else if up > 0 {
            format!("nothing: Up by another writer in {up} of {total} pools")
        } else if self.excluded.is_some() {
            format!("nothing: its label excludes it, in service in {in_service} of {total} pools")
        } else {
            format!("nothing yet: in service in {in_service} of {total} pools")
        }
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
    use super::super::report::{LeaderWork, MarkerRow};
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

    type Edit = fn(&mut StatusReport);

    #[test]
    fn a_node_waits_for_nothing_only_if_all_its_entries_are_down() {
        let with = |edit: Edit| {
            let mut found = report();
            let entry = &mut found.nodes[0].entries[1];
            (entry.pending, entry.becomes) = (false, None);
            edit(&mut found);
            found.nodes[0].waits_for(&found)
        };
        let down = |found: &mut StatusReport| found.nodes[0].entries[1].admin_state = Some("Down");
        let stale = |found: &mut StatusReport| {
            found.leader_work = Some(LeaderWork {
                nodes_stale_since: Some(jiff::Timestamp::UNIX_EPOCH),
                ..LeaderWork::default()
            });
        };
        let cases: [(Edit, &str); 10] = [
            (down, "nothing: Down in every pool"),
            (
                |found| {
                    found.nodes[0].entries.clear();
                    found.unattributed.push("a".to_owned());
                },
                "not known: it may have more pool entries",
            ),
            (
                |found| {
                    found.nodes[0].entries[1].admin_state = Some("Down");
                    found.nodes[0].unidentified = true;
                },
                "not known: it may have more pool entries",
            ),
            // That it is in service is known all the same.
            (
                |found| found.unattributed.push("a".to_owned()),
                "nothing yet: in service in 1 of 2 pools",
            ),
            (|found| found.mode = "Disabled", "nothing: adminState.mode is Disabled"),
            (stale, "a list of Nodes: they are not confirmed"),
            (
                |found| found.nodes[0].excluded = Some("l".to_owned()),
                "nothing: its label excludes it, in service in 1 of 2 pools",
            ),
            (
                |found| {
                    for signal in &mut found.nodes[0].signals {
                        signal.admin_state = false;
                    }
                },
                "nothing: no signal counts for admin states, in service in 1 of 2 pools",
            ),
            (
                |found| found.nodes[0].entries[1].admin_state = Some("Up"),
                "nothing: Up by another writer in 1 of 2 pools",
            ),
            // Its signal does not count yet.
            (|_| (), "nothing yet: in service in 1 of 2 pools"),
        ];
        for (edit, expected) in cases {
            assert_eq!(with(edit), expected);
        }
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
