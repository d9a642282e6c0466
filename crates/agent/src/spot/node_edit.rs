//! The edit that brings a Node to the target state: taint and recorded notice. Pure.
//!
//! Taint and annotation change together. Other taints stay. A taint is headgate's only while its `timeAdded` is the one in the record: a
//! taint that another writer set, or set again, stays.

use headgate_core::clock::whole_seconds;
use headgate_core::node::{DRAINING_TAINT, SPOT_NOTICE_ANNOTATION};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::notice::NoticeTracker;
use super::taint_action::{NoticeRecord, TaintAction, next_taint_action};

/// Keeps new Pods away; Pods that run on the node stay.
const TAINT_EFFECT: &str = "NoSchedule";

/// What an edit changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintChange {
    /// The taint is added and the notice recorded.
    Tainted,
    /// The notice is recorded without a change of the taint.
    Recorded,
    /// The taint is removed.
    Untainted,
}

/// Edits this version of the Node; `None` if it is in the target state.
pub(super) fn edit_node(tracker: &NoticeTracker, node: &mut Node, now: Timestamp) -> Option<TaintChange> {
    let annotations = node.metadata.annotations.as_ref();
    let record = annotations.and_then(NoticeRecord::from_annotations);
    let boot_id = boot_id(node).to_owned();
    let action = next_taint_action(tracker, record.as_ref(), &boot_id, now)?;
    let tainted_at = record.as_ref().and_then(|record| record.tainted_at);
    let taints = node.spec.get_or_insert_default().taints.get_or_insert_default();
    let is_ours = |taint: &Taint| record.as_ref().is_some_and(|record| record.has_added(taint));
    let has_ours = taints.iter().any(is_ours);
    let (record, change) = match action {
        TaintAction::Add(notice) => {
            let is_tainted = taints.iter().any(|taint| taint.key == DRAINING_TAINT);
            let tainted_at = if is_tainted {
                tainted_at.filter(|_| has_ours)
            } else {
                Some(whole_seconds(now))
            };
            if !is_tainted {
                taints.push(Taint {
                    key: DRAINING_TAINT.to_owned(),
                    value: Some(notice.event_type.taint_value().to_owned()),
                    effect: TAINT_EFFECT.to_owned(),
                    time_added: tainted_at.map(Time),
                });
            }
            for taint in taints.iter_mut().filter(|taint| is_ours(taint)) {
                taint.value = Some(notice.event_type.taint_value().to_owned());
            }
            let record = NoticeRecord {
                event_type: notice.event_type,
                event_id: notice.event_id,
                not_before: notice.not_before,
                boot_id,
                tainted_at,
            };
            let change = if is_tainted {
                TaintChange::Recorded
            } else {
                TaintChange::Tainted
            };
            (record, change)
        }
        TaintAction::Remove => {
            taints.retain(|taint| !is_ours(taint));
            // The notice stays recorded, so that it does not taint the Node again.
            let record = NoticeRecord {
                tainted_at: None,
                ..record?
            };
            let change = if has_ours {
                TaintChange::Untainted
            } else {
                TaintChange::Recorded
            };
            (record, change)
        }
    };
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(SPOT_NOTICE_ANNOTATION.to_owned(), json!(record).to_string());
    Some(change)
}

/// The machine's present boot; empty if it is not known.
fn boot_id(node: &Node) -> &str {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    info.map_or("", |info| &info.boot_id)
}

#[cfg(test)]
mod tests {
    use headgate_core::node::{AzureNotice, EVICTION_TAINT_VALUE};
    use serde_json::Value;

    use super::super::fixtures::{BOOT, at, clear, notice, record, tracking};
    use super::super::notice::Notice;
    use super::TaintChange::{Recorded, Tainted, Untainted};
    use super::*;

    fn node(taints: &Value, annotations: Option<&NoticeRecord>) -> Node {
        let mut node = json!({"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"taints": taints},
            "status": {"nodeInfo": {"bootID": BOOT}}});
        if let Some(record) = annotations {
            node["metadata"]["annotations"] = json!({"other": "1", SPOT_NOTICE_ANNOTATION: json!(record).to_string()});
        }
        serde_json::from_value(node).unwrap()
    }

    fn ours(second: i64) -> Value {
        json!({"key": DRAINING_TAINT, "value": EVICTION_TAINT_VALUE, "effect": TAINT_EFFECT, "timeAdded": at(second)})
    }

    fn theirs() -> Value {
        json!({"key": DRAINING_TAINT, "value": EVICTION_TAINT_VALUE, "effect": TAINT_EFFECT})
    }

