//! What remains readable of an object that its type cannot decode.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use serde_json::value::RawValue;

/// The time of `metav1.Condition`, which is required.
const CONDITION_TIME: &str = "lastTransitionTime";
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";
/// Longer texts are no time.
const MAX_TIME_BYTES: usize = 64;

/// The members of an object, not decoded.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// How much of an object is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    Metadata,
    All,
}

/// The object without `managedFields`, and with times that a `Timestamp` represents; as text, because the code that decodes a type from a
/// value would be in the program a second time.
pub(super) fn repaired(object: &str, repair: Repair) -> serde_json::Result<String> {
    let parse = |text: &RawValue, is_bounded: bool| {
        let mut value = serde_json::from_str(text.get())?;
        if is_bounded {
            bound_times(&mut value);
        }
        Ok::<_, serde_json::Error>(value)
    };
    let members: Members<'_> = serde_json::from_str(object)?;
    let mut repaired = serde_json::Map::new();
    for (name, text) in members {
        let value = if name == "metadata" {
            let members: Members<'_> = serde_json::from_str(text.get())?;
            let kept = members.into_iter().filter(|(name, _)| name != "managedFields");
            let parsed = kept.map(|(name, text)| {
                let is_bounded = !matches!(name.as_str(), "annotations" | "labels");
                parse(text, is_bounded).map(|value| (name, value))
            });
            Value::Object(parsed.collect::<serde_json::Result<_>>()?)
        } else {
            parse(text, repair == Repair::All)?
        };
        repaired.insert(name, value);
    }
    serde_json::to_string(&repaired)
}

/// Replaces each text that has the form of a time and that no `Timestamp` represents, and zero times.
fn bound_times(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(time) = nearest_time(text) {
                *text = time.to_string();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(bound_times),
        Value::Object(members) => {
            // As `null` the API server writes a zero time, such as one in `disruptedPods` of a PodDisruptionBudget.
            members.retain(|name, value| !value.is_null() || name == CONDITION_TIME);
            for (name, value) in members {
                if value.is_null() && name == CONDITION_TIME {
                    *value = Value::from(ZERO_TIME);
                }
                bound_times(value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The nearest representable time; `None` for a text that is no time, or is one already.
fn nearest_time(text: &str) -> Option<Timestamp> {
    let unsigned = text.trim_start_matches(['-', '+']);
    let year_digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    let is_digit_or = |other: &[u8]| other.iter().all(|byte| byte.is_ascii_digit() || b"-:Tt".contains(byte));
    // Month, day, hour, minute and second follow the year: `-01-02T03:04:05`.
    let rest = unsigned.get(year_digits..year_digits + 15)?;
    let is_time =
        text.len() <= MAX_TIME_BYTES && year_digits >= 3 && rest.starts_with('-') && is_digit_or(rest.as_bytes());
    if !is_time || text.parse::<Timestamp>().is_ok() {
        return None;
    }
    let year: i64 = unsigned[..year_digits].parse().unwrap_or(i64::MAX);
    Some(match (text.starts_with('-'), year) {
        (true, _) => Timestamp::MIN,
        (false, 9999..) => Timestamp::MAX,
        // The fraction or the offset is out of range.
        _ => format!("{}{rest}Z", &unsigned[..year_digits]).parse().ok()?,
    })
}

/// Name, namespace, UID and resourceVersion, as far as they are readable.
pub(super) fn identity(object: &str) -> ObjectMeta {
    let members: Members<'_> = serde_json::from_str(object).unwrap_or_default();
    let metadata = members
        .get("metadata")
        .map(|metadata| serde_json::from_str(metadata.get()));
    let metadata: Members<'_> = metadata.and_then(Result::ok).unwrap_or_default();
    let text = |name| {
        metadata
            .get(name)
            .and_then(|text| serde_json::from_str(text.get()).ok())
    };
    ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_time_that_is_not_representable_is_replaced() {
        let time = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        for (text, expected) in [
            ("2026-01-02T03:04:05Z", None),
            ("2026-01-02", None),
            ("a text", None),
            ("9999-12-31T23:59:59Z", Some(Timestamp::MAX)),
            ("-001-12-31T23:59:59Z", Some(Timestamp::MIN)),
            ("2026-01-02T03:04:05x5Z", time("2026-01-02T03:04:05Z")),
            ("2026-01-02T03:04:05+99:99", time("2026-01-02T03:04:05Z")),
            (
                "9999-12-31T23:59:59 or later, as the operator says: never before the end of the year",
                None,
            ),
        ] {
            assert_eq!(nearest_time(text), expected, "{text}");
        }
    }

    #[test]
    fn zero_times_are_left_out_but_for_those_of_conditions() {
        let mut object =
            serde_json::json!({"conditions": [{"lastTransitionTime": null}], "disruptedPods": {"a": null, "b": "c"}});
        bound_times(&mut object);
        let expected =
            serde_json::json!({"conditions": [{"lastTransitionTime": ZERO_TIME}], "disruptedPods": {"b": "c"}});
        assert_eq!(object, expected);
    }
}
