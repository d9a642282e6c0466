//! How the values of settings are written: for each type of value one function with its parser, the reverse, and its JSON schema.
//!
//! A parser takes YAML, or the text of a flag as a string. It returns the value, or the text that completes "allowed: …"; for a
//! list it returns such a text for each invalid item. `value/lists.rs` has the lists, `value/servers.rs` what is reached over a
//! network.

mod lists;
mod servers;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use headgate_core::settings::IntOrPercent;
use headgate_core::settings::{format_duration, parse_duration, scalar_text};
use serde_json::json;
use serde_yaml::Value;

use super::SecretName;

pub(super) use lists::{causes, event_names, extra_signals, known_signals, notice_sources, prefixes};
pub(super) use servers::{bind_address, health_server, http_server, notification_template};

/// Why the value of a setting is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InvalidValue {
    /// The whole value is invalid; the text says what is allowed.
    Value(String),
    /// These items of a list are invalid.
    Items(Vec<InvalidItem>),
}

/// An item of a list that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidItem {
    /// The position in the list, from 1.
    pub(super) number: usize,
    /// The item as an error shows it.
    pub(super) shown: String,
    /// The allowed values, in words.
    pub(super) allowed: String,
}

impl From<String> for InvalidValue {
    fn from(allowed: String) -> Self {
        Self::Value(allowed)
    }
}

type Parser<T> = Box<dyn Fn(&Value) -> Result<T, InvalidValue> + Send + Sync>;
type Printer<T> = Box<dyn Fn(&T) -> Value + Send + Sync>;

/// How values of one type are written.
pub(super) struct ValueType<T> {
    /// Reads a value, or says what is allowed.
    pub(super) parse: Parser<T>,
    /// The value in a settings file.
    pub(super) show: Printer<T>,
    /// The JSON schema of all values.
    pub(super) schema: serde_json::Value,
}

impl<T: 'static> ValueType<T> {
    fn new<E: Into<InvalidValue>>(
        schema: serde_json::Value,
        parse: impl Fn(&Value) -> Result<T, E> + Send + Sync + 'static,
        show: impl Fn(&T) -> Value + Send + Sync + 'static,
    ) -> Self {
        Self {
            parse: Box::new(move |value| parse(value).map_err(Into::into)),
            show: Box::new(show),
            schema,
        }
    }

    /// A text.
    fn text(
        schema: serde_json::Value,
        allowed: impl Into<String>,
        parse: impl Fn(&str) -> Option<T> + Send + Sync + 'static,
        show: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        let allowed = allowed.into();
        Self::new(
            schema,
            move |value| value.as_str().and_then(&parse).ok_or_else(|| allowed.clone()),
            move |value| Value::String(show(value)),
        )
    }
}

/// A value, or null for none.
pub(super) fn optional<T: 'static>(inner: ValueType<T>) -> ValueType<Option<T>> {
    let ValueType { parse, show, schema } = inner;
    ValueType::new(
        json!({ "anyOf": [schema, { "type": "null" }] }),
        move |value| match value {
            Value::Null => Ok(None),
            value => parse(value).map(Some).map_err(|invalid| match invalid {
                InvalidValue::Value(allowed) => InvalidValue::Value(format!("null, or {allowed}")),
                items @ InvalidValue::Items(_) => items,
            }),
        },
        move |value| value.as_ref().map_or(Value::Null, &show),
    )
}

/// The pattern of a label of a DNS name.
const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?";

/// The schema of any text.
fn any_text() -> serde_json::Value {
    json!({ "type": "string" })
}

/// `true` or `false`.
pub(super) fn boolean() -> ValueType<bool> {
    ValueType::new(
        json!({ "type": "boolean" }),
        |value| value.as_bool().ok_or_else(|| "true or false".to_owned()),
        |flag| Value::Bool(*flag),
    )
}

/// `true` or `false` as the text of a flag.
pub(super) fn boolean_flag() -> ValueType<bool> {
    let schema = json!({ "enum": ["true", "false"] });
    ValueType::text(schema, "true or false", |text| text.parse().ok(), ToString::to_string)
}

/// The schema of a duration with its unit.
fn duration_schema() -> serde_json::Value {
    json!({ "type": "string", "pattern": "[0-9]", "examples": ["500ms", "5s", "1m30s"] })
}

/// A duration from `min` to `max` with its unit, such as `1m30s`.
pub(super) fn duration(min: Duration, max: Duration) -> ValueType<Duration> {
    ValueType::new(
        duration_schema(),
        move |value| parse_duration(&scalar_text(value).unwrap_or_default(), min, max),
        |duration| Value::String(format_duration(*duration)),
    )
}

/// The word of a feature that is switched off, among values of another type.
const DISABLED: &str = "Disabled";

/// One of several words.
pub(super) fn words<T: Copy + PartialEq + Send + Sync>(all: &'static [T], word: fn(T) -> &'static str) -> ValueType<T> {
    let names: Vec<_> = all.iter().map(|value| word(*value)).collect();
    ValueType::text(
        json!({ "enum": names }),
        format!("one of {}", names.join(", ")),
        move |given| all.iter().copied().find(|value| word(*value) == given),
        move |value| word(*value).to_owned(),
    )
}

