//! The JSON patches that turn a Node as it was read into one with other fields. Pure.
//!
//! Each patch begins with tests of the UID and the `resourceVersion` that were read, so positions in lists are those that were read. Items
//! of lists that do not change are never sent: what this program does not know of them stays.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use serde::Serialize;
use serde_json::{Value, json};

/// The operations for labels, annotations, `spec.unschedulable` and taints; `None` if they are the same.
pub(super) fn operations(before: &Node, after: &Node) -> Option<Value> {
    let (labels_before, labels_after) = (&before.metadata.labels, &after.metadata.labels);
    let mut operations = map_operations("/metadata/labels", labels_before.as_ref(), labels_after.as_ref());
    let (annotations, wanted) = (&before.metadata.annotations, &after.metadata.annotations);
    operations.extend(map_operations(
        "/metadata/annotations",
        annotations.as_ref(),
        wanted.as_ref(),
    ));
    let spec = |node: &Node| node.spec.clone().unwrap_or_default();
    let (spec_before, spec_after) = (spec(before), spec(after));
    if spec_before.unschedulable != spec_after.unschedulable {
        let value = spec_after.unschedulable.unwrap_or_default();
        operations.push(json!({"op": "add", "path": "/spec/unschedulable", "value": value}));
    }
    operations.extend(list_operations(
        "/spec/taints",
        spec_before.taints.as_deref(),
        spec_after.taints.as_deref().unwrap_or_default(),
        |one, other| (&one.key, &one.effect) == (&other.key, &other.effect),
    ));
    guarded(before, operations)
}

/// The operations for conditions, which are a request of their own; `None` if they are the same.
pub(super) fn status_operations(before: &Node, after: &Node) -> Option<Value> {
    let conditions = |node: &Node| node.status.as_ref().and_then(|status| status.conditions.clone());
    let (before_them, after_them) = (conditions(before), conditions(after).unwrap_or_default());
    let is_same_type = |one: &_, other: &_| type_of(one) == type_of(other);
    let operations = list_operations("/status/conditions", before_them.as_deref(), &after_them, is_same_type);
    guarded(before, operations)
}

fn type_of(condition: &k8s_openapi::api::core::v1::NodeCondition) -> &str {
    &condition.type_
}

fn guarded(before: &Node, operations: Vec<Value>) -> Option<Value> {
    let tests = [
        json!({"op": "test", "path": "/metadata/uid", "value": before.metadata.uid}),
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": before.metadata.resource_version}),
    ];
    (!operations.is_empty()).then(|| tests.into_iter().chain(operations).collect())
}

/// The operations that make a map another one, key by key.
fn map_operations(
    path: &str,
    before: Option<&BTreeMap<String, String>>,
    after: Option<&BTreeMap<String, String>>,
) -> Vec<Value> {
    let (none, all_of) = (BTreeMap::new(), path);
    let path = |key: &str| format!("{all_of}/{}", key.replace('~', "~0").replace('/', "~1"));
    let after = after.unwrap_or(&none);
    let Some(before) = before else {
        let all = json!({"op": "add", "path": all_of, "value": after});
        return if after.is_empty() { Vec::new() } else { vec![all] };
    };
    let removed = before.keys().filter(|key| !after.contains_key(*key));
    let removed = removed.map(|key| json!({"op": "remove", "path": path(key)}));
    let set = after.iter().filter(|(key, value)| before.get(*key) != Some(value));
    let set = set.map(|(key, value)| json!({"op": "add", "path": path(key), "value": value}));
    removed.chain(set).collect()
}

/// The operations that make a list another one, item by item. The order of items that stay is the same.
fn list_operations<T: PartialEq + Serialize>(
    path: &str,
    before: Option<&[T]>,
    after: &[T],
    is_same: impl Fn(&T, &T) -> bool,
) -> Vec<Value> {
    let Some(before) = before else {
        let all = json!({"op": "add", "path": path, "value": after});
        return if after.is_empty() { Vec::new() } else { vec![all] };
    };
    // Those that stay first, then those of the same key: the API server admits two of one key.
    let mut left: Vec<&T> = after.iter().collect();
    let stay: Vec<_> = before
        .iter()
        .map(|item| take(&mut left, |other| other == item))
        .collect();
    let pairs = before.iter().zip(stay);
    let pairs: Vec<_> = pairs
        .map(|(item, stays)| (item, stays.or_else(|| take(&mut left, |other| is_same(item, other)))))
        .collect();
    let mut operations = Vec::new();
    // From the end, so that the positions before stay.
    for (position, (item, other)) in pairs.into_iter().enumerate().rev() {
        let path = format!("{path}/{position}");
        match other {
            None => operations.push(json!({"op": "remove", "path": path})),
            Some(other) if other != item => {
                operations.push(json!({"op": "replace", "path": path, "value": other}));
            }
            Some(_) => {}
        }
    }
    operations.extend(
        left.into_iter()
            .map(|item| json!({"op": "add", "path": format!("{path}/-"), "value": item})),
    );
    operations
}

