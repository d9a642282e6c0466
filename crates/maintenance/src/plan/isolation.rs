//! Cordon, taint and autoscalers' annotations of a Node: wanted while a maintenance is in progress on it, undone after the last one (NM-10,
//! NM-11).
//!
//! The value of `spec.unschedulable` before the first maintenance is kept in an annotation, in the same request that changes
//! it, so a cordon from before survives, unless its owner takes it back meanwhile. A taint whose value is not the UID of a
//! maintenance belongs to another writer and stays, unless a maintenance that no longer exists left it: [`orphaned_taint`].

use std::collections::BTreeSet;

use headgate_core::node::Node;

use super::action::{Change, NodeChange};

/// What the maintenances want of a Node.
#[derive(Clone, Debug, Default)]
pub struct Isolation<'a> {
    /// A maintenance is in progress on it.
    pub is_cordoned: bool,
    /// One of them has no deadline, so the node is there again after it, and none that drains it has one.
    pub is_kept_from_scale_down: bool,
    /// The UIDs of the maintenances that drain it, the oldest first.
    pub drained_by: Vec<&'a str>,
    /// A maintenance that went from `Idle` to `Complete` wants it schedulable, whatever made it unschedulable.
    pub is_uncordoned: bool,
}

impl Isolation<'_> {
    /// What has to change on the Node. `uids` are those of every maintenance that exists.
    pub fn change(&self, node: &Node, uids: &BTreeSet<&str>) -> NodeChange {
        let mut change = NodeChange {
            taint: self.taint(node, uids),
            ..NodeChange::default()
        };
        let wanted = if self.is_cordoned {
            // Who makes the node schedulable meanwhile takes a cordon from before back.
            if node
                .was_unschedulable
                .is_none_or(|before| before && !node.unschedulable)
            {
                change.remembered = Some(Change::Set(node.unschedulable));
            }
            true
        } else if let Some(before) = node.was_unschedulable {
            change.remembered = Some(Change::Remove);
            before && node.unschedulable
        } else {
            node.unschedulable && !self.is_uncordoned
        };
        change.unschedulable = (wanted != node.unschedulable).then_some(wanted);
        // An autoscaler takes a node without pods for one that nobody needs.
        let is_kept = self.is_kept_from_scale_down;
        change.keep_from_scale_down = (is_kept != node.is_kept_from_scale_down).then_some(is_kept);
        change
    }

    fn taint(&self, node: &Node, uids: &BTreeSet<&str>) -> Option<Change<String>> {
        let value = node.maintenance_taint.as_deref();
        match (value, self.drained_by.first()) {
            (Some(value), _) if !uids.contains(value) && orphaned_taint(node, uids).is_none() => None,
            (Some(value), Some(_)) if self.drained_by.contains(&value) => None,
            (_, Some(oldest)) => Some(Change::Set((*oldest).to_owned())),
            (Some(_), None) => Some(Change::Remove),
            (None, None) => None,
        }
    }
}

/// The value of a taint that a maintenance left which no longer exists. `uids` are those of every maintenance that exists.
///
/// The value alone does not prove it: the annotation that headgate writes together with the cordon has to be there as well.
pub(crate) fn orphaned_taint<'a>(node: &'a Node, uids: &BTreeSet<&str>) -> Option<&'a str> {
    node.was_unschedulable?;
    let value = node.maintenance_taint.as_deref()?;
    (is_uuid(value) && !uids.contains(value)).then_some(value)
}

