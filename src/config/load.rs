//! From a settings file and flags to [`Settings`], or every mistake at once.
//!
//! The file is read to a YAML value first and walked by hand, because a typed reader stops at the
//! first unknown key. No other room of the agent touches YAML.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use headgate_settings::{Printable, SettingsError, Violation, describe_value};
use serde_yaml::{Mapping, Value};

use super::Settings;
use super::conflicts::conflicts;
use super::keys::{KEYS, find, is_section};
use super::value::Refused;

/// A settings file larger than this is not one.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A value given by a flag instead of the file.
#[derive(Clone, Debug)]
pub struct FlagOverride {
    /// The flag as typed, for mistakes.
    pub flag: &'static str,
    /// The dotted key it overrides.
    pub key: &'static str,
    /// Its text.
    pub value: String,
}

/// Loads settings: defaults, then the file if one is given, then the overrides.
///
/// # Errors
/// Every mistake in the file and the flags, each with its origin, key, value and what is allowed.
pub fn load(file: Option<&Path>, overrides: &[FlagOverride]) -> Result<Settings, SettingsError> {
    let mut settings = Settings::default();
    let mut mistakes = Vec::new();
    if let Some(path) = file {
        let origin = path.display().to_string();
        match read(path).and_then(|text| parse(&text)) {
            Ok(document) => walk(&mut settings, &mut mistakes, &origin, "", &document),
            Err(message) => mistakes.push(Violation {
                origin,
                key: None,
                message,
            }),
        }
    }
    for given in overrides {
        apply(
            &mut settings,
            &mut mistakes,
            given.flag,
            given.key,
            &Value::String(given.value.clone()),
        );
    }
    if mistakes.is_empty() {
        let origin = file.map_or_else(|| "settings".to_owned(), |path| path.display().to_string());
        mistakes.extend(conflicts(&settings).map(|(key, message)| Violation {
            origin: origin.clone(),
            key: Some(key.to_owned()),
            message,
        }));
    }
    if mistakes.is_empty() {
        Ok(settings)
    } else {
        Err(SettingsError(mistakes))
    }
}

/// The whole file as text.
fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let length = File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| format!("cannot be read: {error}; allowed: a YAML file, as in the settings reference"))?;
    if u64::try_from(length).is_ok_and(|length| length > MAX_FILE_BYTES) {
        return Err(format!(
            "is larger than {MAX_FILE_BYTES} bytes; allowed: a YAML file, as in the settings reference"
        ));
    }
    Ok(text)
}

/// The document's top-level mapping; an empty document is one without keys.
fn parse(text: &str) -> Result<Mapping, String> {
    match serde_yaml::from_str::<Value>(text) {
        Ok(Value::Mapping(mapping)) => Ok(mapping),
        Ok(Value::Null) => Ok(Mapping::new()),
        Ok(other) => Err(format!(
            "holds {} at its top; allowed: keys with values",
            describe_value(&other)
        )),
        // The error's text ends in "at line L column C".
        Err(error) => Err(format!(
            "is not YAML: {}; allowed: one YAML document of keys with values",
            Printable(&error.to_string())
        )),
    }
}

