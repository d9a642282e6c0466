//! The order of rows by a field of their JSON. Pure.

use std::cmp::Ordering;

use serde::Serialize;
use serde_json::Value;

use super::report::StatusReport;

/// Sorts rows by a field of their JSON, as `kubectl --sort-by` does: a path of names such as `.verdict.healthz`, also in braces.
/// Rows without a value come first; rows with the same value stay in their order.
///
/// # Errors
/// When no row has the field; `examples` are in the error.
pub(crate) fn sort_by_field<T: Serialize>(rows: &mut Vec<T>, field: &str, examples: &str) -> anyhow::Result<()> {
    let path = field.trim().trim_start_matches('{').trim_end_matches('}');
    let pointer = format!("/{}", path.trim_start_matches('.').replace('.', "/"));
    let mut keyed: Vec<_> = std::mem::take(rows)
        .into_iter()
        .map(|row| {
            let json = serde_json::to_value(&row).unwrap_or_default();
            (json.pointer(&pointer).cloned(), row)
        })
        .collect();
    let is_known = keyed.is_empty() || keyed.iter().any(|(key, _)| key.is_some());
    keyed.sort_by(|(a, _), (b, _)| compare(a.as_ref(), b.as_ref()));
    *rows = keyed.into_iter().map(|(_, row)| row).collect();
    anyhow::ensure!(
        is_known,
        "--sort-by: no node has the field {field:?}; allowed: a field of the nodes in -o json, such as {examples}"
    );
    Ok(())
}

impl StatusReport {
    /// Sorts the nodes by a field of their JSON.
    ///
    /// # Errors
    /// When no node has the field.
    pub(crate) fn sort_nodes_by(&mut self, field: &str) -> anyhow::Result<()> {
        let examples = ".name, .address, .verdict.healthz or .verdict.since";
        sort_by_field(&mut self.nodes, field, examples)
    }
}

/// Null and absent values first, then by value; values of different types by type.
fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    };
    let (a, b) = (a.unwrap_or(&Value::Null), b.unwrap_or(&Value::Null));
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => a
            .as_f64()
            .unwrap_or_default()
            .total_cmp(&b.as_f64().unwrap_or_default()),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => a.len().cmp(&b.len()),
        _ => rank(a).cmp(&rank(b)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_ordered_by_type_and_value() {
        let ordered = [
            json!(null),
            json!(false),
            json!(true),
            json!(7),
            json!(10.5),
            json!("10.0.0.1"),
            json!("a"),
            json!([]),
            json!([1]),
            json!({}),
        ];
        for (i, a) in ordered.iter().enumerate() {
            for (j, b) in ordered.iter().enumerate() {
                assert_eq!(compare(Some(a), Some(b)), i.cmp(&j), "{a} {b}");
            }
        }
        assert_eq!(compare(None, Some(&json!(null))), Ordering::Equal);
    }
}
