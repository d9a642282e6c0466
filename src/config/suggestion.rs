//! What an unknown key probably means. Pure.

use headgate_settings::{Violation, describe_value};
use serde_yaml::Value;

use super::keys::{Key, is_section, keys};

/// The spelling of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Spelling {
    /// That of `v1alpha1`.
    #[default]
    Present,
    /// That of files without a version.
    Former,
}

impl Spelling {
    /// The path of a key in this spelling.
    pub(super) fn of(self, key: &Key) -> &'static str {
        match self {
            Self::Present => key.path,
            Self::Former => key.former.unwrap_or(key.path),
        }
    }
}

/// The sections above a dotted path, the outermost first.
fn sections(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.match_indices('.').map(|(end, _)| &path[..end])
}

/// The key or section that an unknown path probably means: the most similar one, compared with its whole path and with its
/// last part, for a key without its section.
pub(super) fn nearest(path: &str, spelling: Spelling) -> Option<&'static str> {
    let similarity = |candidate: &str| {
        let last = candidate.rsplit('.').next().unwrap_or(candidate);
        strsim::jaro_winkler(path, candidate).max(strsim::jaro_winkler(path, last))
    };
    keys()
        .map(|key| spelling.of(key))
        .flat_map(|path| std::iter::once(path).chain(sections(path)))
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        // A single common letter has a similarity of 0.7.
        .filter(|candidate| similarity(candidate) > 0.8)
}

/// The violation of a key that does not exist, or of a section that is none.
pub(super) fn unknown_key(origin: &str, path: &str, value: &Value, spelling: Spelling) -> Violation {
    let message = if is_section(path) {
        let within = |key: &'static str| key.strip_prefix(path)?.strip_prefix('.');
        let inner = keys().filter_map(|key| within(key.path).or_else(|| within(key.former?)));
        format!(
            "{} is not allowed; allowed: a section with {}",
            describe_value(value),
            inner.collect::<Vec<_>>().join(", ")
        )
    } else {
        nearest(path, spelling).map_or_else(
            || {
                let known = keys().map(|key| spelling.of(key)).collect::<Vec<_>>().join(", ");
                format!(
                    "this key is not known (value: {}); allowed: {known}",
                    describe_value(value)
                )
            },
            |nearest| {
                format!(
                    "did you mean {nearest}? This key is not known (value: {}); allowed: those in docs/settings.md",
                    describe_value(value)
                )
            },
        )
    };
    Violation {
        origin: origin.to_owned(),
        key: Some(path.to_owned()),
        message,
    }
}
