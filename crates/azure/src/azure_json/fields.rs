//! The keys of `azure.json`, found in any case, and their values by type, as Go's YAML-to-JSON reader takes them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use headgate_settings::{Printable, Violation, describe_value, scalar_text};
use serde_yaml::{Mapping, Value};

/// A file larger than this is not one.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Keys whose values are never told.
const SECRET: [&str; 3] = ["aadclientsecret", "aadclientcertpassword", "aadclientid"];

/// Which of the two counts, where there are a file and a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    File,
    Secret,
    /// The Secret over the file.
    Merge,
}

/// Values by their keys in lower case, each with where it stands.
#[derive(Debug, Default)]
pub(super) struct Fields(BTreeMap<String, (String, Value)>);

impl Fields {
    /// Lays a file's document over what there is.
    pub(super) fn read_file(&mut self, path: &Path, mistakes: &mut Vec<Violation>) {
        let origin = path.display().to_string();
        match read(path) {
            Ok(text) => self.overlay(&origin, &text, mistakes),
            Err(message) => mistakes.push(Violation {
                origin,
                key: None,
                message,
            }),
        }
    }

    /// Lays a document over what there is: `null` and what is absent leave it.
    pub(super) fn overlay(&mut self, origin: &str, text: &str, mistakes: &mut Vec<Violation>) {
        let mut mistake = |message: String| {
            mistakes.push(Violation {
                origin: origin.to_owned(),
                key: None,
                message,
            });
        };
        match serde_yaml::from_str::<Value>(text) {
            Ok(Value::Null) => {}
            Ok(Value::Mapping(mapping)) => self.take(origin, mapping),
            Ok(other) => mistake(format!(
                "holds {} at its top; allowed: keys with values",
                describe_value(&other)
            )),
            // A part of the text may stand in the error, and the text has secrets.
            Err(error) => mistake(match error.location() {
                Some(at) => format!("is neither YAML nor JSON at line {} column {}", at.line(), at.column()),
                None => "is neither YAML nor JSON".to_owned(),
            }),
        }
    }

    fn take(&mut self, origin: &str, mapping: Mapping) {
        // Of keys that differ in case the last in byte order wins, since Go sorts them on the way to JSON.
        let mut sorted: Vec<(String, Value)> = mapping
            .into_iter()
            .filter_map(|(key, value)| Some((key.as_str()?.to_owned(), value)))
            .collect();
        sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (key, value) in sorted {
            self.set(origin, &key, value);
        }
    }

    pub(super) fn set(&mut self, origin: &str, key: &str, value: Value) {
        if !value.is_null() {
            self.0.insert(key.to_lowercase(), (origin.to_owned(), value));
        }
    }

    /// Whether a key has no value, or an empty one.
    pub(super) fn is_empty(&self, key: &str) -> bool {
        self.get(key).is_none_or(|(_, value)| value.as_str() == Some(""))
    }

    /// Which counts, as the file says it in `cloudConfigType`.
    pub(super) fn source(&self, mistakes: &mut Vec<Violation>) -> Source {
        let read = self.read(
            "cloudConfigType",
            "file, secret or merge",
            mistakes,
            |value| match value.as_str()? {
                "file" => Some(Source::File),
                "secret" => Some(Source::Secret),
                "" | "merge" => Some(Source::Merge),
                _ => None,
            },
        );
        read.unwrap_or(Source::Merge)
    }

    /// Makes a text lower case.
    pub(super) fn lower_case(&mut self, key: &str) {
        if let Some((_, Value::String(text))) = self.0.get_mut(&key.to_lowercase()) {
            *text = text.to_lowercase();
        }
    }

    fn get(&self, key: &str) -> Option<&(String, Value)> {
        self.0.get(&key.to_lowercase())
    }

    /// What a key's value is made into; a mistake that says what is allowed otherwise.
    pub(super) fn read<T>(
        &self,
        key: &str,
        allowed: &str,
        mistakes: &mut Vec<Violation>,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let (origin, value) = self.get(key)?;
        let taken = read(value);
        if taken.is_none() {
            let told = if SECRET.contains(&key.to_lowercase().as_str()) {
                "this value".to_owned()
            } else {
                Printable(&describe_value(value)).to_string()
            };
            mistakes.push(Violation {
                origin: origin.clone(),
                key: Some(key.to_owned()),
                message: format!("{told} is not allowed; allowed: {allowed}"),
            });
        }
        taken
    }

    /// A text that is not empty. Numbers and booleans are taken as their text, as upstream's reader does.
    pub(super) fn text(&self, key: &str, mistakes: &mut Vec<Violation>) -> Option<String> {
        self.read(key, "a text", mistakes, scalar_text)
            .filter(|text| !text.is_empty())
    }

    pub(super) fn boolean(&self, key: &str, mistakes: &mut Vec<Violation>) -> Option<bool> {
        self.read(key, "true or false", mistakes, boolean)
    }

    pub(super) fn number(&self, key: &str, mistakes: &mut Vec<Violation>) -> Option<f64> {
        self.read(key, "a number from 0", mistakes, number)
    }

    /// The keys of a section.
    pub(super) fn section(&self, key: &str, mistakes: &mut Vec<Violation>) -> Option<Self> {
        let (origin, _) = self.get(key)?;
        let origin = format!("{origin}: {key}");
        let mapping = self.read(key, "a section", mistakes, |value| value.as_mapping().cloned())?;
        let mut fields = Self::default();
        fields.take(&origin, mapping);
        Some(fields)
    }

    /// The sections of a list.
    pub(super) fn sections(&self, key: &str, mistakes: &mut Vec<Violation>) -> Vec<Self> {
        let Some((origin, _)) = self.get(key) else {
            return Vec::new();
        };
        let list = self.read(key, "a list of sections", mistakes, |value| {
            let list = value.as_sequence()?;
            list.iter()
                .map(|item| item.as_mapping().cloned())
                .collect::<Option<Vec<_>>>()
        });
        let sections = list.into_iter().flatten().enumerate().map(|(number, mapping)| {
            let mut fields = Self::default();
            fields.take(&format!("{origin}: {key}[{number}]"), mapping);
            fields
        });
        sections.collect()
    }

    /// Where a key's value stands.
    pub(super) fn origin(&self, key: &str) -> String {
        self.get(key)
            .map_or_else(|| "azure.json".to_owned(), |(origin, _)| origin.clone())
    }
}

/// The whole file as text.
fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let length = File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| {
            format!("cannot be read: {error}; allowed: an azure.json, as cloud-provider-azure reads it")
        })?;
    if u64::try_from(length).is_ok_and(|length| length > MAX_FILE_BYTES) {
        return Err(format!("is larger than {MAX_FILE_BYTES} bytes; allowed: an azure.json"));
    }
    Ok(text)
}

/// YAML 1.1 has more words for these; upstream's reader knows them.
fn boolean(value: &Value) -> Option<bool> {
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

fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite() && *number >= 0.0)
}