/// Takes the first item that fits.
fn take<'a, T>(items: &mut Vec<&'a T>, fits: impl Fn(&T) -> bool) -> Option<&'a T> {
    let position = items.iter().position(|item| fits(item))?;
    Some(items.remove(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: &Value) -> Node {
        serde_json::from_value(value.clone()).unwrap()
    }

    /// The object after both patches, as the API server makes it.
    fn patched(object: &Value, after: &Node) -> Value {
        let mut object = object.clone();
        let before = node(&object);
        for operations in [operations(&before, after), status_operations(&before, after)] {
            let Some(operations) = operations else { continue };
            let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
            json_patch::patch(&mut object, &patch).unwrap();
        }
        object
    }

    #[test]
    fn patches_make_what_was_edited_and_leave_the_rest() {
        let other = json!({"key": "other", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z", "new": 1});
        let own = json!({"key": "own", "effect": "NoSchedule", "value": "a"});
        let ready = json!({"type": "Ready", "status": "True", "new": {"a": 1}});
        let marker = json!({"type": "x/y", "status": "True", "reason": "A"});
        let bare = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {}, "status": {}});
        let full = json!({"metadata": {"uid": "u", "resourceVersion": "7", "labels": {"a/b": "1", "c": "2"},
            "annotations": {"a/b~c": "1", "d": "2"}},
            "spec": {"taints": [own, other]}, "status": {"conditions": [marker, ready]}});
        let emptied = json!({"metadata": {"uid": "u", "resourceVersion": "7", "labels": {}, "annotations": {}},
            "spec": {"unschedulable": true, "taints": [other]}, "status": {"conditions": [ready]}});
        let changed = json!({"metadata": {"uid": "u", "resourceVersion": "7", "labels": {"c": "3"},
            "annotations": {"a/b~c": "3", "d": "2", "e": "4"}},
            "spec": {"taints": [{"key": "own", "effect": "NoSchedule", "value": "b"}, other, own_of("NoExecute")]},
            "status": {"conditions": [{"type": "x/y", "status": "False", "reason": "B"}, ready]}});
        for (before, after) in [(&full, &emptied), (&full, &changed), (&full, &full), (&bare, &bare)] {
            assert_eq!(patched(before, &node(after)), *after);
        }
        let from_nothing = node(&patched(&bare, &node(&full)));
        assert_eq!(from_nothing, node(&full));
        assert_eq!(operations(&node(&full), &node(&full)), None);
        assert_eq!(status_operations(&node(&full), &node(&full)), None);
    }

    #[test]
    fn each_of_two_conditions_of_one_type_is_changed_by_itself() {
        let with = |statuses: &[&str]| {
            let conditions: Vec<_> = statuses
                .iter()
                .map(|status| json!({"type": "x/y", "status": status}))
                .collect();
            json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {}, "status": {"conditions": conditions}})
        };
        for (before, after, operations) in [
            (&["A", "B"][..], &["A", "B"][..], 0),
            (&["A", "A"], &["B", "A"], 1),
            (&["A", "B"], &["C", "B"], 1),
            (&["A", "B"], &["B"], 1),
            (&["A", "B"], &["C"], 2),
            (&["A", "A"], &["A"], 1),
        ] {
            let (before, after) = (with(before), with(after));
            let found = status_operations(&node(&before), &node(&after));
            // With the two tests of the version.
            let count = found.map_or(0, |found| found.as_array().unwrap().len() - 2);
            assert_eq!(count, operations, "{before} {after}");
            let mut patched = patched(&before, &node(&after));
            let sorted = |node: &mut Value| {
                let conditions = node["status"]["conditions"].as_array_mut().unwrap();
                conditions.sort_by_key(ToString::to_string);
            };
            let mut after = after;
            sorted(&mut patched);
            sorted(&mut after);
            assert_eq!(patched, after);
        }
    }

    fn own_of(effect: &str) -> Value {
        json!({"key": "own", "effect": effect, "value": "a"})
    }

    #[test]
    fn no_patch_applies_to_another_node_or_version() {
        let before = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {}, "status": {}});
        let mut after = node(&before);
        after.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
        let operations = operations(&node(&before), &after).unwrap();
        let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
        for (uid, version, applies) in [("u", "7", true), ("u", "8", false), ("v", "7", false)] {
            let mut now = before.clone();
            now["metadata"]["uid"] = json!(uid);
            now["metadata"]["resourceVersion"] = json!(version);
            assert_eq!(json_patch::patch(&mut now, &patch).is_ok(), applies, "{uid} {version}");
        }
    }
}