fn walk(settings: &mut Settings, mistakes: &mut Vec<Violation>, origin: &str, prefix: &str, section: &Mapping) {
    for (name, value) in section {
        let name = match name {
            Value::String(name) if !name.is_empty() => name,
            other => {
                let key = (!prefix.is_empty()).then(|| prefix.to_owned());
                let message = format!("{} is not a key; allowed: names", describe_value(other));
                mistakes.push(Violation {
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
        match value {
            Value::Mapping(inner) if is_section(&path) => walk(settings, mistakes, origin, &path, inner),
            _ if find(&path).is_some() => apply(settings, mistakes, origin, &path, value),
            _ => mistakes.push(unknown(origin, &path, value)),
        }
    }
}

fn apply(settings: &mut Settings, mistakes: &mut Vec<Violation>, origin: &str, path: &str, value: &Value) {
    let outcome = find(path).map_or_else(
        || Err(Refused::Whole("a known key".to_owned())),
        |key| (key.set)(settings, value),
    );
    let messages = match outcome {
        Ok(()) => Vec::new(),
        Err(Refused::Whole(allowed)) => vec![format!("{} is not allowed; allowed: {allowed}", describe_value(value))],
        Err(Refused::Items(items)) => items
            .iter()
            .map(|item| {
                format!(
                    "item {}, {}, is not allowed; allowed: {}",
                    item.number, item.shown, item.allowed
                )
            })
            .collect(),
    };
    mistakes.extend(messages.into_iter().map(|message| Violation {
        origin: origin.to_owned(),
        key: Some(path.to_owned()),
        message,
    }));
}

/// The key or section that was probably meant by a path that is none: one that looks like it, or whose
/// last name does, for a key that lost its section.
fn nearest(path: &str) -> Option<&'static str> {
    let likeness = |candidate: &str| {
        let last = candidate.rsplit('.').next().unwrap_or(candidate);
        strsim::jaro_winkler(path, candidate).max(strsim::jaro_winkler(path, last))
    };
    KEYS.iter()
        .flat_map(|key| [Some(key.path), key.path.split_once('.').map(|(section, _)| section)])
        .flatten()
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
        // One letter in common is 0.7.
        .filter(|candidate| likeness(candidate) > 0.8)
}

fn unknown(origin: &str, path: &str, value: &Value) -> Violation {
    let message = if is_section(path) {
        let inner = KEYS
            .iter()
            .filter_map(|key| key.path.strip_prefix(path)?.strip_prefix('.'));
        format!(
            "{} is not allowed; allowed: a section with {}",
            describe_value(value),
            inner.collect::<Vec<_>>().join(", ")
        )
    } else {
        nearest(path).map_or_else(
            || {
                let known = KEYS.iter().map(|key| key.path).collect::<Vec<_>>().join(", ");
                format!(
                    "this key is not known (value: {}); allowed: {known}",
                    describe_value(value)
                )
            },
            |nearest| {
                format!(
                    "did you mean {nearest}? This key is not known (value: {}); allowed: those in docs/settings.md",
                    describe_value(value)
                )
            },
        )
    };
    Violation {
        origin: origin.to_owned(),
        key: Some(path.to_owned()),
        message,
    }
}

/// Settings in the form of a settings file.
pub(super) fn to_yaml(settings: &Settings) -> String {
    let mut document = Mapping::new();
    for key in KEYS {
        let value = (key.get)(settings);
        match key.path.split_once('.') {
            None => {
                document.insert(Value::from(key.path), value);
            }
            Some((section, name)) => {
                let inner = document
                    .entry(Value::from(section))
                    .or_insert_with(|| Value::Mapping(Mapping::new()));
                if let Value::Mapping(inner) = inner {
                    inner.insert(Value::from(name), value);
                }
            }
        }
    }
    serde_yaml::to_string(&document).unwrap_or_else(|error| format!("# settings cannot be shown: {error}\n"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn from(text: &str) -> Result<Settings, SettingsError> {
        let file = file(text);
        load(Some(file.path()), &[]).map_err(|mistakes| {
            let origin = file.path().display().to_string();
            let renamed = |m: Violation| Violation {
                origin: m.origin.replace(&origin, "f.yaml"),
                ..m
            };
            SettingsError(mistakes.0.into_iter().map(renamed).collect())
        })
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        assert_eq!(from(""), Ok(Settings::default()));
        assert_eq!(from("# nothing\n"), Ok(Settings::default()));
    }

    #[test]
    fn what_is_printed_can_be_loaded() {
        let settings = from("shutdownDelay: 5s\nsignals: {health: [a.io/b]}\nproxy:\n  healthzUrl: off\n").unwrap();
        assert_eq!(settings.shutdown_delay, Duration::from_secs(5));
        assert_eq!(settings.proxy.healthz_authority, None);
        assert_eq!(from(&settings.to_yaml()), Ok(settings));
        assert_eq!(from(&Settings::default().to_yaml()), Ok(Settings::default()));
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let mistakes = from(
            "healthzBindAddress: nowhere\nshutdownDelay: 5\nproxi: {}\nproxy:\n  pollIntervall: 1s\n  healthTimeout: 0s\n\
             signals: off\nstateDir:\n7: x\n'': y\n",
        )
        .unwrap_err();
        let lines: Vec<String> = mistakes.0.iter().map(ToString::to_string).collect();
        let starts = [
            "f.yaml: healthzBindAddress: \"nowhere\" is not allowed; allowed: an IP address with a port",
            "f.yaml: shutdownDelay: \"5\" is not allowed; allowed: a duration from 0s to 10m",
            "f.yaml: proxi: did you mean proxy? This key is not known (value: a section); allowed: those in docs/",
            "f.yaml: proxy.pollIntervall: did you mean proxy.pollInterval? This key is not known (value: \"1s\")",
            "f.yaml: proxy.healthTimeout: \"0s\" is not allowed; allowed: a duration from 1s to 1h",
            "f.yaml: signals: \"off\" is not allowed; allowed: a section with health, adminState",
            "f.yaml: stateDir: nothing is not allowed; allowed: an absolute path",
            "f.yaml: \"7\" is not a key",
            "f.yaml: \"\" is not a key",
        ];
        assert_eq!(lines.len(), starts.len(), "{lines:#?}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }

    #[test]
    fn an_unknown_key_is_likened_to_what_was_probably_meant() {
        for (path, meant) in [
            ("healthTimeout", Some("proxy.healthTimeout")),
            ("signal", Some("signals")),
            ("healthzbindaddress", Some("healthzBindAddress")),
            ("proxy.healthzURL", Some("proxy.healthzUrl")),
            ("a", None),
            ("replicas", None),
            ("<<", None),
        ] {
            assert_eq!(nearest(path), meant, "{path}");
        }
    }

    #[test]
    fn every_wrong_item_of_a_list_is_reported() {
        let mistakes = from("signals: {health: [a.io/b, key=value, a.io/b, 7]}\n").unwrap_err();
        let lines: Vec<String> = mistakes.0.iter().map(ToString::to_string).collect();
        let key = "a taint key such as example.com/draining";
        let wanted = [
            format!(
                "f.yaml: signals.health: item 2, \"key=value\", is not allowed; allowed: {key}, without value and effect"
            ),
            "f.yaml: signals.health: item 3, \"a.io/b\", is not allowed; allowed: each taint key once".to_owned(),
            format!("f.yaml: signals.health: item 4, \"7\", is not allowed; allowed: {key}"),
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn broken_yaml_names_the_line() {
        let mistakes = from("shutdownDelay: 5s\n  stateDir: [\n").unwrap_err();
        assert!(mistakes.0[0].message.contains("line 2"), "{mistakes}");
        let mistakes = from("shutdownDelay: 5s\nshutdownDelay: 6s\n").unwrap_err();
        assert!(mistakes.0[0].message.contains("duplicate"), "{mistakes}");
        assert!(
            from("- a\n")
                .unwrap_err()
                .to_string()
                .contains("holds a list at its top")
        );
    }

    #[test]
    fn flags_win_over_the_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"stateDir: /file\nhealthzBindAddress: 127.0.0.1:1\n")
            .unwrap();
        let given = |value: &str| FlagOverride {
            flag: "--state-dir",
            key: "stateDir",
            value: value.to_owned(),
        };
        let settings = load(Some(file.path()), &[given("/flag")]).unwrap();
        assert_eq!(settings.state_dir, Path::new("/flag"));
        assert_eq!(settings.healthz_bind_address.to_string(), "127.0.0.1:1");
        let mistakes = load(None, &[given("relative")]).unwrap_err();
        assert!(
            mistakes
                .to_string()
                .contains("--state-dir: stateDir: \"relative\" is not allowed"),
            "{mistakes}"
        );
    }

    #[test]
    fn a_missing_or_huge_file_is_a_mistake() {
        assert!(
            load(Some(Path::new("/does/not/exist")), &[])
                .unwrap_err()
                .to_string()
                .contains("cannot be read")
        );
        assert!(
            from(&"#".repeat(1024 * 1024 + 1))
                .unwrap_err()
                .to_string()
                .contains("larger than")
        );
    }
}
