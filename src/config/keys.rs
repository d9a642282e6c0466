//! The table of settings: one row for each key, with its meaning and the functions that read and show its value.
//!
//! Everything else about settings derives from this table: loading, suggestions for unknown keys, the settings that the
//! process logs at its start, the reference and the JSON schema. To add a setting, add a row.

mod leader;
mod node;
mod notifications;
mod process;

use std::time::Duration;

use headgate_node::{SignalMatcher, SignalRules};
use serde_yaml::Value;

use super::Settings;
use super::value::InvalidValue;

/// One setting: its key, default, help, and access to its value.
pub(super) struct Key {
    /// The dotted path in the file.
    pub(super) path: &'static str,
    /// The path that it had before `v1alpha1`, which is read for one more version.
    pub(super) former: Option<&'static str>,
    /// Whether null is a value, which means the same as omission: there is no such file, Secret or address.
    pub(super) is_optional: bool,
    /// The JSON schema of the values that are not null.
    pub(super) schema: fn() -> serde_json::Value,
    /// The flag that overrides the file.
    pub(super) flag: Option<&'static str>,
    /// Its meaning in full sentences, for the reference.
    pub(super) about: &'static str,
    /// Sets a value, or says what is allowed.
    pub(super) set: fn(&mut Settings, &Value) -> Result<(), InvalidValue>,
    /// The value in effect, as `--check-config` prints it.
    pub(super) get: fn(&Settings) -> Value,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

fn duration_value(duration: Duration) -> Value {
    Value::String(headgate_settings::format_duration(duration))
}

fn matchers_value(rules: &SignalRules) -> Value {
    let entry = |matcher: &SignalMatcher| serde_yaml::to_value(matcher.to_value()).unwrap_or_default();
    Value::Sequence(rules.matchers.iter().map(entry).collect())
}

fn built_in_value(rules: &SignalRules) -> Value {
    let names = rules.built_in.iter().map(|built_in| built_in.signal().to_string());
    Value::Sequence(names.map(Value::String).collect())
}

/// Every setting, in the order of the reference.
pub(super) fn keys() -> impl Iterator<Item = &'static Key> {
    let process = process::PROCESS.iter().chain(notifications::NOTIFICATIONS);
    process.chain(node::NODE).chain(leader::LEADER)
}

/// The key at a dotted path, or the key that had this path before.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    let former = || keys().find(|key| key.former == Some(path));
    keys().find(|key| key.path == path).or_else(former)
}

/// Whether a dotted path is a section that holds keys, now or before.
pub(super) fn is_section(path: &str) -> bool {
    let holds = |key: &str| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
    keys().any(|key| holds(key.path) || key.former.is_some_and(holds))
}
