//! The version and kind of a settings file: `apiVersion` and `kind`. Pure.
//!
//! A file without both has the spellings before `v1alpha1`. It is read as `v1alpha1`, with a notice.

use headgate_settings::{Violation, describe_value};
use serde_yaml::{Mapping, Value};

use super::notice::Notice;
use super::suggestion::Spelling;

/// The key of the version.
pub(super) const API_VERSION: &str = "apiVersion";
/// The key of the kind.
pub(super) const KIND: &str = "kind";
/// The two keys with their only values.
pub(super) const HEADER: [(&str, &str); 2] = [
    (API_VERSION, "config.headgate.dev/v1alpha1"),
    (KIND, "HeadgateConfiguration"),
];

/// What the first lines of a file say.
pub(super) struct Version {
    /// The spelling that the file probably has.
    pub(super) spelling: Spelling,
    /// A wrong or missing version or kind.
    pub(super) violations: Vec<Violation>,
    /// Of a file without version and kind.
    pub(super) notice: Option<Notice>,
}

/// Reads the version and the kind of a document.
pub(super) fn check_version(origin: &str, document: &Mapping) -> Version {
    if HEADER.iter().all(|(key, _)| !document.contains_key(*key)) {
        let [(_, version), (_, kind)] = HEADER;
        return Version {
            spelling: Spelling::Former,
            violations: Vec::new(),
            notice: Some(Notice {
                origin: origin.to_owned(),
                key: None,
                message: format!(
                    "has no apiVersion and kind, and is read as {version}; the next version needs apiVersion: {version} \
                     and kind: {kind}"
                ),
            }),
        };
    }
    let wrong = |(key, allowed): (&str, &str)| {
        let message = match document.get(key) {
            Some(value) if value.as_str() == Some(allowed) => return None,
            Some(value) => format!("{} is not allowed; allowed: {allowed}", describe_value(value)),
            None => format!("is missing; allowed: {allowed}"),
        };
        Some(Violation {
            origin: origin.to_owned(),
            key: Some(key.to_owned()),
            message,
        })
    };
    Version {
        spelling: Spelling::Present,
        violations: HEADER.into_iter().filter_map(wrong).collect(),
        notice: None,
    }
}

/// The first keys of a file.
pub(super) fn header() -> Mapping {
    HEADER
        .into_iter()
        .map(|(key, value)| (Value::from(key), Value::from(value)))
        .collect()
}
