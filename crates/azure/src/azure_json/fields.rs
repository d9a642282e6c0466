//! The keys of `azure.json` in any case, and their values by type, converted as Go's YAML-to-JSON reader does.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use headgate_core::settings::{MAX_LINES, Printable, Violation, describe_value, line_at, read_text_file, scalar_text};
use serde_yaml::{Mapping, Value};

/// Keys whose values no violation shows, in lower case.
const SECRET_KEYS: [&str; 3] = ["aadclientsecret", "aadclientcertpassword", "aadclientid"];

/// `cloudConfigType`: which source counts if there are a file and a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConfigType {
    File,
    Secret,
    /// The Secret wins over the file, key by key.
    Merge,
}

/// Values by their keys in lower case.
#[derive(Debug, Default)]
pub(super) struct Fields(BTreeMap<String, Field>);

#[derive(Debug)]
struct Field {
    place: Place,
    value: Value,
}

/// Where a value is, for violations.
#[derive(Clone, Debug)]
struct Place {
    /// The file, Secret or variable.
    origin: String,
    /// The sections above the key, with their dots; empty at the top.
    prefix: String,
    /// The document, as [`line_at`] walks it; empty for a variable.
    text: Rc<str>,
    path: Vec<usize>,
}

impl Place {
    /// That of the whole document.
    fn document(origin: &str, text: &str) -> Self {
        Self {
            origin: origin.to_owned(),
            prefix: String::new(),
            text: text.into(),
            path: Vec::new(),
        }
    }

    /// That of an entry or an item below this one.
    fn below(&self, number: usize) -> Self {
        let mut below = self.clone();
        below.path.push(number);
        below
    }

    /// That of the sections below a key.
    fn section(&self, name: &str) -> Self {
        let prefix = format!("{}{name}.", self.prefix);
        Self { prefix, ..self.clone() }
    }

    fn line(&self) -> Option<usize> {
        line_at(&self.text, &self.path)
    }
}

impl Fields {
    /// Reads a file over the present values.
    pub(super) fn read_file(&mut self, path: &Path, violations: &mut Vec<Violation>) {
        let origin = path.display().to_string();
        match read_text_file(path, "an azure.json, as cloud-provider-azure reads it") {
            Ok(text) => self.overlay(&origin, &text, violations),
            Err(message) => violations.push(Violation {
                line: None,
                origin,
                key: None,
                message,
            }),
        }
    }

    /// Reads a document over the present values. An absent key and `null` keep the present value.
    pub(super) fn overlay(&mut self, origin: &str, text: &str, violations: &mut Vec<Violation>) {
        let mut violation = |message: String| {
            violations.push(Violation {
                line: None,
                origin: origin.to_owned(),
                key: None,
                message,
            });
        };
        match serde_yaml::from_str::<Value>(text) {
            Ok(Value::Null) => {}
            Ok(Value::Mapping(mapping)) => self.insert_all(&Place::document(origin, text), mapping),
            Ok(other) => violation(format!(
                "holds {} at its top; allowed: keys with values",
                describe_value(&other)
            )),
            // The location only: the error may quote the text, which has secrets.
            Err(error) => violation(match error.location() {
                Some(at) => format!("is neither YAML nor JSON at line {} column {}", at.line(), at.column()),
                None => "is neither YAML nor JSON".to_owned(),
            }),
        }
    }

    fn insert_all(&mut self, above: &Place, mapping: Mapping) {
        // Of keys that differ in case only, the last in byte order wins: Go sorts them when it converts to JSON.
        let mut sorted: Vec<(String, Field)> = mapping
            .into_iter()
            .enumerate()
            .filter_map(|(number, (key, value))| {
                let place = above.below(number);
                Some((key.as_str()?.to_owned(), Field { place, value }))
            })
            .collect();
        sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (key, field) in sorted {
            self.insert(&key, field);
        }
    }

    /// Sets a key to what a variable has.
    pub(super) fn set(&mut self, variable: &str, key: &str, value: Value) {
        let place = Place::document(variable, "");
        self.insert(key, Field { place, value });
    }

    fn insert(&mut self, key: &str, field: Field) {
        if !field.value.is_null() {
            self.0.insert(key.to_lowercase(), field);
        }
    }

    /// Whether the key is absent or empty.
    pub(super) fn is_empty(&self, key: &str) -> bool {
        self.get(key).is_none_or(|field| field.value.as_str() == Some(""))
    }

