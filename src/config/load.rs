//! From a settings file and flags to [`Settings`], or to all violations together.
//!
//! The file becomes a YAML value, whose keys are then visited one by one, because a typed reader stops at the first
//! unknown key. No other module of the agent reads YAML.

use std::path::Path;

use headgate_core::settings::{Printable, SettingsError, Violation, describe_value, read_text_file};
use serde_yaml::{Mapping, Value};

use super::Settings;
use super::conflicts::conflicts;
use super::keys::{Key, find, is_section, keys};
use super::suggestion::unknown_key;
use super::value::InvalidValue;
use super::version::{HEADER, check_version, header};

/// A flag that overrides a key of the file.
#[derive(Clone, Debug)]
pub struct FlagOverride {
    /// The flag with its dashes, for violations.
    pub flag: &'static str,
    /// The dotted key it overrides.
    pub key: &'static str,
    /// The value as typed.
    pub value: String,
}

impl FlagOverride {
    /// The override of a flag that was given, or `None`.
    #[must_use]
    pub fn given(flag: &'static str, key: &'static str, value: Option<&str>) -> Option<Self> {
        let value = value?.to_owned();
        Some(Self { flag, key, value })
    }
}

/// Loads settings: defaults, then the file, then the flags.
///
/// # Errors
/// Every violation in the file and the flags, each with its origin, key, value and what is allowed.
pub fn load(file: Option<&Path>, overrides: &[FlagOverride]) -> Result<Settings, SettingsError> {
    let mut loader = Loader::default();
    if let Some(path) = file {
        let origin = path.display().to_string();
        match read_text_file(path, "a YAML file, as in the settings reference").and_then(|text| parse(&text)) {
            Ok(document) => loader.apply_document(&origin, &document),
            Err(message) => loader.violations.push(Violation {
                origin,
                key: None,
                message,
            }),
        }
    }
    for flag in overrides {
        let value = Value::String(flag.value.clone());
        match find(flag.key) {
            Some(key) => loader.set(flag.flag, key, &value),
            None => loader.violations.push(unknown_key(flag.flag, flag.key, &value)),
        }
    }
    loader.finish(file)
}

/// Parses a document into its top-level keys. An empty document has none.
fn parse(text: &str) -> Result<Mapping, String> {
    match serde_yaml::from_str::<Value>(text) {
        Ok(Value::Mapping(mapping)) => Ok(mapping),
        Ok(Value::Null) => Ok(Mapping::new()),
        Ok(other) => Err(format!(
            "holds {} at its top; allowed: keys with values",
            describe_value(&other)
        )),
        // The text of the error ends with the line and column.
        Err(error) => Err(format!(
            "is not YAML: {}; allowed: one YAML document of keys with values",
            Printable(&error.to_string())
        )),
    }
}

/// What has been read so far.
#[derive(Default)]
struct Loader {
    settings: Settings,
    violations: Vec<Violation>,
}

impl Loader {
    fn apply_document(&mut self, origin: &str, document: &Mapping) {
        self.violations.extend(check_version(origin, document));
        self.apply_section(origin, "", document);
    }

    fn apply_section(&mut self, origin: &str, prefix: &str, section: &Mapping) {
        for (name, value) in section {
            let name = match name {
                Value::String(name) if !name.is_empty() => name,
                other => {
                    let key = (!prefix.is_empty()).then(|| prefix.to_owned());
                    let message = format!("{} is not a key; allowed: names", describe_value(other));
                    self.violations.push(Violation {
                        origin: origin.to_owned(),
                        key,
                        message,
                    });
                    continue;
                }
            };
            let path = if prefix.is_empty() {
                name.clone()
            } else {
                format!("{prefix}.{name}")
            };
            match (value, find(&path)) {
                (Value::Mapping(inner), _) if is_section(&path) => self.apply_section(origin, &path, inner),
                (_, Some(key)) => self.set(origin, key, value),
                // Both were checked before.
                _ if HEADER.iter().any(|(key, _)| *key == path) => {}
                _ => self.violations.push(unknown_key(origin, &path, value)),
            }
        }
    }

    fn set(&mut self, origin: &str, key: &Key, value: &Value) {
        let messages = match (key.set)(&mut self.settings, value) {
            Ok(()) => Vec::new(),
            Err(InvalidValue::Value(allowed)) => {
                vec![format!("{} is not allowed; allowed: {allowed}", describe_value(value))]
            }
            Err(InvalidValue::Items(items)) => items
                .iter()
                .map(|item| {
                    format!(
                        "item {}, {}, is not allowed; allowed: {}",
                        item.number, item.shown, item.allowed
                    )
                })
                .collect(),
        };
        self.violations.extend(messages.into_iter().map(|message| Violation {
            origin: origin.to_owned(),
            key: Some(key.path.to_owned()),
            message,
        }));
    }

    fn finish(mut self, file: Option<&Path>) -> Result<Settings, SettingsError> {
        if self.violations.is_empty() {
            let origin = file.map_or_else(|| "settings".to_owned(), |path| path.display().to_string());
            let conflicts = conflicts(&self.settings).map(|(key, message)| Violation {
                origin: origin.clone(),
                key: Some(key.to_owned()),
                message,
            });
            self.violations = conflicts.collect();
        }
        if self.violations.is_empty() {
            Ok(self.settings)
        } else {
            Err(SettingsError(self.violations))
        }
    }
}

/// The settings as a settings file.
pub(super) fn to_yaml(settings: &Settings) -> String {
    let (mut document, mut settings) = (header(), settings.clone());
    for key in keys() {
        insert(&mut document, key.path, (key.get)(&mut settings));
    }
    serde_yaml::to_string(&document).unwrap_or_else(|error| format!("# settings cannot be shown: {error}\n"))
}

/// Inserts a value at a dotted path, with the sections above it.
fn insert(section: &mut Mapping, path: &str, value: Value) {
    let Some((name, rest)) = path.split_once('.') else {
        section.insert(Value::from(path), value);
        return;
    };
    let inner = section
        .entry(Value::from(name))
        .or_insert_with(|| Value::Mapping(Mapping::new()));
    if let Value::Mapping(inner) = inner {
        insert(inner, rest, value);
    }
}

#[cfg(test)]
mod tests;
