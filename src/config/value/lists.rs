//! Values that are lists. Each replaces its default as a whole, and every invalid item is reported.

use std::collections::BTreeSet;

use headgate_agent::connections::Prefix;
use headgate_agent::health::services::Cidr;
use headgate_core::node::{BuiltInSignal, SignalMatcher};
use headgate_core::settings::{Printable, describe_value};
use headgate_maintenance::automatic::Cause;
use serde_json::{Map, json};
use serde_yaml::Value;

use super::{InvalidItem, InvalidValue, ValueType, any_text, duration_schema};

/// Of an invalid section in a list.
const MAX_SHOWN_CHARS: usize = 200;

/// A list whose items `parse` reads, with the names that it remembers of those before.
fn list<T: 'static>(
    schema: serde_json::Value,
    allowed: String,
    parse: impl Fn(&Value, &mut BTreeSet<String>) -> Result<T, String> + Send + Sync + 'static,
    show: impl Fn(&T) -> Value + Send + Sync + 'static,
) -> ValueType<Vec<T>> {
    ValueType::new(
        schema,
        move |value| {
            let items = value.as_sequence().ok_or_else(|| allowed.clone())?;
            let (mut valid, mut invalid, mut seen) = (Vec::with_capacity(items.len()), Vec::new(), BTreeSet::new());
            for (index, item) in items.iter().enumerate() {
                match parse(item, &mut seen) {
                    Ok(value) => valid.push(value),
                    Err(allowed) => invalid.push(InvalidItem {
                        number: index + 1,
                        shown: describe_item(item),
                        allowed,
                    }),
                }
            }
            if invalid.is_empty() {
                Ok(valid)
            } else {
                Err(InvalidValue::Items(invalid))
            }
        },
        move |items| Value::Sequence(items.iter().map(&show).collect()),
    )
}

/// The same list as a set.
fn set<T: Ord + Clone + 'static>(list: ValueType<Vec<T>>) -> ValueType<BTreeSet<T>> {
    let ValueType { parse, show, schema } = list;
    ValueType::new(
        schema,
        move |value| Ok::<_, InvalidValue>(parse(value)?.into_iter().collect()),
        move |items: &BTreeSet<T>| show(&items.iter().cloned().collect()),
    )
}

/// An item as a violation shows it; a section on one line, cut after 200 characters.
fn describe_item(item: &Value) -> String {
    let Ok(text) = serde_json::to_string(item) else {
        return describe_value(item);
    };
    if !item.is_mapping() {
        return describe_value(item);
    }
    let shown: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    let rest = if shown.len() < text.len() { "…" } else { "" };
    format!("{}{rest}", Printable(&shown))
}

/// Taint keys and other matchers, none twice.
pub(in crate::config) fn signal_matchers() -> ValueType<Vec<SignalMatcher>> {
    let with = |required: &[&str], optional: &[&str]| {
        let all = required.iter().chain(optional);
        let properties: Map<_, _> = all.map(|name| ((*name).to_owned(), any_text())).collect();
        json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties })
    };
    let only = |name: &str, inner: serde_json::Value| json!({ "type": "object", "additionalProperties": false, "required": [name], "properties": { name: inner } });
    let cordon = json!({
        "type": "object", "additionalProperties": false, "required": ["unschedulable"],
        "properties": { "unschedulable": { "const": true }, "for": duration_schema() },
    });
    let matchers = [
        any_text(),
        only("taint", any_text()),
        only("condition", with(&["type", "status"], &["reason", "messagePrefix"])),
        only("label", with(&["key"], &["value"])),
        only("annotation", with(&["key"], &["value"])),
        cordon,
    ];
    list(
        json!({ "type": "array", "uniqueItems": true, "items": { "anyOf": matchers } }),
        "a list of taint keys and other matchers; it replaces the default list as a whole".to_owned(),
        |item, seen| {
            // A key of YAML that JSON does not have is shown as no matcher.
            let matcher = SignalMatcher::parse(&serde_json::to_value(item).unwrap_or_default())?;
            if seen.insert(matcher.to_string()) {
                Ok(matcher)
            } else if matches!(matcher, SignalMatcher::Taint(_)) {
                Err("each taint key once".to_owned())
            } else {
                Err(format!("each matcher once; {matcher} is listed before"))
            }
        },
        |matcher| serde_yaml::to_value(matcher.to_value()).unwrap_or_default(),
    )
}

/// Some of these built-in signals, none twice.
pub(in crate::config) fn built_in_signals(allowed: &'static [BuiltInSignal]) -> ValueType<BTreeSet<BuiltInSignal>> {
    word_set(allowed, |built_in| built_in.signal().to_string(), "each signal once")
}

/// Causes of maintenances.
pub(in crate::config) fn causes() -> ValueType<BTreeSet<Cause>> {
    word_set(&Cause::ALL, |cause| cause.as_str().to_owned(), "each cause once")
}

/// Some of several words, each of them once.
fn word_set<T: Copy + Ord + Send + Sync>(
    allowed: &'static [T],
    name: fn(&T) -> String,
    once: &'static str,
) -> ValueType<BTreeSet<T>> {
    let names: Vec<_> = allowed.iter().map(name).collect();
    let all = names.join(", ");
    set(list(
        json!({ "type": "array", "uniqueItems": true, "items": { "enum": names } }),
        format!("a list of {all}; it replaces the default list as a whole"),
        move |item, seen| {
            let found = allowed.iter().find(|word| item.as_str() == Some(&name(word)));
            match found {
                None => Err(format!("one of {all}")),
                Some(word) if !seen.insert(name(word)) => Err(once.to_owned()),
                Some(word) => Ok(*word),
            }
        },
        move |word| Value::String(name(word)),
    ))
}

/// Address ranges.
pub(in crate::config) fn address_ranges() -> ValueType<Vec<Cidr>> {
    list(
        json!({ "type": "array", "items": any_text() }),
        "a list of address ranges, such as [10.0.0.0/8, \"2001:db8::/32\"]".to_owned(),
        |item, _| {
            let range = item.as_str().and_then(|text| text.parse().ok());
            range.ok_or_else(|| "an address range, such as 10.0.0.0/8 or 2001:db8::/32".to_owned())
        },
        |range: &Cidr| Value::String(range.to_string()),
    )
}

/// Sources of connections.
pub(in crate::config) fn prefixes() -> ValueType<Vec<Prefix>> {
    list(
        json!({ "type": "array", "items": any_text() }),
        "a list of addresses or prefixes, such as [10.0.9.4, \"2001:db8::/32\"]".to_owned(),
        |item, _| {
            let prefix = item.as_str().and_then(|text| text.parse().ok());
            prefix.ok_or_else(|| "an address or a prefix, such as 10.0.9.4 or 2001:db8::/32".to_owned())
        },
        |prefix: &Prefix| Value::String(prefix.to_string()),
    )
}

/// Names of events.
pub(in crate::config) fn event_names() -> ValueType<BTreeSet<String>> {
    let is_name = |text: &&str| {
        text.starts_with(|first: char| first.is_ascii_uppercase())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    set(list(
        json!({ "type": "array", "items": any_text() }),
        "a list of event names in PascalCase, such as [NodeSignalled, NodeSignalsEnded]".to_owned(),
        move |item, _| {
            let name = item.as_str().filter(is_name).map(str::to_owned);
            name.ok_or_else(|| "an event name in PascalCase, such as NodeSignalled".to_owned())
        },
        |name| Value::from(name.as_str()),
    ))
}
