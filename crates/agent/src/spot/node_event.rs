//! The leader's side of an eviction notice: the edit of a Node for a notice in its events, and for the end of one. Pure.
//!
//! Taint and record are those of the node's own path (docs/dev/decisions.md 13), so whichever of the two acts first, the other finds the
//! notice recorded. A taint of headgate's is removed when the machine has booted again, or when a condition that reports evictions has
//! become `False` since the taint was added.

use headgate_core::node::AzureNotice;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::node_edit::{TaintChange, edit_node};
use super::notice::{Notice, NoticeTracker, TrackedNotice, confirmation_deadline};
use super::preempt_message::PreemptMessage;
use super::taint_action::NoticeRecord;

/// The conditions by which node-problem-detector reports evictions.
const PREEMPT_CONDITIONS: [&str; 2] = ["VMEventScheduled", "PreemptionScheduled"];

/// Edits this version of the Node, with the latest message of its events that still counts; `None` if nothing is due.
pub fn edit_for_event(node: &mut Node, message: Option<&PreemptMessage>, now: Timestamp) -> Option<TaintChange> {
    let annotations = node.metadata.annotations.as_ref();
    let record = annotations.and_then(NoticeRecord::from_annotations);
    let notice = message.and_then(|message| notice_of(message, record.as_ref(), now));
    let is_announced = matches!(
        message,
        Some(PreemptMessage::Notice(_) | PreemptMessage::Started { .. })
    );
    let tainted_at = record.as_ref().and_then(|record| record.tainted_at);
    let tracker = NoticeTracker {
        is_clear: !is_announced && tainted_at.is_some_and(|tainted_at| has_ended(node, tainted_at)),
        notice: notice.map(|notice| TrackedNotice {
            first: notice.clone(),
            latest: notice,
            since: now,
            is_listed: true,
        }),
        ..NoticeTracker::default()
    };
    edit_node(&tracker, node, now)
}

/// The notice that a message announces. A start without an id belongs to the recorded notice, if that has no time, or Azure may still
/// evict for it.
fn notice_of(message: &PreemptMessage, record: Option<&NoticeRecord>, now: Timestamp) -> Option<Notice> {
    let may_be_of = |record: &NoticeRecord| record.not_before.is_none_or(|at| now < confirmation_deadline(at));
    match message {
        PreemptMessage::Notice(notice) => Some(notice.clone()),
        PreemptMessage::Started { event_id } if !event_id.is_empty() || !record.is_some_and(may_be_of) => {
            Some(Notice {
                event_type: AzureNotice::Preempt,
                event_id: event_id.clone(),
                not_before: None,
            })
        }
        PreemptMessage::Started { .. }
        | PreemptMessage::QueryFailed
        | PreemptMessage::Advisory
        | PreemptMessage::Unknown => None,
    }
}

/// Whether a condition of a Node announces the eviction of its VM. The same condition is `True` for a freeze, and for advice to move away.
pub(super) fn announces_preempt(kind: &str, status: &str, message: &str) -> bool {
    let is_announced = || {
        matches!(
            PreemptMessage::parse(message),
            PreemptMessage::Notice(_) | PreemptMessage::Started { .. }
        )
    };
    PREEMPT_CONDITIONS.contains(&kind) && status == "True" && is_announced()
}

/// Whether a condition that reports evictions has become `False` after this time, and none announces an eviction.
pub fn has_ended(node: &Node, after: Timestamp) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut has_ended = false;
    for condition in conditions {
        let message = condition.message.as_deref().unwrap_or_default();
        if announces_preempt(&condition.type_, &condition.status, message) {
            return false;
        }
        if PREEMPT_CONDITIONS.contains(&condition.type_.as_str()) && condition.status == "False" {
            let since = condition.last_transition_time.as_ref();
            has_ended |= since.is_some_and(|since| since.0 > after);
        }
    }
    has_ended
}

#[cfg(test)]
mod tests {
    use headgate_core::node::{DRAINING_TAINT, SPOT_NOTICE_ANNOTATION};
    use serde_json::{Value, json};

    use super::super::fixtures::{BOOT, at, notice, record};
    use super::*;

    fn node(boot_id: &str, record: Option<&NoticeRecord>, conditions: &Value) -> Node {
        let tainted_at = record.and_then(|record| record.tainted_at);
        let taint = |since: Timestamp| json!([{"key": DRAINING_TAINT, "value": "spot-eviction", "effect": "NoSchedule", "timeAdded": since}]);
        let mut node = json!({"metadata": {"name": "n", "resourceVersion": "7"},
            "spec": {"taints": tainted_at.map_or_else(|| json!([]), taint)},
            "status": {"nodeInfo": {"bootID": boot_id}, "conditions": conditions}});
        if let Some(record) = record {
            node["metadata"]["annotations"] = json!({SPOT_NOTICE_ANNOTATION: json!(record).to_string()});
        }
        serde_json::from_value(node).unwrap()
    }

