//! Values that are lists. Every invalid item is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_agent::connections::parse_prefix;
use headgate_core::node::{Effect, ExtraSignal, KnownSignal};
use headgate_core::settings::{Printable, describe_value, format_duration, parse_duration};
use headgate_maintenance::automatic::Cause;
use ipnet::IpNet;
use serde_json::json;
use serde_yaml::Value;

use super::{DNS_LABEL, InvalidItem, InvalidValue, ValueType, any_text, duration_schema};
use crate::config::NoticeSource;

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

/// Names of signals.
pub(in crate::config) fn known_signals() -> ValueType<BTreeSet<KnownSignal>> {
    word_set(&KnownSignal::ALL, KnownSignal::as_str, "each signal once")
}

/// Sources of Azure's notices.
pub(in crate::config) fn notice_sources() -> ValueType<BTreeSet<NoticeSource>> {
    word_set(&NoticeSource::ALL, NoticeSource::as_str, "each source once")
}

/// Entries of `signals.extra`, none twice.
pub(in crate::config) fn extra_signals() -> ValueType<Vec<ExtraSignal>> {
    let entry = |kind: &str, inner: serde_json::Value, effects: &[Effect]| {
        let effects: Vec<_> = effects.iter().map(|effect| effect.as_str()).collect();
        json!({ "type": "object", "additionalProperties": false, "required": [kind, "for"], "properties": {
            kind: inner, "for": { "type": "array", "minItems": 1, "items": { "enum": effects } } } })
    };
    let fields = |required: &[&str], properties: serde_json::Value| json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties });
    let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    let name = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?";
    let prefix = format!("({DNS_LABEL}(\\.{DNS_LABEL})*/)");
    let key = text(&format!("^{prefix}?{name}$"));
    // Or how one begins, with a star.
    let begin = "[A-Za-z0-9][-A-Za-z0-9_.]{0,61}";
    let taint = text(&format!(r"^{prefix}?{name}$|^{prefix}({begin})?\*$|^{begin}\*$"));
    // YAML reads a bare `True` as a boolean.
    let condition = json!({ "type": key, "status": { "enum": ["True", "False", "Unknown", true, false] },
        "reason": any_text(), "messagePrefix": any_text() });
    let names = |effects: &[Effect]| {
        let signals = KnownSignal::ALL
            .into_iter()
            .filter(|signal| signal.allowed_effects() == effects);
        let names: Vec<_> = signals.map(KnownSignal::as_str).collect();
        json!({ "enum": names })
    };
    let mut cordon = entry("signal", json!({ "const": KnownSignal::Cordon.as_str() }), &Effect::ALL);
    cordon["properties"]["after"] = duration_schema();
    let entries = [
        entry("signal", names(&Effect::ALL), &Effect::ALL),
        entry("signal", names(&[Effect::Health]), &[Effect::Health]),
        cordon,
        entry("taint", taint, &Effect::ALL),
        entry("condition", fields(&["type", "status"], condition), &Effect::ALL),
        entry(
            "label",
            fields(&["key"], json!({ "key": key, "value": text(&format!("^({name})?$")) })),
            &Effect::ALL,
        ),
        entry(
            "annotation",
            fields(&["key"], json!({ "key": key, "value": any_text() })),
            &Effect::ALL,
        ),
    ];
    list(
        json!({ "type": "array", "uniqueItems": true, "items": { "anyOf": entries } }),
        "a list of entries such as {signal: cordon, for: [adminState]} or {taint: example.com/*, for: [health]}"
            .to_owned(),
        |item, seen| {
            // A key of YAML that JSON does not have is shown as no entry.
            let extra = ExtraSignal::parse(&serde_json::to_value(item).unwrap_or_default())?;
            if seen.insert(extra.name()) {
                Ok(extra)
            } else {
                Err(format!("each signal once; {} is listed before", extra.name()))
            }
        },
        |extra| serde_yaml::to_value(extra.to_value()).unwrap_or_default(),
    )
}

/// Of a time that a cause has.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_TIMEOUT: Duration = Duration::from_hours(24);

