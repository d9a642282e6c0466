//! The JSON patches of a Node: its cordon, taint and annotation in one request, its conditions in another. Pure.
//!
//! Each patch begins with a test of the `resourceVersion` that was read, so positions in lists are those that were read.

use headgate_node::{MAINTENANCE_TAINT, NodeObject};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::names::CORDON_ANNOTATION;
use crate::plan::action::{Change, NodeChange, NodeConditionChange};

/// The operations that make a change of a Node.
pub(super) fn node_operations(node: &NodeObject, change: &NodeChange) -> Value {
    let mut operations = vec![version_test(node)];
    if let Some(unschedulable) = change.unschedulable {
        operations.push(json!({"op": "add", "path": "/spec/unschedulable", "value": unschedulable}));
    }
    let annotations = node.metadata.annotations.as_ref();
    let path = format!("/metadata/annotations/{}", CORDON_ANNOTATION.replace('/', "~1"));
    match &change.remembered {
        Some(Change::Set(before)) if annotations.is_none() => operations.push(
            json!({"op": "add", "path": "/metadata/annotations", "value": {CORDON_ANNOTATION: before.to_string()}}),
        ),
        Some(Change::Set(before)) => {
            operations.push(json!({"op": "add", "path": path, "value": before.to_string()}));
        }
        Some(Change::Remove) if annotations.is_some_and(|all| all.contains_key(CORDON_ANNOTATION)) => {
            operations.push(json!({"op": "remove", "path": path}));
        }
        Some(Change::Remove) | None => {}
    }
    operations.extend(change.taint.as_ref().and_then(|change| taint_operation(node, change)));
    Value::Array(operations)
}

fn version_test(node: &NodeObject) -> Value {
    json!({"op": "test", "path": "/metadata/resourceVersion", "value": node.metadata.resource_version})
}

fn taint_operation(node: &NodeObject, change: &Change<String>) -> Option<Value> {
    let taints = &node.spec.taints;
    let own = taints
        .iter()
        .position(|taint| taint.key == MAINTENANCE_TAINT && taint.effect == "NoSchedule");
    match (change, own) {
        (Change::Set(value), Some(own)) => {
            Some(json!({"op": "add", "path": format!("/spec/taints/{own}/value"), "value": value}))
        }
        (Change::Set(value), None) => {
            let taint = json!({"key": MAINTENANCE_TAINT, "value": value, "effect": "NoSchedule"});
            // The API server writes no empty list.
            Some(if taints.is_empty() {
                json!({"op": "add", "path": "/spec/taints", "value": [taint]})
            } else {
                json!({"op": "add", "path": "/spec/taints/-", "value": taint})
            })
        }
        (Change::Remove, Some(own)) => Some(json!({"op": "remove", "path": format!("/spec/taints/{own}")})),
        (Change::Remove, None) => None,
    }
}

