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

    /// Whether it is unschedulable, whether it was before, and its taint.
    type State<'a> = (bool, Option<bool>, Option<&'a str>);

    fn node((unschedulable, before, taint): State<'_>) -> Node {
        Node {
            unschedulable,
            was_unschedulable: before,
            is_kept_from_scale_down: before.is_some(),
            maintenance_taint: taint.map(ToOwned::to_owned),
            ..Node::default()
        }
    }

    fn described(change: &NodeChange) -> String {
        let cordon = change.unschedulable.map(|to| if to { "cordon" } else { "uncordon" });
        let remembered = change.remembered.as_ref().map(|change| match change {
            Change::Set(true) => "was cordoned",
            Change::Set(false) => "was open",
            Change::Remove => "forget",
        });
        let kept = change.keep_from_scale_down.map(|to| if to { "keep" } else { "let go" });
        let taint = change.taint.as_ref().map(|change| match change {
            Change::Set(value) => format!("taint {value}"),
            Change::Remove => "untaint".to_owned(),
        });
        let words = [cordon, remembered, kept, taint.as_deref()];
        words.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn what_changes_on_a_node() {
        const NO: Option<bool> = None;
        const WAS_OPEN: Option<bool> = Some(false);
        const WAS_CORDONED: Option<bool> = Some(true);
        let uids = BTreeSet::from(["a", "b", "done"]);
        let gone = Some("0b6e1f52-4c1d-4d53-9d0a-7a3c5f3f9a11");
        let like_a_uid = Some("reserved-till-next-week-afterupgrade");
        let none = Isolation::default();
        let cordon = Isolation {
            is_cordoned: true,
            is_kept_from_scale_down: true,
            ..Isolation::default()
        };
        let drain = Isolation {
            drained_by: vec!["a", "b"],
            ..cordon.clone()
        };
        let uncordon = Isolation {
            is_uncordoned: true,
            ..Isolation::default()
        };
        let of_none = [
            ("nothing of ours", (false, NO, None), ""),
            ("a cordon of another writer", (true, NO, None), ""),
            (
                "the end",
                (true, WAS_OPEN, Some("a")),
                "uncordon, forget, let go, untaint",
            ),
            (
                "over another cordon",
                (true, WAS_CORDONED, Some("a")),
                "forget, let go, untaint",
            ),
            ("uncordoned meanwhile", (false, WAS_CORDONED, None), "forget, let go"),
            (
                "beside a taint by hand",
                (true, WAS_OPEN, Some("")),
                "uncordon, forget, let go",
            ),
            (
                "left by one that is gone",
                (true, WAS_OPEN, gone),
                "uncordon, forget, let go, untaint",
            ),
            (
                "another's text like a UUID",
                (true, WAS_OPEN, like_a_uid),
                "uncordon, forget, let go",
            ),
            ("another's UUID without the annotation", (true, NO, gone), ""),
        ];
        let of_cordon = [
            ("a new cordon", (false, NO, None), "cordon, was open, keep"),
            ("over another one", (true, NO, None), "was cordoned, keep"),
            ("cordoned already", (true, WAS_OPEN, None), ""),
            ("reverted by another writer", (false, WAS_OPEN, None), "cordon"),
            (
                "taken back by its owner",
                (false, WAS_CORDONED, None),
                "cordon, was open",
            ),
            ("after one that is gone", (true, WAS_OPEN, gone), "untaint"),
        ];
        let of_drain = [
            ("a new drain", (false, NO, None), "cordon, was open, keep, taint a"),
            ("the taint of either stays", (true, WAS_OPEN, Some("b")), ""),
            ("of one that ended", (true, WAS_OPEN, Some("done")), "taint a"),
            ("a taint by hand stays", (true, WAS_OPEN, Some("kernel")), ""),
            ("after one that is gone", (true, WAS_OPEN, gone), "taint a"),
        ];
        let from_idle_to_complete = [
            ("cordoned", (true, NO, None), "uncordon"),
            ("schedulable", (false, NO, None), ""),
        ];
        for (wanted, wants, rows) in [
            ("none", &none, of_none.as_slice()),
            ("cordon", &cordon, &of_cordon),
            ("drain", &drain, &of_drain),
            ("from Idle to Complete", &uncordon, &from_idle_to_complete),
        ] {
            for (what, state, expected) in rows {
                let change = wants.change(&node(*state), &uids);
                assert_eq!(described(&change), *expected, "{wanted}: {what}");
            }
        }
    }

    #[test]
    fn a_node_that_is_gone_soon_is_not_kept_from_autoscalers() {
        let taken = Isolation {
            is_cordoned: true,
            ..Isolation::default()
        };
        // The latter after a maintenance without a deadline.
        for (state, expected) in [
            ((false, None, None), "cordon, was open"),
            ((true, Some(false), None), "let go"),
        ] {
            let change = taken.change(&node(state), &BTreeSet::new());
            assert_eq!(described(&change), expected, "{state:?}");
        }
    }
}