/// A whole number from 1 to `max`.
pub(super) fn positive_number(max: u32) -> ValueType<NonZeroU32> {
    ValueType::new(
        json!({ "type": "integer", "minimum": 1, "maximum": max }),
        move |value| {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            let number = number.filter(|number| *number <= max).and_then(NonZeroU32::new);
            number.ok_or_else(|| format!("a whole number from 1 to {max}"))
        },
        |number| Value::from(number.get()),
    )
}

/// Pools have up to 5,000 entries.
const MAX_ENTRIES: u32 = 5000;

/// A number of pool entries from 1, or a percentage from 1% to 100%.
pub(super) fn int_or_percent() -> ValueType<IntOrPercent> {
    fn number<N: FromStr>(text: &str) -> Option<N> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_number)
    }
    let schema = json!({ "anyOf": [
        { "type": "integer", "minimum": 1, "maximum": MAX_ENTRIES },
        { "type": "string", "pattern": "^0*([1-9][0-9]?|100)%$|^0*([1-9][0-9]{0,2}|[1-4][0-9]{3}|5000)$" },
    ] });
    ValueType::new(
        schema,
        move |value| {
            let text = scalar_text(value).unwrap_or_default();
            let parsed = match text.strip_suffix('%') {
                Some(percent) => number(percent)
                    .filter(|percent| (1..=100).contains(percent))
                    .map(IntOrPercent::Percent),
                None => number(&text)
                    .filter(|count| (1..=MAX_ENTRIES).contains(count))
                    .map(IntOrPercent::Int),
            };
            parsed.ok_or_else(|| format!("a number from 1 to {MAX_ENTRIES}, or a percentage from 1% to 100%"))
        },
        |value| match value {
            IntOrPercent::Int(count) => Value::from(*count),
            percent @ IntOrPercent::Percent(_) => Value::String(percent.to_string()),
        },
    )
}

/// The same, or `Disabled`, which is none.
pub(super) fn int_or_percent_or_disabled() -> ValueType<IntOrPercent> {
    let ValueType { parse, show, schema } = int_or_percent();
    ValueType::new(
        json!({ "anyOf": [schema, { "const": DISABLED }] }),
        move |value| {
            if value.as_str() == Some(DISABLED) {
                return Ok(IntOrPercent::Int(0));
            }
            parse(value).map_err(|invalid| match invalid {
                InvalidValue::Value(allowed) => InvalidValue::Value(format!("{DISABLED}, {allowed}")),
                items @ InvalidValue::Items(_) => items,
            })
        },
        move |value| match value {
            IntOrPercent::Int(0) => Value::from(DISABLED),
            value => show(value),
        },
    )
}

fn path(allowed: &str, pattern: &str, is_allowed: fn(&str) -> bool) -> ValueType<PathBuf> {
    let parse = move |text: &str| (text.starts_with('/') && is_allowed(text)).then(|| text.into());
    let show = |path: &PathBuf| path.display().to_string();
    ValueType::text(json!({ "type": "string", "pattern": pattern }), allowed, parse, show)
}

/// The absolute path of a directory.
pub(super) fn directory() -> ValueType<PathBuf> {
    path("an absolute path, such as /var/lib/headgate", "^/", |_| true)
}

/// The absolute path of a file.
pub(super) fn file() -> ValueType<PathBuf> {
    path(
        "the absolute path of a file, such as /etc/kubernetes/azure.json",
        r"^/[\s\S]*[^/]$",
        |text| !text.ends_with('/'),
    )
}

/// `NAMESPACE/NAME` of a Secret.
pub(super) fn secret_name() -> ValueType<SecretName> {
    let allowed = "a Secret as NAMESPACE/NAME, such as kube-system/azure-cloud-provider";
    let pattern = format!("^{DNS_LABEL}/{DNS_LABEL}(\\.{DNS_LABEL})*$");
    let schema = json!({ "type": "string", "pattern": pattern });
    ValueType::text(schema, allowed, |text| text.parse().ok(), SecretName::to_string)
}

/// The largest whole number up to which each has a representation of its own in JSON as most programs read it.
const MAX_EXACT: u64 = (1 << 53) - 1;

/// A cluster name that can be the name of a load balancer.
pub(super) fn cluster_name() -> ValueType<String> {
    let is_name = |text: &String| {
        (1..=71).contains(&text.len())
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let allowed = "1 to 71 letters, digits, dashes, underscores and dots, as cloud-controller-manager's --cluster-name";
    // A whole number is a name, too. Of others YAML changes the digits, and of larger ones helm.
    let is_text = |value: &&Value| value.is_string() || value.as_u64().is_some_and(|number| number <= MAX_EXACT);
    ValueType::new(
        json!({ "anyOf": [{ "type": "string", "pattern": "^[A-Za-z0-9][-A-Za-z0-9_.]{0,70}$" }, { "type": "integer", "minimum": 0, "maximum": MAX_EXACT }] }),
        move |value| {
            let text = Some(value).filter(is_text).and_then(scalar_text);
            text.filter(is_name).ok_or_else(|| allowed.to_owned())
        },
        |name| Value::from(name.as_str()),
    )
}

#[cfg(test)]
mod tests;
