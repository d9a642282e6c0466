//! From a settings file and flags to [`Settings`], or to all violations together.
//!
//! The file becomes a YAML value, whose keys are then visited one by one, because a typed reader stops at the first
//! unknown key. No other module of the agent reads YAML.

use std::path::Path;

use headgate_settings::{Printable, SettingsError, Violation, describe_value, read_text_file};
use serde_yaml::{Mapping, Value};

use super::Settings;
use super::conflicts::conflicts;
use super::keys::{KEYS, find, is_section};
use super::value::InvalidValue;

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
    let mut settings = Settings::default();
    let mut violations = Vec::new();
    if let Some(path) = file {
        let origin = path.display().to_string();
        match read_text_file(path, "a YAML file, as in the settings reference").and_then(|text| parse(&text)) {
            Ok(document) => apply_section(&mut settings, &mut violations, &origin, "", &document),
            Err(message) => violations.push(Violation {
                origin,
                key: None,
                message,
            }),
        }
    }
    for flag in overrides {
        apply(
            &mut settings,
            &mut violations,
            flag.flag,
            flag.key,
            &Value::String(flag.value.clone()),
        );
    }
    if violations.is_empty() {
        let origin = file.map_or_else(|| "settings".to_owned(), |path| path.display().to_string());
        violations.extend(conflicts(&settings).map(|(key, message)| Violation {
            origin: origin.clone(),
            key: Some(key.to_owned()),
            message,
        }));
    }
    if violations.is_empty() {
        Ok(settings)
    } else {
        Err(SettingsError(violations))
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

fn apply_section(
    settings: &mut Settings,
    violations: &mut Vec<Violation>,
    origin: &str,
    prefix: &str,
    section: &Mapping,
) {
    for (name, value) in section {
        let name = match name {
            Value::String(name) if !name.is_empty() => name,
            other => {
                let key = (!prefix.is_empty()).then(|| prefix.to_owned());
                let message = format!("{} is not a key; allowed: names", describe_value(other));
                violations.push(Violation {
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
            Value::Mapping(inner) if is_section(&path) => apply_section(settings, violations, origin, &path, inner),
            _ if find(&path).is_some() => apply(settings, violations, origin, &path, value),
            _ => violations.push(unknown_key(origin, &path, value)),
        }
    }
}

fn apply(settings: &mut Settings, violations: &mut Vec<Violation>, origin: &str, path: &str, value: &Value) {
    let outcome = find(path).map_or_else(
        || Err(InvalidValue::Value("a known key".to_owned())),
        |key| (key.set)(settings, value),
    );
    let messages = match outcome {
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
    violations.extend(messages.into_iter().map(|message| Violation {
        origin: origin.to_owned(),
        key: Some(path.to_owned()),
        message,
    }));
}

/// The key or section that an unknown path probably means: the most similar one, compared with its whole path and with its
/// last part, for a key without its section.
fn nearest(path: &str) -> Option<&'static str> {
    let similarity = |candidate: &str| {
        let last = candidate.rsplit('.').next().unwrap_or(candidate);
        strsim::jaro_winkler(path, candidate).max(strsim::jaro_winkler(path, last))
    };
    KEYS.iter()
        .flat_map(|key| [Some(key.path), key.path.split_once('.').map(|(section, _)| section)])
        .flatten()
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        // A single common letter has a similarity of 0.7.
        .filter(|candidate| similarity(candidate) > 0.8)
}

fn unknown_key(origin: &str, path: &str, value: &Value) -> Violation {
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

/// The settings as a settings file.
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
        load(Some(file.path()), &[]).map_err(|violations| {
            let origin = file.path().display().to_string();
            let renamed = |m: Violation| Violation {
                origin: m.origin.replace(&origin, "f.yaml"),
                ..m
            };
            SettingsError(violations.0.into_iter().map(renamed).collect())
        })
    }

    #[test]
    fn empty_file_means_defaults() {
        assert_eq!(from(""), Ok(Settings::default()));
        assert_eq!(from("# nothing\n"), Ok(Settings::default()));
    }

    #[test]
    fn printed_settings_can_be_loaded() {
        let settings = from("shutdownDelay: 5s\nsignals: {health: [a.io/b]}\nproxy:\n  healthzUrl: off\n").unwrap();
        assert_eq!(settings.shutdown_delay, Duration::from_secs(5));
        assert_eq!(settings.proxy.healthz_authority, None);
        assert_eq!(from(&settings.to_yaml()), Ok(settings));
        assert_eq!(from(&Settings::default().to_yaml()), Ok(Settings::default()));
    }

    #[test]
    fn all_violations_are_reported_together() {
        let violations = from(
            "healthzBindAddress: nowhere\nshutdownDelay: 5\nproxi: {}\nproxy:\n  pollIntervall: 1s\n  healthTimeout: 0s\n\
             signals: off\nstateDir:\n7: x\n'': y\n",
        )
        .unwrap_err();
        let lines: Vec<String> = violations.0.iter().map(ToString::to_string).collect();
        let starts = [
            "f.yaml: healthzBindAddress: \"nowhere\" is not allowed; allowed: an IP address with a port",
            "f.yaml: shutdownDelay: \"5\" is not allowed; allowed: a duration from 0s to 10m",
            "f.yaml: proxi: did you mean proxy? This key is not known (value: a section); allowed: those in docs/",
            "f.yaml: proxy.pollIntervall: did you mean proxy.pollInterval? This key is not known (value: \"1s\")",
            "f.yaml: proxy.healthTimeout: \"0s\" is not allowed; allowed: a duration from 1s to 1h",
            "f.yaml: signals: \"off\" is not allowed; allowed: a section with health, healthBuiltIn, adminState, adminStateBuiltIn",
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
    fn unknown_key_suggests_the_nearest_one() {
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
    fn minimum_in_service_is_a_number_or_a_percentage() {
        use headgate_controller::admin_state::MinimumInService::{Count, Percent};
        let minimum = |value: &str| {
            let loaded = from(&format!("guard: {{minimumInService: {value}}}\n"));
            loaded.map(|settings| settings.guard.minimum_in_service).ok()
        };
        for (value, expected) in [
            ("0", Some(Count(0))),
            ("5000", Some(Count(5000))),
            ("'7'", Some(Count(7))),
            ("1%", Some(Percent(1))),
            ("100%", Some(Percent(100))),
            ("5001", None),
            ("0%", None),
            ("101%", None),
            ("-1", None),
            ("1.5", None),
            ("20 %", None),
            ("'%'", None),
            ("'+3'", None),
            ("many", None),
            ("[1]", None),
        ] {
            assert_eq!(minimum(value), expected, "{value}");
        }
        assert_eq!(from("").unwrap().guard.minimum_in_service, Count(1));
    }

    #[test]
    fn every_invalid_item_of_a_list_is_reported() {
        let violations = from("signals: {health: [a.io/b, key=value, a.io/b, 7]}\n").unwrap_err();
        let lines: Vec<String> = violations.0.iter().map(ToString::to_string).collect();
        let key = "a taint key such as example.com/draining";
        let wanted = [
            format!(
                "f.yaml: signals.health: item 2, \"key=value\", is not allowed; allowed: {key}, without value and effect"
            ),
            "f.yaml: signals.health: item 3, \"a.io/b\", is not allowed; allowed: each taint key once".to_owned(),
            format!(
                "f.yaml: signals.health: item 4, \"7\", is not allowed; allowed: {key}, or a matcher: {key}, {{taint: "
            ),
        ];
        assert_eq!(lines[..2], wanted[..2]);
        assert!(lines.len() == 3 && lines[2].starts_with(&wanted[2]), "{lines:?}");
    }

    #[test]
    fn matchers_and_built_in_signals_are_read_and_shown() {
        let text = "signals:\n  health:\n  - a.io/b\n  - taint: aws-node-termination-handler/*\n  - condition: {type: VMEventScheduled, \
            status: 'True', messagePrefix: 'Preempt Scheduled:'}\n  - label: {key: a.io/c, value: d}\n  - annotation: {key: a.io/e}\n  \
            - {unschedulable: true, for: 30s}\n  healthBuiltIn: [azurePreempt]\n  adminState: []\n  adminStateBuiltIn: [nodeShutdown, deletionTimestamp]\n";
        let settings = from(text).unwrap();
        let names: Vec<_> = settings
            .signals
            .health
            .matchers
            .iter()
            .map(ToString::to_string)
            .collect();
        let wanted = [
            "a.io/b",
            "aws-node-termination-handler/*",
            "condition:VMEventScheduled=True,message=Preempt Scheduled:*",
            "label:a.io/c=d",
            "annotation:a.io/e",
            "unschedulable",
        ];
        assert_eq!(names, wanted);
        assert_eq!(
            settings.signals.health.built_in,
            [headgate_node::BuiltInSignal::AzurePreempt].into()
        );
        assert_eq!(settings.signals.admin_state.built_in.len(), 2);
        assert_eq!(from(&settings.to_yaml()).unwrap(), settings, "{}", settings.to_yaml());
        let none = from("signals: {health: [], healthBuiltIn: []}\n")
            .unwrap()
            .signals
            .health;
        assert_eq!(none, headgate_node::SignalRules::default());
    }

    #[test]
    fn wrong_matchers_name_key_value_and_what_is_allowed() {
        let text = "signals:\n  health: [{taint: '*'}, {label: {key: a}}, {label: {key: a}}, {unschedulable: true, for: 2h}]\n  \
            healthBuiltIn: [deletion]\n  adminState: off\n  adminStateBuiltIn: [azurePreempt, nodeShutdown, nodeShutdown]\n";
        let lines: Vec<String> = from(text).unwrap_err().0.iter().map(ToString::to_string).collect();
        let wanted = [
            "signals.health: item 1, {\"taint\":\"*\"}, is not allowed; allowed: a taint key such as example.com/draining, or how it begins",
            "signals.health: item 3, {\"label\":{\"key\":\"a\"}}, is not allowed; allowed: each matcher once; label:a is listed before",
            "signals.health: item 4, {\"unschedulable\":true,\"for\":\"2h\"}, is not allowed; allowed: a duration from 0s to 1h",
            "signals.healthBuiltIn: item 1, \"deletion\", is not allowed; allowed: one of deletionTimestamp, nodeShutdown, azurePreempt",
            "signals.adminState: \"off\" is not allowed; allowed: a list of taint keys and other matchers",
            "signals.adminStateBuiltIn: item 1, \"azurePreempt\", is not allowed; allowed: one of deletionTimestamp, nodeShutdown",
            "signals.adminStateBuiltIn: item 3, \"nodeShutdown\", is not allowed; allowed: each signal once",
        ];
        assert_eq!(lines.len(), wanted.len(), "{lines:#?}");
        for (line, wanted) in lines.iter().zip(wanted) {
            assert!(line.starts_with(&format!("f.yaml: {wanted}")), "{line}");
        }
    }

    #[test]
    fn broken_yaml_names_the_line() {
        let violations = from("shutdownDelay: 5s\n  stateDir: [\n").unwrap_err();
        assert!(violations.0[0].message.contains("line 2"), "{violations}");
        let violations = from("shutdownDelay: 5s\nshutdownDelay: 6s\n").unwrap_err();
        assert!(violations.0[0].message.contains("duplicate"), "{violations}");
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
        let flag = |value: &str| FlagOverride {
            flag: "--state-dir",
            key: "stateDir",
            value: value.to_owned(),
        };
        let settings = load(Some(file.path()), &[flag("/flag")]).unwrap();
        assert_eq!(settings.state_dir, Path::new("/flag"));
        assert_eq!(settings.healthz_bind_address.to_string(), "127.0.0.1:1");
        let violations = load(None, &[flag("relative")]).unwrap_err();
        assert!(
            violations
                .to_string()
                .contains("--state-dir: stateDir: \"relative\" is not allowed"),
            "{violations}"
        );
    }

    #[test]
    fn missing_or_huge_file_is_a_violation() {
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
