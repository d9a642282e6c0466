//! The alerts: promtool accepts the rules and passes the rule tests of `tests/alerts`; every alert has such tests and a runbook, and
//! the metrics of rules and runbooks exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use headgate_test_kubernetes::scratch;
use serde_json::Value;

/// The files of rules.
const FILES: [&str; 2] = ["agents", "leader"];
/// The files of rule tests.
const TESTS: [&str; 3] = ["agents", "azure", "clusters"];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_yaml::from_str(&text(path)).unwrap()
}

/// The rules of a file, as Prometheus' own file has them.
fn spec(file: &str) -> Value {
    yaml(&format!("charts/headgate/files/alerts/{file}.yaml"))
}

fn rules() -> Vec<Value> {
    let groups = FILES.map(|name| spec(name)["groups"].as_array().unwrap().clone());
    let groups = groups.concat();
    groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

/// The alerts by name.
fn alerts() -> BTreeMap<String, Value> {
    let alerts = rules()
        .into_iter()
        .filter_map(|rule| Some((rule["alert"].as_str()?.to_owned(), rule)));
    alerts.collect()
}

/// What runs before a histogram's suffix, so that the name is one of docs/reference/metrics.md.
fn family(name: &str) -> &str {
    ["_bucket", "_count", "_sum"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name)
}

/// The names of all metrics.
pub(crate) fn documented() -> BTreeSet<String> {
    documented_labels().into_keys().collect()
}

/// The labels of each family, as docs/reference/metrics.md has them: each row begins with `name{label,label}`.
pub(crate) fn documented_labels() -> BTreeMap<String, BTreeSet<String>> {
    let list = text("docs/reference/metrics.md");
    let names = list
        .lines()
        .filter_map(|line| line.strip_prefix("- `")?.split('`').next());
    let row = |name: &str| {
        let (name, labels) = name.split_once('{').unwrap_or((name, ""));
        let labels = labels.trim_end_matches('}').split(',').map(str::to_owned);
        (name.to_owned(), labels.filter(|label| !label.is_empty()).collect())
    };
    names.map(row).collect()
}

/// What Prometheus and the `PodMonitor` add to the series of each target, and what a histogram's buckets have.
const TARGET_LABELS: [&str; 6] = ["cluster", "instance", "job", "le", "node", "pod"];

/// The labels that an expression names and no series of its metrics has: those in the braces of a metric, in lists such as `by (…)`, and
/// `others`, which name a label of the result.
pub(crate) fn unknown_labels(
    expression: &str,
    others: impl Iterator<Item = String>,
    documented: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<String> {
    let labels = |metric: &str| {
        let own = documented.get(metric).or_else(|| documented.get(family(metric)));
        own.into_iter().flatten().map(String::as_str).chain(TARGET_LABELS)
    };
    let mut unknown = BTreeSet::new();
    let mut rest = expression;
    while let Some((before, after)) = rest.split_once('{') {
        let metric = before.rsplit(|character| !is_part(character)).next().unwrap();
        let (matchers, end) = after.split_once('}').unwrap();
        let names = matchers
            .split(',')
            .map(|matcher| matcher.split(['=', '!']).next().unwrap().trim());
        unknown.extend(
            names
                .filter(|name| !labels(metric).any(|label| label == *name))
                .map(str::to_owned),
        );
        rest = end;
    }
    let lists = [" by (", " on (", " without (", " ignoring ("].map(|keyword| expression.split(keyword).skip(1));
    let listed = lists
        .into_iter()
        .flatten()
        .filter_map(|list| Some(list.split_once(')')?.0));
    let listed = listed.flat_map(|list| list.split(',').map(|name| name.trim().to_owned()));
    let metrics = metrics_of(expression);
    let all: BTreeSet<&str> = metrics
        .iter()
        .flat_map(|metric| labels(metric))
        .chain(TARGET_LABELS)
        .collect();
    let named = listed.filter(|name| !name.is_empty()).chain(others);
    unknown.extend(named.filter(|name| !all.contains(name.as_str())));
    unknown
}

fn is_part(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_:".contains(character)
}

/// Whether a metric is one of headgate's, or one that Prometheus adds to each target.
pub(crate) fn exists(name: &str, documented: &BTreeSet<String>) -> bool {
    name == "up" || documented.contains(name) || documented.contains(family(name))
}

/// The metrics that an expression reads; recording rules are not metrics.
pub(crate) fn metrics_of(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|character| !is_part(character));
    let ours = ["headgate_", "cloudprovider_azure_", "proxy_", "process_"];
    let names = words.filter(|word| *word == "up" || ours.iter().any(|prefix| word.starts_with(prefix)));
    names.map(str::to_owned).collect()
}

#[track_caller]
fn promtool(directory: &Path, arguments: &[&str]) {
    let output = Command::new("promtool").current_dir(directory).args(arguments).output();
    let output =
        output.unwrap_or_else(|error| panic!("promtool: {error}; `tests/prerequisites.sh prometheus` installs it"));
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&said)
    );
}

#[test]
fn promtool_passes_the_rule_tests() {
    let directory = scratch("alerts");
    for name in FILES {
        let file = format!("{name}.rules.yaml");
        std::fs::write(directory.join(&file), spec(name).to_string()).unwrap();
        promtool(&directory, &["check", "rules", &file]);
    }
    for name in TESTS.map(|name| format!("{name}.yaml")) {
        std::fs::copy(repository("tests/alerts").join(&name), directory.join(&name)).unwrap();
        promtool(&directory, &["test", "rules", &name]);
    }
}

