//! What an unknown key probably means. Pure.

use headgate_core::settings::{Violation, describe_value};
use serde_yaml::Value;

use super::keys::{flags, is_section, keys};

/// The sections above a dotted path, the outermost first.
fn sections(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.match_indices('.').map(|(end, _)| &path[..end])
}

/// The key or section that an unknown path probably means: the most similar one, compared with its whole path and with its
/// last part, for a key without its section.
pub(super) fn nearest(path: &str) -> Option<&'static str> {
    let similarity = |candidate: &str| {
        let last = candidate.rsplit('.').next().unwrap_or(candidate);
        strsim::jaro_winkler(path, candidate).max(strsim::jaro_winkler(path, last))
    };
    keys()
        .flat_map(|key| std::iter::once(key.path).chain(sections(key.path)))
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        // A single common letter has a similarity of 0.7.
        .filter(|candidate| similarity(candidate) > 0.8)
}

/// The violation of a key that does not exist, or of a section that is none.
pub(super) fn unknown_key(origin: &str, path: &str, value: &Value) -> Violation {
    let value = describe_value(value);
    let flag = flags().find(|key| key.path == path).and_then(|key| key.flag);
    let message = if is_section(path) {
        let inner = keys().filter_map(|key| key.path.strip_prefix(path)?.strip_prefix('.'));
        let inner = inner.collect::<Vec<_>>().join(", ");
        format!("{value} is not allowed; allowed: a section with {inner}")
    } else if let Some(flag) = flag {
        format!(
            "this is the flag {flag} of headgate agent and no key; allowed: {}",
            known()
        )
    } else if let Some(nearest) = nearest(path) {
        format!(
            "did you mean {nearest}? This key is not known (value: {value}); allowed: {}",
            known()
        )
    } else {
        format!("this key is not known (value: {value}); allowed: {}", known())
    };
    Violation {
        origin: origin.to_owned(),
        key: Some(path.to_owned()),
        line: None,
        message,
    }
}

/// The violation of a key that is written as its path. The JSON schema has sections only.
pub(super) fn key_with_dots(origin: &str, path: &str, value: &Value) -> Violation {
    let (sections, key) = path.rsplit_once('.').unwrap_or_default();
    let value = describe_value(value);
    Violation {
        origin: origin.to_owned(),
        key: Some(path.to_owned()),
        line: None,
        message: format!("{value} is not allowed at a key with dots; allowed: {key} in the section {sections}"),
    }
}

/// All keys.
fn known() -> String {
    keys().map(|key| key.path).collect::<Vec<_>>().join(", ")
}
