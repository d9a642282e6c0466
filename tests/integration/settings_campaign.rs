//! Settings files that are generated from the JSON schema ([`samples`]): the schema and the program accept the same ones, but for what a schema
//! cannot say, and the program prints what it accepts (`--check-config`). `HEADGATE_CAMPAIGN=2400` sets how many,
//! `HEADGATE_CAMPAIGN_SEED=17` repeats a run.

use std::path::Path;
use std::process::Command;

use headgate::config::{Settings, load, schema};
use headgate_core::settings::{SettingsError, Violation, describe_value, scalar_text};
use headgate_test_kubernetes::{Sample, number_from, samples, scratch};
use serde_json::Value;

/// Files in CI.
const DEFAULT_SIZE: u64 = 200;
/// One of so many files, of those accepted and of those refused, is also given to the program itself.
const PER_PROCESS: usize = 10;
/// A longer value may be shortened.
const LONG: usize = 64;
/// What only the program knows: keys, and a part of the messages.
const BEYOND_SCHEMA: [(&str, &str); 20] = [
    ("healthzBindAddress", "an IP address with a port"),
    ("metricsBindAddress", "an IP address with a port"),
    ("metricsBindAddress", "has the port of healthzBindAddress"),
    ("kubeProxyHealthzUrl", "the address of kube-proxy"),
    ("kubeProxyHealthzUrl", "where kube-proxy listens"),
    ("connections.excludedSources", "an address or a prefix"),
    ("notifications.template", "a template"),
    ("delayTermination.clusterAutoscaler", "a duration from"),
    (
        "delayTermination.clusterAutoscaler",
        "is not allowed without the condition",
    ),
    ("outOfLoadBalancers.source", "is not allowed beside"),
    ("maintenance.automatic", "a duration from"),
    ("maintenance.automatic", "each cause once"),
    ("maintenance.automatic", "without maintenance.enabled"),
    ("maintenance.enabled", "where the signal maintenance"),
    ("signals.extra", "a duration from"),
    ("signals.extra", "each signal once"),
    ("signals.extra", "is not allowed beside signals.disabled"),
    ("signals.extra", "which is the name of this taint"),
    ("signals.extra", "bytes without control characters"),
    // Of an annotation 256 bytes, of which a schema counts characters.
    ("signals.extra", "{annotation: {key"),
];

fn is_beyond_schema(violation: &Violation) -> bool {
    let mut known = BEYOND_SCHEMA.iter();
    known.any(|(key, part)| violation.key.as_deref() == Some(*key) && violation.message.contains(*part))
}

/// The values of a key, of which each part may have dots of its own: one, unless it is written in two ways.
fn values_of<'a>(document: &'a serde_yaml::Value, key: &str) -> Vec<&'a serde_yaml::Value> {
    let ends = key.match_indices('.').map(|(dot, _)| (&key[..dot], &key[dot + 1..]));
    let below = ends.filter_map(|(name, rest)| Some(values_of(document.get(name)?, rest)));
    document.get(key).into_iter().chain(below.flatten()).collect()
}

/// Whether a message has the value of its key, or of the item that it is about. Of a list, a section or a long text it may have a part.
fn names_value(document: &serde_yaml::Value, violation: &Violation) -> bool {
    let key = violation.key.as_deref().unwrap_or_default();
    let item = violation.message.strip_prefix("item ");
    let number = item.and_then(|item| item.split_once(", ")?.0.parse::<usize>().ok());
    let named = violation.message.split("; allowed: ").next().unwrap_or_default();
    let is_named = |value: &serde_yaml::Value| {
        let value = number.map_or(Some(value), |number| value.get(number - 1));
        let is_short = |value: &&serde_yaml::Value| scalar_text(value).is_some_and(|text| text.chars().count() < LONG);
        value
            .filter(is_short)
            .is_none_or(|value| named.contains(&describe_value(value)))
    };
    let values = values_of(document, key);
    values.is_empty() || values.into_iter().any(is_named)
}