/// Whether a text has the form that the API server gives UIDs (RFC 4122).
fn is_uuid(text: &str) -> bool {
    let mut groups = text.split('-');
    let is_group = |group: &str, length| group.len() == length && group.bytes().all(|byte| byte.is_ascii_hexdigit());
    [8, 4, 4, 4, 12]
        .into_iter()
        .all(|length| groups.next().is_some_and(|group| is_group(group, length)))
        && groups.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(unschedulable: bool, before: Option<bool>, taint: Option<&str>) -> Node {
        Node {
            unschedulable,
            was_unschedulable: before,
            is_kept_from_scale_down: before.is_some(),
            maintenance_taint: taint.map(ToOwned::to_owned),
            ..Node::default()
        }
    }

    fn change(
        unschedulable: Option<bool>,
        remembered: Option<Change<bool>>,
        taint: Option<Change<&str>>,
    ) -> NodeChange {
        let taint = taint.map(|taint| match taint {
            Change::Set(value) => Change::Set(value.to_owned()),
            Change::Remove => Change::Remove,
        });
        NodeChange {
            unschedulable,
            keep_from_scale_down: remembered.as_ref().map(|change| *change != Change::Remove),
            remembered,
            taint,
        }
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "one table")]
    fn what_changes_on_a_node() {
        use Change::{Remove, Set};
        let uids = BTreeSet::from(["a", "b", "done"]);
        let gone = "0b6e1f52-4c1d-4d53-9d0a-7a3c5f3f9a11";
        let none = Isolation::default();
        let cordon = Isolation {
            is_cordoned: true,
            is_kept_from_scale_down: true,
            ..Isolation::default()
        };
        let drain = Isolation {
            is_cordoned: true,
            is_kept_from_scale_down: true,
            drained_by: vec!["a", "b"],
            ..Isolation::default()
        };
        let uncordon = Isolation {
            is_uncordoned: true,
            ..Isolation::default()
        };
        for (what, wants, node, expected) in vec![
            (
                "nothing of ours",
                &none,
                node(false, None, None),
                change(None, None, None),
            ),
            (
                "a cordon of another writer",
                &none,
                node(true, None, None),
                change(None, None, None),
            ),
            (
                "a new cordon",
                &cordon,
                node(false, None, None),
                change(Some(true), Some(Set(false)), None),
            ),
            (
                "a cordon over another one",
                &cordon,
                node(true, None, None),
                change(None, Some(Set(true)), None),
            ),
            (
                "cordoned already",
                &cordon,
                node(true, Some(false), None),
                change(None, None, None),
            ),
            (
                "reverted by another writer",
                &cordon,
                node(false, Some(false), None),
                change(Some(true), None, None),
            ),
            (
                "a cordon from before that its owner takes back",
                &cordon,
                node(false, Some(true), None),
                NodeChange {
                    keep_from_scale_down: None,
                    ..change(Some(true), Some(Set(false)), None)
                },
            ),
            (
                "a new drain",
                &drain,
                node(false, None, None),
                change(Some(true), Some(Set(false)), Some(Set("a"))),
            ),
            (
                "the taint of either stays",
                &drain,
                node(true, Some(false), Some("b")),
                change(None, None, None),
            ),
            (
                "the taint of one that ended",
                &drain,
                node(true, Some(false), Some("done")),
                change(None, None, Some(Set("a"))),
            ),
            (
                "a taint by hand stays",
                &drain,
                node(true, Some(false), Some("kernel")),
                change(None, None, None),
            ),
            (
                "the end",
                &none,
                node(true, Some(false), Some("a")),
                change(Some(false), Some(Remove), Some(Remove)),
            ),
            (
                "the end over another cordon",
                &none,
                node(true, Some(true), Some("a")),
                change(None, Some(Remove), Some(Remove)),
            ),
            (
                "the end, uncordoned meanwhile",
                &none,
                node(false, Some(true), None),
                change(None, Some(Remove), None),
            ),
            (
                "the end beside a taint by hand",
                &none,
                node(true, Some(false), Some("")),
                change(Some(false), Some(Remove), None),
            ),
            (
                "left by a maintenance that is gone",
                &none,
                node(true, Some(false), Some(gone)),
                change(Some(false), Some(Remove), Some(Remove)),
            ),
            (
                "left by one that is gone, a new drain",
                &drain,
                node(true, Some(false), Some(gone)),
                change(None, None, Some(Set("a"))),
            ),
            (
                "left by one that is gone, a new cordon",
                &cordon,
                node(true, Some(false), Some(gone)),
                change(None, None, Some(Remove)),
            ),
            (
                "another writer's text in the form of a UUID",
                &none,
                node(true, Some(false), Some("reserved-till-next-week-afterupgrade")),
                change(Some(false), Some(Remove), None),
            ),
            (
                "another writer's UUID without the annotation",
                &none,
                node(true, None, Some(gone)),
                change(None, None, None),
            ),
            (
                "from Idle to Complete",
                &uncordon,
                node(true, None, None),
                change(Some(false), None, None),
            ),
            (
                "from Idle to Complete, schedulable",
                &uncordon,
                node(false, None, None),
                change(None, None, None),
            ),
        ] {
            assert_eq!(wants.change(&node, &uids), expected, "{what}");
        }
    }

    #[test]
    fn a_node_that_is_gone_soon_is_not_kept_from_autoscalers() {
        let taken = Isolation {
            is_cordoned: true,
            ..Isolation::default()
        };
        for (node, expected) in [
            (
                node(false, None, None),
                NodeChange {
                    unschedulable: Some(true),
                    remembered: Some(Change::Set(false)),
                    ..NodeChange::default()
                },
            ),
            // After a maintenance without a deadline.
            (
                node(true, Some(false), None),
                NodeChange {
                    keep_from_scale_down: Some(false),
                    ..NodeChange::default()
                },
            ),
        ] {
            assert_eq!(taken.change(&node, &BTreeSet::new()), expected);
        }
    }
}