/// The operations that set and remove conditions in a Node's status.
pub(super) fn condition_operations(
    node: &NodeObject,
    set: &[NodeConditionChange],
    remove: &[String],
    now: Timestamp,
) -> Value {
    let present = &node.status.conditions;
    let mut operations = vec![version_test(node)];
    let mut added = Vec::new();
    for change in set {
        let position = present.iter().position(|condition| condition.type_ == change.kind);
        let before = position.and_then(|position| present.get(position));
        let since = before
            .filter(|condition| condition.status == "True")
            .and_then(|condition| condition.last_transition_time.as_ref()?.parse().ok());
        let since: Timestamp = since.unwrap_or(now);
        let condition = json!({"type": change.kind, "status": "True", "reason": change.reason, "message": change.message,
            "lastTransitionTime": format!("{since:.0}"), "lastHeartbeatTime": format!("{now:.0}")});
        match position {
            Some(position) => operations
                .push(json!({"op": "replace", "path": format!("/status/conditions/{position}"), "value": condition})),
            None => added.push(condition),
        }
    }
    // From the end, so that the positions before stay.
    for (position, condition) in present.iter().enumerate().rev() {
        if remove.contains(&condition.type_) {
            operations.push(json!({"op": "remove", "path": format!("/status/conditions/{position}")}));
        }
    }
    if present.is_empty() && !added.is_empty() {
        operations.push(json!({"op": "add", "path": "/status/conditions", "value": added}));
    } else {
        let append = |condition| json!({"op": "add", "path": "/status/conditions/-", "value": condition});
        operations.extend(added.into_iter().map(append));
    }
    Value::Array(operations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::NodeFacts;

    /// The Node after a patch, as the API server makes it.
    fn patched(node: &Value, operations: &Value) -> Value {
        let mut node = node.clone();
        let patch: json_patch::Patch = serde_json::from_value(operations.clone()).unwrap();
        json_patch::patch(&mut node, &patch).unwrap();
        node
    }

    fn typed(node: &Value) -> NodeObject {
        serde_json::from_value(node.clone()).unwrap()
    }

    fn change(unschedulable: bool, remembered: Change<bool>, taint: &Change<&str>) -> NodeChange {
        NodeChange {
            unschedulable: Some(unschedulable),
            remembered: Some(remembered),
            taint: Some(match taint {
                Change::Set(value) => Change::Set((*value).to_owned()),
                Change::Remove => Change::Remove,
            }),
        }
    }

    #[test]
    fn a_change_is_made_and_undone() {
        let other = json!({"key": "other", "effect": "NoExecute"});
        let by_hand = json!({"key": MAINTENANCE_TAINT, "effect": "NoExecute", "value": "by-hand"});
        for before in [
            json!({"metadata": {"name": "one", "resourceVersion": "7"}, "spec": {}}),
            json!({"metadata": {"name": "one", "resourceVersion": "7", "annotations": {"a": "b"}},
                "spec": {"taints": [other, by_hand]}}),
        ] {
            let set = change(true, Change::Set(false), &Change::Set("uid"));
            let during = patched(&before, &node_operations(&typed(&before), &set));
            let facts = NodeFacts::from(&typed(&during));
            assert!(facts.is_unschedulable && facts.was_unschedulable == Some(false));
            assert_eq!(facts.maintenance_taint.unwrap().value, "uid");
            let other_value = change(true, Change::Set(false), &Change::Set("other-uid"));
            let moved = patched(&during, &node_operations(&typed(&during), &other_value));
            assert_eq!(
                NodeFacts::from(&typed(&moved)).maintenance_taint.unwrap().value,
                "other-uid"
            );
            let undo = change(false, Change::Remove, &Change::Remove);
            let after = patched(&during, &node_operations(&typed(&during), &undo));
            let facts = NodeFacts::from(&typed(&after));
            assert_eq!(facts, NodeFacts::from(&typed(&before)), "{after}");
            let taints = |node: &Value| node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            assert_eq!(taints(&after), taints(&before));
        }
    }

    #[test]
    fn a_node_that_changed_since_is_not_patched() {
        let before = json!({"metadata": {"resourceVersion": "7"}, "spec": {}});
        let operations = node_operations(&typed(&before), &change(true, Change::Remove, &Change::Remove));
        let mut later = before;
        later["metadata"]["resourceVersion"] = json!("8");
        let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
        assert!(json_patch::patch(&mut later, &patch).is_err());
    }

    #[test]
    fn conditions_are_replaced_appended_and_removed() {
        let now: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let before = json!({"metadata": {"resourceVersion": "7"}, "status": {"conditions": [
            condition("MaintenancePlanned", "True"), condition("Ready", "True"), condition("Drained", "False"),
            condition("MaintenanceInProgress", "True")]}});
        let set = ["Drained", "MaintenanceInProgress", "DrainInProgress"].map(|kind| NodeConditionChange {
            kind,
            reason: "AdminRequested",
            message: "NodeMaintenance a".to_owned(),
        });
        let operations = condition_operations(&typed(&before), &set, &["MaintenancePlanned".to_owned()], now);
        let after = patched(&before, &operations);
        let found: Vec<_> = after["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|condition| {
                let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
                (text("type"), text("status"), text("lastTransitionTime"))
            })
            .collect();
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T03:04:05Z");
        let expected = [
            ("Ready", early),
            ("Drained", late),
            ("MaintenanceInProgress", early),
            ("DrainInProgress", late),
        ];
        let expected: Vec<_> = expected
            .map(|(kind, since)| (kind.to_owned(), "True".to_owned(), since.to_owned()))
            .to_vec();
        assert_eq!(found, expected);

        let none = json!({"metadata": {"resourceVersion": "7"}, "status": {}});
        let after = patched(&none, &condition_operations(&typed(&none), &set[..1], &[], now));
        assert_eq!(after["status"]["conditions"][0]["type"], "Drained");
    }
}