/// What is wrong with the messages of a refusal.
fn wrong_messages(sample: &Sample, is_by_schema: bool, file: &Path, error: &SettingsError) -> Vec<String> {
    let document = serde_yaml::to_value(&sample.value).unwrap();
    let mut wrong = Vec::new();
    for violation in &error.0 {
        let line = violation.to_string();
        let is_unreadable = |c: char| {
            c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c)
        };
        let is_named = line.starts_with(&file.display().to_string())
            && (violation.key.is_some() || line.contains("not a key") || !sample.value.is_object());
        if !is_named || !line.contains("allowed: ") || line.contains(is_unreadable) {
            wrong.push(format!("{line:?} does not name file, key and what is allowed"));
        }
        if !names_value(&document, violation) {
            wrong.push(format!("{line:?} does not name the value"));
        }
    }
    let is_found = |violation: &Violation| sample.is_about(violation.key.as_deref().unwrap_or_default());
    if is_by_schema && !error.0.iter().any(is_found) {
        wrong.push(format!("no message is about {}: {error}", sample.at));
    }
    wrong
}

/// What is wrong about the program's own answer to a file: it prints the settings in effect, or what it refuses.
fn wrong_answer(file: &Path, settings: Option<&Settings>) -> Option<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    let output = command
        .args(["agent", "--role=agent", "--check-config", "--config"])
        .arg(file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_right = match settings {
        Some(settings) => output.status.success() && output.stdout == settings.to_yaml().into_bytes(),
        None => {
            output.status.code() == Some(2) && said.contains(&file.display().to_string()) && said.contains("allowed: ")
        }
    };
    (!is_right).then(|| format!("{}: {said}{}", output.status, String::from_utf8_lossy(&output.stdout)))
}

#[test]
fn campaign_of_settings() {
    let seed = number_from("HEADGATE_CAMPAIGN_SEED").unwrap_or(1);
    let size = number_from("HEADGATE_CAMPAIGN").unwrap_or(DEFAULT_SIZE);
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let file = scratch("campaign").join("settings.yaml");
    let (mut accepted, mut refused, mut beyond) = (0, 0, 0);
    let mut findings = Vec::new();
    for (number, sample) in samples(&schema, seed, usize::try_from(size).unwrap())
        .into_iter()
        .enumerate()
    {
        let text = serde_yaml::to_string(&sample.value).unwrap();
        std::fs::write(&file, &text).unwrap();
        let document: Value = serde_yaml::from_str(&text).unwrap();
        let by_schema: Vec<_> = validator
            .iter_errors(&document)
            .map(|error| error.to_string())
            .collect();
        let mut found = Vec::new();
        match load(Some(&file), &[]) {
            Ok(settings) => {
                accepted += 1;
                found.extend(by_schema.first().map(|error| format!("the schema refuses: {error}")));
                if accepted % PER_PROCESS == 0 {
                    found.extend(wrong_answer(&file, Some(&settings)));
                }
                std::fs::write(&file, settings.to_yaml()).unwrap();
                if load(Some(&file), &[]) != Ok(settings) {
                    found.push("what is printed is read as something else".to_owned());
                }
            }
            Err(error) => {
                refused += 1;
                found.extend(wrong_messages(&sample, !by_schema.is_empty(), &file, &error));
                if by_schema.is_empty() {
                    beyond += 1;
                    let different = error.0.iter().filter(|violation| !is_beyond_schema(violation));
                    found.extend(different.map(|violation| format!("the schema accepts: {violation}")));
                }
                if refused % PER_PROCESS == 0 {
                    found.extend(wrong_answer(&file, None));
                }
            }
        }
        findings.extend(
            found
                .into_iter()
                .map(|text| format!("{number} {}: {}\n    {text}", sample.at, sample.change)),
        );
    }
    println!("settings: {accepted} accepted, {refused} refused, of which {beyond} by rules beyond the schema");
    assert!(
        accepted >= PER_PROCESS && refused > beyond && beyond > 0,
        "each kind is to be tried"
    );
    assert!(
        findings.is_empty(),
        "{} findings\n{}",
        findings.len(),
        findings.join("\n")
    );
}
