//! From a settings file and flags to [`Settings`], or to all violations together.
//!
//! The file becomes a YAML value, whose keys are then visited one by one, because a typed reader stops at the first
//! unknown key. No other module of the agent reads YAML. What a file has of the spellings before `v1alpha1` is read, and
//! becomes a notice.

use std::collections::BTreeMap;
use std::path::Path;

use headgate_settings::{Printable, SettingsError, Violation, describe_value, read_text_file};
use serde_yaml::{Mapping, Value};

use super::Settings;
use super::conflicts::conflicts;
use super::keys::{Key, find, is_section, keys};
use super::notice::Notice;
use super::suggestion::{Spelling, unknown_key};
use super::value::{InvalidValue, NONE};
use super::version::{API_VERSION, KIND, check_version};

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
    load_with_notices(file, overrides).map(|(settings, _)| settings)
}

/// Loads settings as [`load`] does, with a notice for each spelling of the file that the next version will not read.
///
/// # Errors
/// As [`load`].
pub fn load_with_notices(
    file: Option<&Path>,
    overrides: &[FlagOverride],
) -> Result<(Settings, Vec<Notice>), SettingsError> {
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
            Some(key) => loader.set(flag.flag, key, flag.key, &value),
            None => loader
                .violations
                .push(unknown_key(flag.flag, flag.key, &value, loader.spelling)),
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
    notices: Vec<Notice>,
    /// The spelling of keys in suggestions and in conflicts.
    spelling: Spelling,
    /// The keys that the file has, by their present path, as they are spelled there.
    written: BTreeMap<&'static str, String>,
}

impl Loader {
    fn apply_document(&mut self, origin: &str, document: &Mapping) {
        let version = check_version(origin, document);
        self.spelling = version.spelling;
        self.violations.extend(version.violations);
        self.notices.extend(version.notice);
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
                (_, Some(key)) => self.apply_key(origin, key, &path, value),
                // Both were checked before.
                _ if [API_VERSION, KIND].contains(&path.as_str()) => {}
                _ => self.violations.push(unknown_key(origin, &path, value, self.spelling)),
            }
        }
    }

    /// Applies a key of the file, which is spelled as `written` there.
    fn apply_key(&mut self, origin: &str, key: &'static Key, written: &str, value: &Value) {
        if let Some(other) = self.written.insert(key.path, written.to_owned()) {
            self.violations.push(Violation {
                origin: origin.to_owned(),
                key: Some(written.to_owned()),
                message: format!("is the same setting as {other}; allowed: one of the two, {}", key.path),
            });
            return;
        }
        let mut notice = |message: String| {
            self.notices.push(Notice {
                origin: origin.to_owned(),
                key: Some(written.to_owned()),
                message,
            });
        };
        if written != key.path {
            notice(format!(
                "is now {}; the next version does not read this spelling",
                key.path
            ));
        }
        if key.is_optional && value.as_str() == Some(NONE) {
            notice("none is now null; the next version does not read this spelling".to_owned());
        }
        let none = Value::String(NONE.to_owned());
        let value = if key.is_optional && value.is_null() {
            &none
        } else {
            value
        };
        self.set(origin, key, written, value);
    }

    fn set(&mut self, origin: &str, key: &Key, written: &str, value: &Value) {
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
            key: Some(written.to_owned()),
            message,
        }));
    }

    fn finish(mut self, file: Option<&Path>) -> Result<(Settings, Vec<Notice>), SettingsError> {
        if self.violations.is_empty() {
            let origin = file.map_or_else(|| "settings".to_owned(), |path| path.display().to_string());
            let spelled = |path: &'static str| {
                let written = self.written.get(path).map(String::as_str);
                let spelling = self.spelling;
                written.unwrap_or_else(|| find(path).map_or(path, |key| spelling.of(key)))
            };
            self.violations = conflicts(&self.settings)
                .map(|(key, message)| Violation {
                    origin: origin.clone(),
                    key: Some(spelled(key).to_owned()),
                    message,
                })
                .collect();
        }
        if self.violations.is_empty() {
            Ok((self.settings, self.notices))
        } else {
            Err(SettingsError(self.violations))
        }
    }
}

/// The settings as a settings file.
pub(super) fn to_yaml(settings: &Settings) -> String {
    let mut document = super::version::header();
    for key in keys() {
        insert(&mut document, key.path, (key.get)(settings));
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
