//! From a settings file and flags to [`Settings`], or to all violations together.
//!
//! The file becomes a YAML value, whose keys are then visited one by one, because a typed reader stops at the first
//! unknown key. No other module of the agent reads YAML.

use std::cell::Cell;
use std::path::Path;

use headgate_core::settings::{
    MAX_LINES, Printable, SettingsError, Violation, describe_value, line_at, read_text_file,
};
use serde_yaml::{Mapping, Value};

use super::Settings;
use super::conflicts::{Conflict, conflicts};
use super::keys::{Key, find, flags, is_section, keys};
use super::suggestion::{key_with_dots, unknown_key};
use super::value::{InvalidItem, InvalidValue};
use super::version::{HEADER, check_version, header};

/// Loads settings: defaults, then the file, then the flags that have a value. A flag is its name with the dashes, for violations, the dotted
/// key that it overrides, and its value as typed.
///
/// # Errors
/// Every violation in the file and the flags, each with its origin, line, key, value and what is allowed.
pub fn load(file: Option<&Path>, flags_given: &[(&str, &str, Option<&str>)]) -> Result<Settings, SettingsError> {
    let mut loader = Loader::default();
    let source = file.and_then(|path| loader.read(path));
    if let Some(source) = &source {
        loader.apply_document(source);
    }
    for (flag, path, value) in flags_given {
        let Some(value) = value else { continue };
        let value = Value::from(*value);
        match find(path).or_else(|| flags().find(|key| key.path == *path)) {
            Some(key) => loader.set(flag, key, &value, |_| None),
            None => loader.violations.push(unknown_key(flag, path, &value)),
        }
    }
    loader.finish(source.as_ref())
}

/// A settings file.
struct Source {
    origin: String,
    text: String,
    document: Mapping,
    lines: Cell<usize>,
}

impl Source {
    /// The line of the entry at these numbers in the sections; with `item`, of that item of its list.
    fn line(&self, place: &[usize], item: Option<usize>) -> Option<usize> {
        self.lines.set(self.lines.get() + 1);
        let path = [place, item.as_slice()].concat();
        (self.lines.get() <= MAX_LINES)
            .then(|| line_at(&self.text, &path))
            .flatten()
    }

    /// The line of a dotted key, if the file has it.
    fn line_of(&self, key: &str) -> Option<usize> {
        let (mut section, mut place) = (Some(&self.document), Vec::new());
        for name in key.split('.') {
            let mapping = section?;
            place.push(mapping.keys().position(|key| key.as_str() == Some(name))?);
            section = mapping.get(name).and_then(Value::as_mapping);
        }
        self.line(&place, None)
    }
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
    fn read(&mut self, path: &Path) -> Option<Source> {
        let origin = path.display().to_string();
        let read = read_text_file(path, "a YAML file, as in the settings reference")
            .and_then(|text| parse(&text).map(|document| (text, document)));
        match read {
            Ok((text, document)) => Some(Source {
                origin,
                text,
                document,
                lines: Cell::new(0),
            }),
            Err(message) => {
                self.violations.push(Violation {
                    origin,
                    key: None,
                    line: None,
                    message,
                });
                None
            }
        }
    }

    fn apply_document(&mut self, source: &Source) {
        let version = check_version(&source.origin, &source.document);
        self.violations.extend(version.map(|violation| Violation {
            line: violation.key.as_deref().and_then(|key| source.line_of(key)),
            ..violation
        }));
        self.apply_section(source, "", &source.document, &[]);
    }

    fn apply_section(&mut self, source: &Source, prefix: &str, section: &Mapping, above: &[usize]) {
        for (number, (name, value)) in section.iter().enumerate() {
            let place = [above, &[number]].concat();
            let name = match name {
                Value::String(name) if !name.is_empty() => name,
                other => {
                    self.violations.push(Violation {
                        origin: source.origin.clone(),
                        key: (!prefix.is_empty()).then(|| prefix.to_owned()),
                        line: source.line(&place, None),
                        message: format!("{} is not a key; allowed: names", describe_value(other)),
                    });
                    continue;
                }
            };
            let path = if prefix.is_empty() {
                name.clone()
            } else {
                format!("{prefix}.{name}")
            };
            let has_dots = name.contains('.');
            match (value, find(&path)) {
                (_, Some(_)) if has_dots => self.violations.push(Violation {
                    line: source.line(&place, None),
                    ..key_with_dots(&source.origin, &path, value)
                }),
                (Value::Mapping(inner), _) if is_section(&path) => self.apply_section(source, &path, inner, &place),
                (_, Some(key)) => self.set(&source.origin, key, value, |item| source.line(&place, item)),
                // Both were checked before.
                _ if HEADER.iter().any(|(key, _)| *key == path) => {}
                _ => self.violations.push(Violation {
                    line: source.line(&place, None),
                    ..unknown_key(&source.origin, &path, value)
                }),
            }
        }
    }

    /// Sets a key; `line` finds the line of its value, or of an item of that.
    fn set(&mut self, origin: &str, key: &Key, value: &Value, line: impl Fn(Option<usize>) -> Option<usize>) {
        let messages = match (key.set)(&mut self.settings, value) {
            Ok(()) => Vec::new(),
            Err(InvalidValue::Value(allowed)) => {
                let message = format!("{} is not allowed; allowed: {allowed}", describe_value(value));
                vec![(None, message)]
            }
            Err(InvalidValue::Items(items)) => items
                .iter()
                .map(|item| {
                    let InvalidItem { number, shown, allowed } = item;
                    let message = format!("item {number}, {shown}, is not allowed; allowed: {allowed}");
                    (Some(number - 1), message)
                })
                .collect(),
        };
        self.violations
            .extend(messages.into_iter().map(|(item, message)| Violation {
                origin: origin.to_owned(),
                key: Some(key.path.to_owned()),
                line: line(item),
                message,
            }));
    }

    fn finish(mut self, source: Option<&Source>) -> Result<Settings, SettingsError> {
        let origin = source.map_or("settings", |source| &source.origin);
        for Conflict { keys, message } in conflicts(&self.settings) {
            let is_wrong = |key: &&str| self.violations.iter().any(|known| known.key.as_deref() == Some(*key));
            let [key, ..] = keys else { continue };
            if !keys.iter().any(is_wrong) {
                self.violations.push(Violation {
                    origin: origin.to_owned(),
                    key: Some((*key).to_owned()),
                    line: source.and_then(|source| source.line_of(key)),
                    message,
                });
            }
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