/// Causes of maintenances, each with the time that it has, if it is not the default.
pub(in crate::config) fn causes() -> ValueType<BTreeMap<Cause, Option<Duration>>> {
    let names = |causes: &mut dyn Iterator<Item = Cause>| causes.map(Cause::as_str).collect::<Vec<_>>();
    let all = names(&mut Cause::ALL.into_iter());
    let timed = names(&mut Cause::ALL.into_iter().filter(|cause| cause.default_timeout().is_some()));
    let allowed = format!(
        "one of {}, or {{cause: {}, timeout: 1m}}",
        all.join(", "),
        timed.join(" or ")
    );
    let with_timeout = json!({ "type": "object", "additionalProperties": false, "required": ["cause", "timeout"],
        "properties": { "cause": { "enum": timed }, "timeout": duration_schema() } });
    let ValueType { parse, show, schema } = list(
        json!({ "type": "array", "uniqueItems": true, "items": { "anyOf": [{ "enum": all }, with_timeout] } }),
        format!("a list of {}", all.join(", ")),
        move |item, seen| {
            let (cause, timeout) = parse_cause(item).map_err(|detail| detail.unwrap_or_else(|| allowed.clone()))?;
            if seen.insert(cause.as_str().to_owned()) {
                Ok((cause, timeout))
            } else {
                Err("each cause once".to_owned())
            }
        },
        |(cause, timeout)| match timeout {
            None => Value::from(cause.as_str()),
            Some(timeout) => {
                let fields = [
                    ("cause", cause.as_str().to_owned()),
                    ("timeout", format_duration(*timeout)),
                ];
                Value::Mapping(
                    fields
                        .into_iter()
                        .map(|(key, value)| (key.into(), value.into()))
                        .collect(),
                )
            }
        },
    );
    ValueType::new(
        schema,
        move |value| Ok::<_, InvalidValue>(parse(value)?.into_iter().collect()),
        move |causes: &BTreeMap<_, _>| show(&causes.iter().map(|(cause, timeout)| (*cause, *timeout)).collect()),
    )
}

/// A cause, or one with a time; an error says what is allowed if it is about the time.
fn parse_cause(item: &Value) -> Result<(Cause, Option<Duration>), Option<String>> {
    let named = |value: &Value| {
        Cause::ALL
            .into_iter()
            .find(|cause| value.as_str() == Some(cause.as_str()))
    };
    let Value::Mapping(fields) = item else {
        return named(item).map(|cause| (cause, None)).ok_or(None);
    };
    let cause = fields
        .get("cause")
        .and_then(named)
        .filter(|cause| cause.default_timeout().is_some());
    let (Some(cause), Some(timeout), 2) = (cause, fields.get("timeout"), fields.len()) else {
        return Err(None);
    };
    let timeout = parse_duration(timeout.as_str().unwrap_or_default(), MIN_TIMEOUT, MAX_TIMEOUT);
    timeout.map(|timeout| (cause, Some(timeout))).map_err(Some)
}

/// Some of several words, each of them once.
fn word_set<T: Copy + Ord + Send + Sync>(
    allowed: &'static [T],
    name: fn(T) -> &'static str,
    once: &'static str,
) -> ValueType<BTreeSet<T>> {
    let names: Vec<_> = allowed.iter().map(|word| name(*word)).collect();
    let all = names.join(", ");
    set(list(
        json!({ "type": "array", "uniqueItems": true, "items": { "enum": names } }),
        format!("a list of {all}"),
        move |item, seen| {
            let found = allowed.iter().copied().find(|word| item.as_str() == Some(name(*word)));
            match found {
                None => Err(format!("one of {all}")),
                Some(word) if !seen.insert(name(word).to_owned()) => Err(once.to_owned()),
                Some(word) => Ok(word),
            }
        },
        move |word| Value::from(name(*word)),
    ))
}

/// Sources of connections.
pub(in crate::config) fn prefixes() -> ValueType<Vec<IpNet>> {
    list(
        json!({ "type": "array", "items": { "type": "string", "examples": ["10.0.9.4", "2001:db8::/32"] } }),
        "a list of addresses or prefixes, such as [10.0.9.4, \"2001:db8::/32\"]".to_owned(),
        |item, _| {
            let prefix = item.as_str().and_then(|text| parse_prefix(text).ok());
            prefix.ok_or_else(|| "an address or a prefix, such as 10.0.9.4 or 2001:db8::/32".to_owned())
        },
        |prefix: &IpNet| Value::String(prefix.to_string()),
    )
}

/// Names of events.
pub(in crate::config) fn event_names() -> ValueType<BTreeSet<String>> {
    let is_name = |text: &&str| {
        text.starts_with(|first: char| first.is_ascii_uppercase())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    set(list(
        json!({ "type": "array", "items": { "type": "string", "pattern": "^[A-Z][A-Za-z0-9]*$" } }),
        "a list of event names in PascalCase, such as [NodeSignalled, NodeSignalsEnded]".to_owned(),
        move |item, _| {
            let name = item.as_str().filter(is_name).map(str::to_owned);
            name.ok_or_else(|| "an event name in PascalCase, such as NodeSignalled".to_owned())
        },
        |name| Value::from(name.as_str()),
    ))
}
