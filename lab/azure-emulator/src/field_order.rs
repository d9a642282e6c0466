//! The order of fields in JSON bodies. ARM writes `provisioningState` before the other properties, as recorded, and clients that read a
//! large document only as far as necessary rely on it. All other fields are in alphabetical order.

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

const FIRST: &str = "provisioningState";

/// A JSON value whose objects begin with the state.
pub(super) struct ArmOrder<'a>(pub(super) &'a Value);

impl Serialize for ArmOrder<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => serializer.collect_seq(items.iter().map(ArmOrder)),
            Value::Object(object) => {
                let mut map = serializer.serialize_map(Some(object.len()))?;
                if let Some(state) = object.get(FIRST) {
                    map.serialize_entry(FIRST, state)?;
                }
                for (name, value) in object.iter().filter(|(name, _)| *name != FIRST) {
                    map.serialize_entry(name, &ArmOrder(value))?;
                }
                map.end()
            }
            scalar => scalar.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn state_comes_first_and_nothing_is_lost() {
        let value = json!({"id": "i", "properties": {"a": [{"properties": {"b": null, "provisioningState": "Updating"}}, 1.5, "x"],
            "provisioningState": "Succeeded"}, "tags": {}});
        let text = serde_json::to_string(&ArmOrder(&value)).unwrap();
        assert_eq!(
            text,
            r#"{"id":"i","properties":{"provisioningState":"Succeeded","a":[{"properties":{"provisioningState":"Updating","b":null}},1.5,"x"]},"tags":{}}"#
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
