//! The patch that makes a Node as it is wished. Pure.
//!
//! One JSON patch changes the taint and the record of its notice together, under a test of the Node's
//! `resourceVersion`; other taints are never rewritten (they are an atomic list to every other kind of
//! patch). A taint is ours only while it carries the very time that the record says we added it: one that
//! somebody else set, or set again, stays.

use headgate_node::DRAINING_TAINT;
use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::notice::Follow;
use super::taint::{ANNOTATION, Record, Wish, wish};

/// The taint's value for an eviction (the name in the design of cloud-provider-azure).
pub const TAINT_VALUE: &str = "spot-eviction";
/// Nothing new comes; what runs there is left to run.
const TAINT_EFFECT: &str = "NoSchedule";

/// A JSON patch, and the word for it in metrics and logs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Edit {
    pub(super) outcome: &'static str,
    pub(super) operations: Value,
}

/// The patch that fulfils what is wished for this very Node; none if nothing is.
pub(super) fn edit(follow: &Follow, node: &DynamicObject, now: Timestamp) -> Option<Edit> {
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    let boot_id = node.data["status"]["nodeInfo"]["bootID"].as_str().unwrap_or_default();
    let record = Record::in_annotations(&annotations);
    let wish = wish(follow, record.as_ref(), boot_id)?;
    let tainted_at = record.as_ref().and_then(|record| record.tainted_at);
    let taints = node.data["spec"]["taints"].as_array();
    let draining = |taint: &&Value| taint["key"] == DRAINING_TAINT;
    let is_ours = |taint: &Value| {
        let added_at = taint["timeAdded"].as_str().and_then(|text| text.parse().ok());
        taint["key"] == DRAINING_TAINT && added_at.is_some() && added_at == tainted_at
    };
    let ours = taints.and_then(|taints| taints.iter().position(is_ours));

    let mut operations =
        vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version})];
    let (record, outcome) = match wish {
        Wish::Taint(notice) => {
            let there = taints.is_some_and(|taints| taints.iter().any(|taint| draining(&taint)));
            let tainted_at = if there {
                tainted_at.filter(|_| ours.is_some())
            } else {
                Some(seconds(now))
            };
            if !there {
                let taint = json!({"key": DRAINING_TAINT, "value": TAINT_VALUE, "effect": TAINT_EFFECT, "timeAdded": tainted_at});
                operations.push(match taints {
                    Some(_) => json!({"op": "add", "path": "/spec/taints/-", "value": taint}),
                    None => json!({"op": "add", "path": "/spec/taints", "value": [taint]}),
                });
            }
            let record = Record {
                event_id: notice.event_id,
                not_before: notice.not_before,
                boot_id: boot_id.to_owned(),
                tainted_at,
            };
            (record, if there { "recorded" } else { "tainted" })
        }
        Wish::Untaint => {
            operations.extend(ours.map(|index| json!({"op": "remove", "path": format!("/spec/taints/{index}")})));
            // It stays recorded, lest the same notice come back and taint again.
            let record = Record {
                tainted_at: None,
                ..record?
            };
            (record, if ours.is_some() { "untainted" } else { "recorded" })
        }
    };
    let text = json!(record).to_string();
    operations.push(if annotations.is_empty() {
        json!({"op": "add", "path": "/metadata/annotations", "value": {ANNOTATION: text}})
    } else {
        json!({"op": "add", "path": format!("/metadata/annotations/{}", ANNOTATION.replace('/', "~1")), "value": text})
    });
    Some(Edit {
        outcome,
        operations: operations.into(),
    })
}

