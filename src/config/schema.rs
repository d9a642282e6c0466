//! The JSON schema of a settings file, generated from the table of keys. Pure.
//!
//! It is for editors and for `helm`; [`super::load()`] is the authority: it knows bounds of
//! durations and conflicts, which a schema cannot express.

use serde_json::{Map, Value, json};

use super::Settings;
use super::keys::keys;
use super::version::HEADER;

/// The schema of a settings file of `v1alpha1`, as JSON Schema 2020-12.
pub fn schema() -> Value {
    let mut defaults = Settings::default();
    let [(_, version), (_, kind)] = HEADER;
    let mut root = object("The settings of headgate agent. docs/reference/settings.md is the reference.");
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!(format!("{kind} {version}"));
    root["required"] = json!(HEADER.map(|(key, _)| key));
    for (key, value) in HEADER {
        root["properties"][key] = json!({ "const": value });
    }
    for key in keys() {
        let mut schema = key.schema.clone();
        schema["description"] = json!(key.about);
        // A default that JSON cannot express is left out.
        if let Ok(default) = serde_json::to_value((key.get)(&mut defaults)) {
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