    fn change(node: &Node, message: Option<&PreemptMessage>) -> Option<TaintChange> {
        edit_for_event(&mut node.clone(), message, at(60))
    }

    #[test]
    fn first_genuine_notice_taints_once() {
        let scheduled = |id: &str, second| PreemptMessage::Notice(notice(id, Some(second)));
        let started = |id: &str| PreemptMessage::Started {
            event_id: id.to_owned(),
        };
        let done = record("a", Some(100), Some(50));
        // The taint was removed by hand.
        let cleared = record("a", Some(100), None);
        let (ended, ending) = (record("a", Some(60 - 900), None), record("a", Some(61 - 900), None));
        let unnamed = record("", Some(100), Some(50));
        let (bare, bare_cleared) = (record("", None, Some(50)), record("", None, None));
        let tainted = Some(TaintChange::Tainted);
        let (done, cleared) = (Some(&done), Some(&cleared));
        let recorded = Some(TaintChange::Recorded);
        for (case, record, message, want) in [
            ("a notice", None, scheduled("a", 100), tainted),
            ("without an id", None, scheduled("", 100), tainted),
            ("started", None, started("a"), tainted),
            ("started, without an id", None, started(""), tainted),
            ("repeated every 2 s", done, scheduled("a", 100), None),
            ("repeated, the taint gone", cleared, scheduled("a", 100), None),
            ("repeated without the id", done, scheduled("", 100), None),
            ("now with an id", Some(&unnamed), scheduled("a", 100), None),
            ("another time, no ids", Some(&unnamed), scheduled("", 900), recorded),
            ("recorded, now started", done, started("A"), None),
            ("now started without an id", cleared, started(""), None),
            ("started without an id, again", Some(&bare), started(""), None),
            ("the same, the taint gone", Some(&bare_cleared), started(""), None),
            (
                "started without an id, 15 min later",
                Some(&ended),
                started(""),
                tainted,
            ),
            ("started without an id, just before", Some(&ending), started(""), None),
            ("a new notice", cleared, scheduled("b", 900), tainted),
            ("the query failed", None, PreemptMessage::QueryFailed, None),
            ("an advisory", None, PreemptMessage::Advisory, None),
            ("an unknown text", None, PreemptMessage::Unknown, None),
        ] {
            assert_eq!(change(&node(BOOT, record, &json!([])), Some(&message)), want, "{case}");
        }
    }

    #[test]
    fn taint_is_removed_after_a_reboot_or_when_the_condition_went_false() {
        let done = record("a", Some(100), Some(50));
        let cleared = record("a", Some(100), None);
        let condition = |kind: &str, status: &str, since: i64, message: &str| json!({"type": kind, "status": status, "lastTransitionTime": at(since), "message": message});
        let scheduled = |status: &str, since: i64| condition("VMEventScheduled", status, since, "");
        let preemption = |message: &str| condition("PreemptionScheduled", "True", 45, message);
        let preempt = preemption("Preempt Scheduled: Wed, 26 Feb 2025 10:13:13 GMT.");
        let advisory = preemption("SpotRebalanceRecommendation Advisory");
        let went_false = scheduled("False", 55);
        let removed = Some(TaintChange::Untainted);
        for (case, boot_id, record, conditions, want) in [
            ("nothing", BOOT, &done, json!([]), None),
            ("a reboot", "boot-2", &done, json!([]), removed),
            ("a reboot, no taint of headgate", "boot-2", &cleared, json!([]), None),
            ("an unknown boot", "", &done, json!([]), None),
            ("went False", BOOT, &done, json!([went_false]), removed),
            ("False before", BOOT, &done, json!([scheduled("False", 49)]), None),
            ("Unknown", BOOT, &done, json!([scheduled("Unknown", 55)]), None),
            (
                "another",
                BOOT,
                &done,
                json!([condition("Other", "False", 55, "")]),
                None,
            ),
            ("no taint of headgate", BOOT, &cleared, json!([went_false]), None),
            ("another announces it", BOOT, &done, json!([went_false, preempt]), None),
            ("an advisory", BOOT, &done, json!([went_false, advisory]), removed),
        ] {
            assert_eq!(change(&node(boot_id, Some(record), &conditions), None), want, "{case}");
        }
        // While the event is still repeated, only a reboot ends it.
        let message = PreemptMessage::Notice(notice("a", Some(100)));
        let went_false = json!([went_false]);
        assert_eq!(change(&node(BOOT, Some(&done), &went_false), Some(&message)), None);
        assert_eq!(
            change(&node("boot-2", Some(&done), &json!([])), Some(&message)),
            removed
        );
    }
}