/// To the second, as Kubernetes keeps times.
fn seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{BOOT, at, clear, following, notice, record};
    use super::*;

    fn node(taints: &Value, annotations: Option<&Record>) -> DynamicObject {
        let mut node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"taints": taints}, "status": {"nodeInfo": {"bootID": BOOT}}});
        if taints.is_null() {
            node["spec"].as_object_mut().unwrap().remove("taints");
        }
        if let Some(record) = annotations {
            node["metadata"]["annotations"] = json!({"other": "1", ANNOTATION: json!(record).to_string()});
        }
        serde_json::from_value(node).unwrap()
    }

    fn ours(second: i64) -> Value {
        json!({"key": DRAINING_TAINT, "value": TAINT_VALUE, "effect": TAINT_EFFECT, "timeAdded": at(second)})
    }

    fn theirs() -> Value {
        json!({"key": DRAINING_TAINT, "value": TAINT_VALUE, "effect": TAINT_EFFECT})
    }

    fn paths(edit: &Edit) -> Vec<String> {
        let operations = edit.operations.as_array().unwrap().iter();
        operations
            .map(|op| format!("{} {}", op["op"].as_str().unwrap(), op["path"].as_str().unwrap()))
            .collect()
    }

    /// The record that an edit writes.
    fn written(edit: &Edit) -> Record {
        let value = &edit.operations.as_array().unwrap().last().unwrap()["value"];
        let text = value.as_str().or_else(|| value[ANNOTATION].as_str()).unwrap();
        serde_json::from_str(text).unwrap()
    }

    const TEST: &str = "test /metadata/resourceVersion";
    const NOTE: &str = "add /metadata/annotations/headgate.dev~1spot-notice";
    const FIRST_NOTE: &str = "add /metadata/annotations";

    #[test]
    fn a_notice_is_written_beside_others_taints() {
        let follow = following(notice("a", Some(100)), true);
        let now = "1970-01-01T00:01:00.9Z".parse().unwrap();
        let edit = |taints| edit(&follow, &node(&taints, None), now).unwrap();
        let bare = edit(Value::Null);
        assert_eq!(paths(&bare), [TEST, "add /spec/taints", FIRST_NOTE]);
        assert_eq!(bare.operations[0]["value"], "7");
        assert_eq!(bare.operations[1]["value"], json!([ours(60)]));
        assert_eq!(written(&bare), record("a", Some(100), Some(60)));
        let beside = edit(json!([{"key": "other", "effect": "NoExecute"}]));
        assert_eq!(paths(&beside), [TEST, "add /spec/taints/-", FIRST_NOTE]);
        assert_eq!((beside.outcome, &beside.operations[1]["value"]), ("tainted", &ours(60)));
        let already = edit(json!([theirs()]));
        assert_eq!(
            (already.outcome, paths(&already)),
            ("recorded", vec![TEST.to_owned(), FIRST_NOTE.to_owned()])
        );
        assert_eq!(
            written(&already),
            record("a", Some(100), None),
            "theirs does not become ours"
        );
    }

    #[test]
    fn a_second_notice_keeps_the_taint_of_the_first() {
        let follow = following(notice("b", Some(200)), true);
        let first = record("a", Some(100), Some(50));
        let kept = edit(&follow, &node(&json!([ours(50)]), Some(&first)), at(60)).unwrap();
        assert_eq!(
            (kept.outcome, written(&kept)),
            ("recorded", record("b", Some(200), Some(50)))
        );
        let removed_meanwhile = edit(&follow, &node(&json!([]), Some(&first)), at(60)).unwrap();
        assert_eq!(paths(&removed_meanwhile), [TEST, "add /spec/taints/-", NOTE]);
        assert_eq!(written(&removed_meanwhile).tainted_at, Some(at(60)));
        let replaced = edit(&follow, &node(&json!([theirs()]), Some(&first)), at(60)).unwrap();
        assert_eq!(
            written(&replaced).tainted_at,
            None,
            "somebody set it again: it is theirs now"
        );
    }

    #[test]
    fn only_ours_is_removed() {
        let record = record("a", Some(100), Some(50));
        let edit = |taints| edit(&clear(), &node(&taints, Some(&record)), at(60)).unwrap();
        let other = json!({"key": "other", "effect": "NoSchedule"});
        let removed = edit(json!([other, ours(50), other]));
        assert_eq!(
            (removed.outcome, paths(&removed)),
            (
                "untainted",
                vec![TEST.into(), "remove /spec/taints/1".into(), NOTE.into()]
            )
        );
        assert_eq!(written(&removed).tainted_at, None);
        for left in [json!([theirs()]), json!([ours(51)]), json!([other]), Value::Null] {
            let kept = edit(left);
            assert_eq!(
                (kept.outcome, paths(&kept)),
                ("recorded", vec![TEST.to_owned(), NOTE.to_owned()])
            );
            assert_eq!(written(&kept).tainted_at, None);
        }
    }

    #[test]
    fn a_fresh_look_may_show_that_nothing_is_left_to_do() {
        let follow = following(notice("a", Some(100)), true);
        let done = node(&json!([ours(50)]), Some(&record("a", Some(100), Some(50))));
        assert_eq!(edit(&follow, &done, at(60)), None);
    }
}