#[test]
fn a_rule_test_fails_where_its_rule_is_wrong() {
    let directory = scratch("alerts");
    let wrong = spec("agents")
        .to_string()
        .replace("absent(headgate_build_info)", "absent(headgate_leader)");
    std::fs::write(directory.join("agents.rules.yaml"), wrong).unwrap();
    std::fs::copy(repository("tests/alerts/agents.yaml"), directory.join("agents.yaml")).unwrap();
    let mut command = Command::new("promtool");
    let output = command
        .current_dir(&directory)
        .args(["test", "rules", "agents.yaml"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = [output.stdout, output.stderr].concat();
    assert!(String::from_utf8_lossy(&said).contains("HeadgateAbsent"));
}

#[test]
fn every_alert_fires_in_a_rule_test_and_stays_quiet_in_another() {
    let tests = TESTS.map(|name| yaml(&format!("tests/alerts/{name}.yaml"))["tests"].clone());
    let tests: Vec<Value> = tests
        .iter()
        .flat_map(|tests| tests.as_array().unwrap().clone())
        .collect();
    for alert in alerts().keys() {
        let asked = |test: &&Value| test.to_string().contains(&format!("alertname=\\\"{alert}\\\""));
        let samples = |test: &Value| {
            let samples = test["promql_expr_test"].as_array().unwrap().iter();
            samples
                .map(|sample| sample["exp_samples"].as_array().unwrap().len())
                .sum::<usize>()
        };
        let counts: Vec<usize> = tests.iter().filter(asked).map(samples).collect();
        assert!(
            counts.contains(&0),
            "{alert} has no rule test in which it stays quiet: {counts:?}"
        );
        assert!(
            counts.iter().any(|count| *count > 0),
            "{alert} has no rule test in which it fires"
        );
    }
}

#[test]
fn every_alert_has_a_runbook_about_existing_metrics() {
    let (alerts, documented) = (alerts(), documented());
    let page = text("docs/reference/runbooks.md");
    let runbooks: BTreeMap<&str, &str> = page
        .split("\n## Headgate")
        .skip(1)
        .map(|runbook| runbook.split_once('\n').unwrap())
        .collect();
    for (name, alert) in &alerts {
        let link = format!("docs/reference/runbooks.md#{}", name.to_lowercase());
        assert_eq!(alert["annotations"]["runbook_url"], link.as_str());
        for key in ["summary", "description"] {
            assert!(
                alert["annotations"][key].as_str().is_some_and(|text| text.len() > 20),
                "{name} {key}"
            );
        }
        assert!(
            ["info", "warning", "critical"].contains(&alert["labels"]["severity"].as_str().unwrap()),
            "{name}"
        );
        let runbook = runbooks[name.strip_prefix("Headgate").unwrap()];
        // What it means, what to look at, and how to end it.
        let parts: Vec<&str> = runbook.split("\n\n").collect();
        let has_meaning = parts[0].trim().len() > 20 && !parts[0].contains("```");
        let [check, fix] =
            ["```sh\n", "- "].map(|start| parts.iter().position(|part| part.trim_start().starts_with(start)));
        assert!(has_meaning && check.is_some() && check < fix, "{name}: {runbook}");
    }
    assert!(page.contains("\n**Do not**"));
    for metric in metrics_of(&page) {
        assert!(
            exists(&metric, &documented),
            "{metric} is not in docs/reference/metrics.md"
        );
    }
    for name in runbooks.keys() {
        let name = format!("Headgate{name}");
        assert!(alerts.contains_key(&name), "the runbook {name} is of no alert");
    }
}

#[test]
fn every_rule_reads_existing_metrics_and_labels_and_recorded_series() {
    let (rules, documented, labels) = (rules(), documented(), documented_labels());
    let recorded: BTreeSet<&str> = rules.iter().filter_map(|rule| rule["record"].as_str()).collect();
    assert!(recorded.len() >= 5);
    for rule in &rules {
        let expression = rule["expr"].as_str().unwrap();
        for metric in metrics_of(expression) {
            assert!(
                exists(&metric, &documented),
                "{metric} is not in docs/reference/metrics.md: {expression}"
            );
        }
        let texts = rule["annotations"].to_string();
        let templates = texts.split("$labels.").skip(1);
        let templates = templates.map(|text| text.split(|character| !is_part(character)).next().unwrap().to_owned());
        let unknown = unknown_labels(expression, templates, &labels);
        assert!(unknown.is_empty(), "{unknown:?}: {rule}");
        for word in expression.split(|character: char| !is_part(character)) {
            assert!(
                !word.starts_with("headgate:") || recorded.contains(word),
                "{word}: {expression}"
            );
        }
    }
}

#[test]
fn unknown_labels_are_found() {
    let documented = [("headgate_a_total".to_owned(), ["code".to_owned()].into())].into();
    for (expression, template, expected) in [
        (
            "sum by (cluster, code) (headgate_a_total{job=~\"x\",code!=\"1\"})",
            "code",
            "",
        ),
        ("sum by (cod) (headgate_a_total)", "code", "cod"),
        ("headgate_a_total{cod=~\"1\"}", "code", "cod"),
        ("a / on (cod) headgate_a_total", "code", "cod"),
        ("headgate_a_total", "cod", "cod"),
    ] {
        let found = unknown_labels(expression, [template.to_owned()].into_iter(), &documented);
        assert_eq!(found.into_iter().collect::<String>(), expected, "{expression}");
    }
}
