//! The patch that brings the own Node to the target state: taint and recorded notice. Pure.
//!
//! One JSON patch changes the taint and the annotation together, with a test of the Node's `resourceVersion`. Other
//! taints are never rewritten; every other kind of patch would replace the whole list. A taint is headgate's only
//! while its `timeAdded` is the one in the record: a taint that another writer set, or set again, stays.

use headgate_clock::whole_seconds;
use headgate_node::{DRAINING_TAINT, EVICTION_TAINT_VALUE, SPOT_NOTICE_ANNOTATION};
use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::metrics::WriteOutcome;
use super::notice::NoticeTracker;
use super::taint_action::{NoticeRecord, TaintAction, next_taint_action};

/// Keeps new Pods away; Pods that run on the node stay.
const TAINT_EFFECT: &str = "NoSchedule";

/// A JSON patch of the Node, and its outcome in metrics and logs if it succeeds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodePatch {
    pub(super) outcome: WriteOutcome,
    pub(super) operations: Value,
}

/// The patch for this version of the Node; `None` if it is in the target state.
pub(super) fn plan_patch(tracker: &NoticeTracker, node: &DynamicObject, now: Timestamp) -> Option<NodePatch> {
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    let boot_id = node.data["status"]["nodeInfo"]["bootID"].as_str().unwrap_or_default();
    let record = NoticeRecord::from_annotations(&annotations);
    let action = next_taint_action(tracker, record.as_ref(), boot_id, now)?;
    let tainted_at = record.as_ref().and_then(|record| record.tainted_at);
    let taints = node.data["spec"]["taints"].as_array();
    let is_draining = |taint: &Value| taint["key"] == DRAINING_TAINT;
    let is_ours = |taint: &Value| {
        let added_at = taint["timeAdded"].as_str().and_then(|text| text.parse().ok());
        is_draining(taint) && added_at.is_some() && added_at == tainted_at
    };
    let our_index = taints.and_then(|taints| taints.iter().position(is_ours));

    let mut operations =
        vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version})];
    let (record, outcome) = match action {
        TaintAction::Add(notice) => {
            let is_tainted = taints.is_some_and(|taints| taints.iter().any(is_draining));
            let tainted_at = if is_tainted {
                tainted_at.filter(|_| our_index.is_some())
            } else {
                Some(whole_seconds(now))
            };
            if !is_tainted {
                let taint = json!({"key": DRAINING_TAINT, "value": EVICTION_TAINT_VALUE, "effect": TAINT_EFFECT, "timeAdded": tainted_at});
                operations.push(match taints {
                    Some(_) => json!({"op": "add", "path": "/spec/taints/-", "value": taint}),
                    None => json!({"op": "add", "path": "/spec/taints", "value": [taint]}),
                });
            }
            let record = NoticeRecord {
                event_id: notice.event_id,
                not_before: notice.not_before,
                boot_id: boot_id.to_owned(),
                tainted_at,
            };
            let outcome = if is_tainted {
                WriteOutcome::Recorded
            } else {
                WriteOutcome::Tainted
            };
            (record, outcome)
        }
        TaintAction::Remove => {
            operations.extend(our_index.map(|index| json!({"op": "remove", "path": format!("/spec/taints/{index}")})));
            // The notice stays recorded, so that it does not taint the Node again.
            let record = NoticeRecord {
                tainted_at: None,
                ..record?
            };
            let outcome = if our_index.is_some() {
                WriteOutcome::Untainted
            } else {
                WriteOutcome::Recorded
            };
            (record, outcome)
        }
    };
    let text = json!(record).to_string();
    operations.push(if annotations.is_empty() {
        json!({"op": "add", "path": "/metadata/annotations", "value": {SPOT_NOTICE_ANNOTATION: text}})
    } else {
        json!({"op": "add", "path": format!("/metadata/annotations/{}", SPOT_NOTICE_ANNOTATION.replace('/', "~1")), "value": text})
    });
    Some(NodePatch {
        outcome,
        operations: operations.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{BOOT, at, clear, notice, record, tracking};
    use super::*;

    fn node(taints: &Value, annotations: Option<&NoticeRecord>) -> DynamicObject {
        let mut node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"taints": taints}, "status": {"nodeInfo": {"bootID": BOOT}}});
        if taints.is_null() {
            node["spec"].as_object_mut().unwrap().remove("taints");
        }
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

    fn paths(patch: &NodePatch) -> Vec<String> {
        let operations = patch.operations.as_array().unwrap().iter();
        operations
            .map(|op| format!("{} {}", op["op"].as_str().unwrap(), op["path"].as_str().unwrap()))
            .collect()
    }

    /// The record that a patch writes.
    fn written(patch: &NodePatch) -> NoticeRecord {
        let value = &patch.operations.as_array().unwrap().last().unwrap()["value"];
        let text = value
            .as_str()
            .or_else(|| value[SPOT_NOTICE_ANNOTATION].as_str())
            .unwrap();
        serde_json::from_str(text).unwrap()
    }

    const TEST: &str = "test /metadata/resourceVersion";
    const ANNOTATE: &str = "add /metadata/annotations/headgate.dev~1spot-notice";
    const FIRST_ANNOTATE: &str = "add /metadata/annotations";

    #[test]
    fn notice_is_written_beside_other_taints() {
        let tracker = tracking(notice("a", Some(100)), true);
        let now = "1970-01-01T00:01:00.9Z".parse().unwrap();
        let patch = |taints| plan_patch(&tracker, &node(&taints, None), now).unwrap();
        let bare = patch(Value::Null);
        assert_eq!(paths(&bare), [TEST, "add /spec/taints", FIRST_ANNOTATE]);
        assert_eq!(bare.operations[0]["value"], "7");
        assert_eq!(bare.operations[1]["value"], json!([ours(60)]));
        assert_eq!(written(&bare), record("a", Some(100), Some(60)));
        let beside = patch(json!([{"key": "other", "effect": "NoExecute"}]));
        assert_eq!(paths(&beside), [TEST, "add /spec/taints/-", FIRST_ANNOTATE]);
        assert_eq!(
            (beside.outcome, &beside.operations[1]["value"]),
            (WriteOutcome::Tainted, &ours(60))
        );
        let already = patch(json!([theirs()]));
        assert_eq!(
            (already.outcome, paths(&already)),
            (WriteOutcome::Recorded, vec![TEST.to_owned(), FIRST_ANNOTATE.to_owned()])
        );
        assert_eq!(
            written(&already),
            record("a", Some(100), None),
            "the taint of another writer does not become headgate's"
        );
    }

    #[test]
    fn second_notice_keeps_the_taint_of_the_first() {
        let tracker = tracking(notice("b", Some(200)), true);
        let first = record("a", Some(100), Some(50));
        let kept = plan_patch(&tracker, &node(&json!([ours(50)]), Some(&first)), at(60)).unwrap();
        assert_eq!(
            (kept.outcome, written(&kept)),
            (WriteOutcome::Recorded, record("b", Some(200), Some(50)))
        );
        let removed_meanwhile = plan_patch(&tracker, &node(&json!([]), Some(&first)), at(60)).unwrap();
        assert_eq!(paths(&removed_meanwhile), [TEST, "add /spec/taints/-", ANNOTATE]);
        assert_eq!(written(&removed_meanwhile).tainted_at, Some(at(60)));
        let replaced = plan_patch(&tracker, &node(&json!([theirs()]), Some(&first)), at(60)).unwrap();
        assert_eq!(
            written(&replaced).tainted_at,
            None,
            "another writer set it again, so it is not headgate's"
        );
    }

    #[test]
    fn only_the_own_taint_is_removed() {
        let record = record("a", Some(100), Some(50));
        let patch = |taints| plan_patch(&clear(), &node(&taints, Some(&record)), at(60)).unwrap();
        let other = json!({"key": "other", "effect": "NoSchedule"});
        let removed = patch(json!([other, ours(50), other]));
        assert_eq!(
            (removed.outcome, paths(&removed)),
            (
                WriteOutcome::Untainted,
                vec![TEST.into(), "remove /spec/taints/1".into(), ANNOTATE.into()]
            )
        );
        assert_eq!(written(&removed).tainted_at, None);
        for left in [json!([theirs()]), json!([ours(51)]), json!([other]), Value::Null] {
            let kept = patch(left);
            assert_eq!(
                (kept.outcome, paths(&kept)),
                (WriteOutcome::Recorded, vec![TEST.to_owned(), ANNOTATE.to_owned()])
            );
            assert_eq!(written(&kept).tainted_at, None);
        }
    }

    #[test]
    fn node_in_the_target_state_needs_no_patch() {
        let tracker = tracking(notice("a", Some(100)), true);
        let done = node(&json!([ours(50)]), Some(&record("a", Some(100), Some(50))));
        assert_eq!(plan_patch(&tracker, &done, at(60)), None);
    }
}