    /// Reads `cloudConfigType`; merge if it is absent or invalid.
    pub(super) fn config_type(&self, violations: &mut Vec<Violation>) -> ConfigType {
        let read = self.read(
            "cloudConfigType",
            "file, secret or merge",
            violations,
            |value| match value.as_str()? {
                "file" => Some(ConfigType::File),
                "secret" => Some(ConfigType::Secret),
                "" | "merge" => Some(ConfigType::Merge),
                _ => None,
            },
        );
        read.unwrap_or(ConfigType::Merge)
    }

    /// Converts the value of a key to lower case.
    pub(super) fn lower_case(&mut self, key: &str) {
        if let Some(Value::String(text)) = self.0.get_mut(&key.to_lowercase()).map(|field| &mut field.value) {
            *text = text.to_lowercase();
        }
    }

    fn get(&self, key: &str) -> Option<&Field> {
        self.0.get(&key.to_lowercase())
    }

    /// Converts the value of a key. Adds a violation that says what is allowed if `convert` returns `None`.
    pub(super) fn read<T>(
        &self,
        key: &str,
        allowed: &str,
        violations: &mut Vec<Violation>,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let field = self.get(key)?;
        let converted = convert(&field.value);
        if converted.is_none() {
            let shown = if SECRET_KEYS.contains(&key.to_lowercase().as_str()) {
                "this value".to_owned()
            } else {
                Printable(&describe_value(&field.value)).to_string()
            };
            self.reject(
                key,
                key,
                format!("{shown} is not allowed; allowed: {allowed}"),
                violations,
            );
        }
        converted
    }

    /// Adds a violation about `key` at the place of the value of `at`.
    pub(super) fn reject(&self, at: &str, key: &str, message: String, violations: &mut Vec<Violation>) {
        let place = self.get(at).map(|field| &field.place);
        let is_located = violations.len() < MAX_LINES;
        violations.push(Violation {
            origin: place.map_or_else(|| "azure.json".to_owned(), |place| place.origin.clone()),
            key: Some(format!("{}{key}", place.map_or("", |place| &place.prefix))),
            line: place.filter(|_| is_located).and_then(Place::line),
            message,
        });
    }

    /// The file, Secret or variable that has a key, and the line.
    pub(super) fn place(&self, key: &str) -> Option<(String, Option<usize>)> {
        let place = &self.get(key)?.place;
        Some((place.origin.clone(), place.line()))
    }

    /// A string that is not empty. A number or boolean counts as its text, as in upstream's reader.
    pub(super) fn text(&self, key: &str, violations: &mut Vec<Violation>) -> Option<String> {
        self.read(key, "a string", violations, scalar_text)
            .filter(|text| !text.is_empty())
    }

    pub(super) fn boolean(&self, key: &str, violations: &mut Vec<Violation>) -> Option<bool> {
        self.read(key, "true or false", violations, parse_boolean)
    }

    pub(super) fn number(&self, key: &str, violations: &mut Vec<Violation>) -> Option<f64> {
        self.read(key, "a number from 0", violations, parse_number)
    }

    /// An integer of any sign.
    pub(super) fn integer(&self, key: &str, violations: &mut Vec<Violation>) -> Option<i64> {
        self.read(key, "an integer", violations, Value::as_i64)
    }

    /// The values of a section.
    pub(super) fn section(&self, key: &str, violations: &mut Vec<Violation>) -> Option<Self> {
        let above = self.get(key)?.place.section(key);
        let mapping = self.read(key, "a section", violations, |value| value.as_mapping().cloned())?;
        let mut fields = Self::default();
        fields.insert_all(&above, mapping);
        Some(fields)
    }

    /// The values of each section of a list.
    pub(super) fn sections(&self, key: &str, violations: &mut Vec<Violation>) -> Vec<Self> {
        let Some(Field { place, .. }) = self.get(key) else {
            return Vec::new();
        };
        let list = self.read(key, "a list of sections", violations, |value| {
            let list = value.as_sequence()?;
            list.iter()
                .map(|item| item.as_mapping().cloned())
                .collect::<Option<Vec<_>>>()
        });
        let sections = list.into_iter().flatten().enumerate().map(|(number, mapping)| {
            let mut fields = Self::default();
            let above = place.section(&format!("{key}[{number}]")).below(number);
            fields.insert_all(&above, mapping);
            fields
        });
        sections.collect()
    }
}

/// A boolean, with the words of YAML 1.1, which upstream's reader knows.
fn parse_boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(*flag),
        Value::String(word) => match word.as_str() {
            "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
            "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn parse_number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite() && *number >= 0.0)
}
