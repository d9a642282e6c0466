//! The version and kind of a settings file: `apiVersion` and `kind`. Pure.

use headgate_core::settings::{Violation, describe_value};
use serde_yaml::{Mapping, Value};

/// The two keys with their only values.
pub(super) const HEADER: [(&str, &str); 2] = [
    ("apiVersion", "config.headgate.dev/v1alpha1"),
    ("kind", "HeadgateConfiguration"),
];

/// A wrong or missing version or kind.
pub(super) fn check_version(origin: &str, document: &Mapping) -> impl Iterator<Item = Violation> {
    HEADER.into_iter().filter_map(move |(key, allowed)| {
        let message = match document.get(key) {
            Some(value) if value.as_str() == Some(allowed) => return None,
            Some(value) => format!("{} is not allowed; allowed: {allowed}", describe_value(value)),
            None => format!("is missing; allowed: {allowed}"),
        };
        Some(Violation {
            line: None,
            origin: origin.to_owned(),
            key: Some(key.to_owned()),
            message,
        })
    })
}

/// The first keys of a file.
pub(super) fn header() -> Mapping {
    HEADER
        .into_iter()
        .map(|(key, value)| (Value::from(key), Value::from(value)))
        .collect()
}