    /// What an edit changed, the taints after it, and the record that it wrote.
    fn edited(tracker: &NoticeTracker, mut node: Node, now: Timestamp) -> (TaintChange, Value, NoticeRecord) {
        let before = node.clone();
        let change = edit_node(tracker, &mut node, now).unwrap();
        let annotations = node.metadata.annotations.clone().unwrap();
        let others = before.metadata.annotations.unwrap_or_default();
        let mut others = others.iter().filter(|(key, _)| *key != SPOT_NOTICE_ANNOTATION);
        assert!(others.all(|(key, value)| annotations.get(key) == Some(value)));
        let record = NoticeRecord::from_annotations(&annotations).unwrap();
        (change, json!(node.spec.unwrap().taints.unwrap()), record)
    }

    #[test]
    fn notice_is_written_beside_other_taints() {
        let tracker = tracking(notice("a", Some(100)), true);
        let now = "1970-01-01T00:01:00.9Z".parse().unwrap();
        let other = json!({"key": "other", "effect": "NoExecute"});
        let tainted = record("a", Some(100), Some(60));
        let beside = (json!([other]), json!([other, ours(60)]));
        for (before, after) in [(Value::Null, json!([ours(60)])), beside] {
            let edited = edited(&tracker, node(&before, None), now);
            assert_eq!(edited, (Tainted, after, tainted.clone()));
        }
        // The taint of another writer does not become headgate's.
        let already = edited(&tracker, node(&json!([theirs()]), None), now);
        let recorded = record("a", Some(100), None);
        assert_eq!(already, (Recorded, json!([theirs()]), recorded));
    }

    #[test]
    fn second_notice_keeps_the_taint_of_the_first() {
        let tracker = tracking(notice("b", Some(200)), true);
        let first = record("a", Some(100), Some(50));
        let of_b = |tainted_at| record("b", Some(200), tainted_at);
        for (what, before, change, after, tainted_at) in [
            ("kept", json!([ours(50)]), Recorded, json!([ours(50)]), Some(50)),
            ("removed meanwhile", json!([]), Tainted, json!([ours(60)]), Some(60)),
            // It is not headgate's.
            (
                "set again by another",
                json!([theirs()]),
                Recorded,
                json!([theirs()]),
                None,
            ),
        ] {
            let found = edited(&tracker, node(&before, Some(&first)), at(60));
            assert_eq!(found, (change, after, of_b(tainted_at)), "{what}");
        }
    }

    #[test]
    fn the_own_taint_says_what_is_announced() {
        let announced = |event_type, id: &str| {
            let notice = Notice {
                event_type,
                ..notice(id, Some(100))
            };
            tracking(notice, true)
        };
        let of = |event_type, id: &str, tainted_at| NoticeRecord {
            event_type,
            ..record(id, Some(100), tainted_at)
        };
        let valued = |value: &str, second: i64| {
            let mut taint = ours(second);
            taint["value"] = json!(value);
            taint
        };
        let announcements = ["spot-eviction", "terminate", "redeploy", "reboot"];
        for (notice, value) in AzureNotice::ALL.into_iter().zip(announcements) {
            let tracker = announced(notice, "a");
            let expected = (Tainted, json!([valued(value, 60)]), of(notice, "a", Some(60)));
            assert_eq!(edited(&tracker, node(&json!([]), None), at(60)), expected);
        }
        // A graver notice changes the taint of the one before, and no other writer's.
        let (terminate, reboot) = (AzureNotice::Terminate, of(AzureNotice::Reboot, "a", Some(50)));
        for (before, after, tainted_at) in [
            (valued("reboot", 50), valued("terminate", 50), Some(50)),
            (theirs(), theirs(), None),
        ] {
            let node = node(&json!([before]), Some(&reboot));
            let expected = (Recorded, json!([after]), of(terminate, "b", tainted_at));
            assert_eq!(edited(&announced(terminate, "b"), node, at(60)), expected);
        }
    }

    #[test]
    fn only_the_own_taint_is_removed() {
        let known = record("a", Some(100), Some(50));
        let gone = record("a", Some(100), None);
        let other = json!({"key": "other", "effect": "NoSchedule"});
        let removed = edited(&clear(), node(&json!([other, ours(50), other]), Some(&known)), at(110));
        assert_eq!(removed, (Untainted, json!([other, other]), gone.clone()));
        for left in [json!([theirs()]), json!([ours(51)]), json!([other]), json!([])] {
            let kept = edited(&clear(), node(&left, Some(&known)), at(110));
            assert_eq!(kept, (Recorded, left, gone.clone()));
        }
    }

    #[test]
    fn node_in_the_target_state_is_not_edited() {
        let tracker = tracking(notice("a", Some(100)), true);
        let done = node(&json!([ours(50)]), Some(&record("a", Some(100), Some(50))));
        let mut after = done.clone();
        assert_eq!(edit_node(&tracker, &mut after, at(60)), None);
        assert_eq!(after, done);
    }
}
