//! JSON merge patches, as concurrent writers send them (RFC 7386).

use serde_json::{Map, Value};

/// Merges `patch` into `target` as RFC 7386 says: objects member by member, `null` removes, all else replaces.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merging() {
        for (target, patch, want) in [
            (
                json!({"a": {"b": 1, "c": 2}}),
                json!({"a": {"b": null, "d": 3}}),
                json!({"a": {"c": 2, "d": 3}}),
            ),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!(1), json!({"a": {"b": null}}), json!({"a": {}})),
        ] {
            let mut target = target;
            merge(&mut target, &patch);
            assert_eq!(target, want, "{patch}");
        }
    }
}
