//! The JSON schema of a settings file, generated from the table of keys, and the schemas of single values. Pure.
//!
//! It has the present spellings only. It is for editors and for `helm`; [`super::load()`] is the authority: it knows bounds of
//! durations and conflicts, which a schema cannot express.

use headgate_node::BuiltInSignal;
use serde_json::{Map, Value, json};

use super::Settings;
use super::keys::keys;
use super::version::HEADER;

/// The schema of a settings file of `v1alpha1`, as JSON Schema 2020-12.
#[must_use]
pub fn schema() -> Value {
    let defaults = Settings::default();
    let [(_, version), (_, kind)] = HEADER;
    let mut root = object("The settings of headgate agent. docs/settings.md is the reference.");
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!(format!("{kind} {version}"));
    root["required"] = json!(HEADER.map(|(key, _)| key));
    for (key, value) in HEADER {
        root["properties"][key] = json!({ "const": value });
    }
    for key in keys() {
        let mut schema = (key.schema)();
        if key.is_optional {
            schema = json!({ "anyOf": [schema, { "type": "null" }] });
        }
        schema["description"] = json!(key.about);
        // A default that JSON cannot express is left out.
        if let Ok(default) = serde_json::to_value((key.get)(&defaults)) {
            schema["default"] = default;
        }
        let mut section = &mut root;
        let mut rest = key.path;
        while let Some((name, inner)) = rest.split_once('.') {
            let properties = &mut section["properties"];
            if properties.get(name).is_none() {
                properties[name] = object(&format!("Settings whose path begins with {name}."));
            }
            section = &mut section["properties"][name];
            rest = inner;
        }
        section["properties"][rest] = schema;
    }
    root
}

fn object(description: &str) -> Value {
    json!({
        "type": "object",
        "description": description,
        "additionalProperties": false,
        "properties": Value::Object(Map::new()),
    })
}

pub(super) fn boolean() -> Value {
    json!({ "type": "boolean" })
}

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

pub(super) fn texts() -> Value {
    json!({ "type": "array", "items": text() })
}

/// A path from the root directory.
pub(super) fn absolute_path() -> Value {
    json!({ "type": "string", "pattern": "^/" })
}

/// An address with a port, or without: then the port is `port`.
pub(super) fn bind_address(port: u16) -> Value {
    json!({ "type": "string", "examples": [format!("[::]:{port}"), format!("0.0.0.0:{port}")] })
}

/// A duration with its unit.
pub(super) fn duration() -> Value {
    json!({ "type": "string", "pattern": "[0-9]", "examples": ["500ms", "5s", "1m30s"] })
}

/// One of several words. YAML 1.1 reads an `off` without quotes as false.
pub(super) fn words(words: &[&str]) -> Value {
    let mut values: Vec<Value> = words.iter().map(|word| json!(word)).collect();
    if words.contains(&"off") {
        values.push(json!(false));
    }
    json!({ "enum": values })
}

/// As [`words`], where true means `on`.
pub(super) fn words_or_booleans(all: &[&str]) -> Value {
    let mut schema = words(all);
    if let Some(values) = schema["enum"].as_array_mut() {
        values.push(json!(true));
    }
    schema
}

/// A whole number from 0 to `max`.
pub(super) fn number(max: u32) -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": max })
}

/// A number, or a percentage such as `20%`.
pub(super) fn number_or_percentage(least: u32) -> Value {
    json!({ "anyOf": [{ "type": "integer", "minimum": least }, { "type": "string", "pattern": "^[0-9]+%?$" }] })
}

/// A list of some of the built-in signals.
pub(super) fn built_in_signals(allowed: &[BuiltInSignal]) -> Value {
    let names: Vec<_> = allowed.iter().map(|built_in| built_in.signal().to_string()).collect();
    json!({ "type": "array", "uniqueItems": true, "items": { "enum": names } })
}

/// A list of taint keys and matchers.
pub(super) fn signal_matchers() -> Value {
    let with = |required: &[&str], optional: &[&str]| {
        let all = required.iter().chain(optional);
        let properties: Map<_, _> = all.map(|name| ((*name).to_owned(), text())).collect();
        json!({ "type": "object", "additionalProperties": false, "required": required, "properties": properties })
    };
    let only = |name: &str, inner: Value| json!({ "type": "object", "additionalProperties": false, "required": [name], "properties": { name: inner } });
    let cordon = json!({
        "type": "object", "additionalProperties": false, "required": ["unschedulable"],
        "properties": { "unschedulable": { "const": true }, "for": duration() },
    });
    let matchers = [
        text(),
        only("taint", text()),
        only("condition", with(&["type", "status"], &["reason", "messagePrefix"])),
        only("label", with(&["key"], &["value"])),
        only("annotation", with(&["key"], &["value"])),
        cordon,
    ];
    json!({ "type": "array", "uniqueItems": true, "items": { "anyOf": matchers } })
}
