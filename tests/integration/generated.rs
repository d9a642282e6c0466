//! What is generated is checked in and compared here; `make docs` writes it anew.

use std::fmt::Write as _;

use expect_test::expect_file;
use headgate::config::{Settings, reference, schema};
use serde_json::Value;

mod command_line;

#[test]
fn generated_settings_reference() {
    expect_file!["../../docs/reference/settings.md"].assert_eq(&reference());
}

#[test]
fn generated_settings_schema() {
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    expect_file!["../../docs/reference/settings.schema.json"].assert_eq(&text);
}

/// The assumptions that `headgate verify` asks: a table of a page that is written by hand otherwise.
#[test]
fn generated_assumptions() {
    const BEGIN: &str = "<!-- assumptions:begin -->\n";
    const END: &str = "<!-- assumptions:end -->";
    let text = std::fs::read_to_string("docs/concepts/limits.md").unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let table = headgate::verify::table();
    let expected = format!("{before}{BEGIN}{table}{END}{after}");
    expect_file!["../../docs/concepts/limits.md"].assert_eq(&expected);
}

/// The settings in the schema of the chart's values: one generated line of a file that is written by hand otherwise.
#[test]
fn generated_settings_in_the_chart() {
    let mut settings = without_texts(&schema(), false);
    // The chart sets apiVersion and kind.
    settings.as_object_mut().unwrap().remove("required");
    let text = std::fs::read_to_string("charts/headgate/values.schema.json").unwrap();
    let is_settings = |line: &str| line.starts_with("    \"settings\": {\"additionalProperties\"");
    let lines = text.lines().map(|line| match line {
        line if is_settings(line) => format!("    \"settings\": {settings}\n"),
        line => format!("{line}\n"),
    });
    assert_eq!(text.lines().filter(|line| is_settings(line)).count(), 1);
    expect_file!["../../charts/headgate/values.schema.json"].assert_eq(&lines.collect::<String>());
}

/// A schema without what is for readers only. `names` says that the keys are names of settings.
fn without_texts(schema: &Value, names: bool) -> Value {
    const TEXTS: [&str; 5] = ["$schema", "default", "description", "examples", "title"];
    match schema {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| names || !TEXTS.contains(&key.as_str()));
            kept.map(|(key, value)| (key.clone(), without_texts(value, key == "properties")))
                .collect()
        }
        Value::Array(items) => items.iter().map(|item| without_texts(item, false)).collect(),
        value => value.clone(),
    }
}

#[test]
fn generated_cli_reference() {
    let text = command_line::reference(headgate::cli::definition());
    expect_file!["../../docs/reference/cli.md"].assert_eq(&text);
}

/// The labels of families that have no series at the start, by the beginning of their names; the longest decides.
const LABELS_OF_LATER_SERIES: &[(&str, &[&str])] = &[
    (
        "cloudprovider_azure_",
        &["request", "resource_group", "subscription_id", "source"],
    ),
    (
        "cloudprovider_azure_api_request_errors",
        &["request", "resource_group", "subscription_id", "source", "code"],
    ),
    ("cloudprovider_azure_lock_wait_duration_seconds", &["lock", "caller"]),
    ("headgate_admin_state_changes_total", &["to", "result"]),
    ("headgate_admin_state_signalled_nodes", &["signal"]),
    ("headgate_arm_request", &["request", "source"]),
    ("headgate_arm_request_errors_total", &["request", "source", "code"]),
    ("headgate_listener_", &["listener"]),
    ("headgate_listener_proxy_headers_total", &["listener", "outcome"]),
    ("headgate_local_pools_oldest_update_timestamp_seconds", &[]),
    ("headgate_local_pools_parked", &[]),
    ("headgate_local_pools_queue_depth", &[]),
    ("headgate_maintenance", &[]),
    ("headgate_maintenance_pods", &["state"]),
    ("headgate_maintenances", &["stage"]),
    ("headgate_maintenances_blocked", &[]),
    ("headgate_node_connections", &["service"]),
    ("headgate_pool_", &["load_balancer", "pool"]),
    ("headgate_service_ports", &["state"]),
    ("headgate_spot_notice_", &["type"]),
    ("headgate_undecodable_objects", &["kind"]),
];

/// The labels of a family without series.
fn labels_of_later_series(name: &str) -> &'static [&'static str] {
    let rows = LABELS_OF_LATER_SERIES
        .iter()
        .filter(|(start, _)| name.starts_with(start));
    let row = rows.max_by_key(|(start, _)| start.len());
    row.unwrap_or_else(|| panic!("{name} has no series at the start: add its labels to LABELS_OF_LATER_SERIES"))
        .1
}

/// A help text without its words about labels, which the list has in a column.
fn without_labels(help: &str, labels: &[&str]) -> String {
    let (last, others) = match labels {
        [] => return help.to_owned(),
        [only] => (*only, String::new()),
        [others @ .., last] => (*last, format!("{} and ", others.join(", "))),
    };
    help.replacen(&format!(", by {others}{last}"), "", 1)
}

#[test]
fn generated_metrics_list() {
    let text = headgate::agent::metrics_at_start(&Settings::default()).unwrap();
    let mut kinds: Vec<(String, String, String)> = Vec::new();
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap().1;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let suffix = if kind == "counter" { "_total" } else { "" };
            kinds.push((format!("{name}{suffix}"), kind.to_owned(), help.to_owned()));
        }
    }
    kinds.sort();
    let mut list = String::from(
        "# Metrics\n\n<!-- Generated from the registry by `make docs`; a test compares it. -->\n\n\
         Look up here what `/metrics` of the operations port serves, as OpenMetrics or Prometheus text by the Accept header. \
         [Monitoring](../guides/monitoring.md) says which to look at. What ends in `_total` is a counter, \
         anything else a gauge, unless noted. Of those with *leader* only the leader has values.\n\n",
    );
    for (name, kind, help) in kinds {
        let is_sample = |line: &&str| {
            let rest = line.strip_prefix(name.as_str());
            let rest = rest.map(|rest| rest.strip_prefix("_bucket").unwrap_or(rest));
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        };
        let labels: Vec<&str> = match text.lines().find(is_sample) {
            Some(sample) => {
                let labels = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
                let labels = labels.map_or("", |(labels, _)| labels).split(',');
                let names = labels.filter_map(|label| Some(label.split_once('=')?.0));
                names.filter(|label| *label != "le").collect()
            }
            None => labels_of_later_series(&name).to_vec(),
        };
        let help = without_labels(&help, &labels);
        let labels = match labels.join(",") {
            none if none.is_empty() => none,
            labels => format!("{{{labels}}}"),
        };
        let of_leader = ["; on the leader only.", ". On the leader only."];
        let (help, is_of_leader) = match of_leader.iter().find_map(|end| help.strip_suffix(end)) {
            Some(help) => (format!("{help}."), true),
            None => (help, false),
        };
        let notes = [
            (kind != "counter").then_some(kind.as_str()),
            is_of_leader.then_some("leader"),
        ];
        let notes: Vec<&str> = notes.into_iter().flatten().collect();
        let notes = match notes.join(", ") {
            none if none.is_empty() => none,
            notes => format!(" ({notes})"),
        };
        writeln!(list, "- `{name}{labels}`{notes}: {help}").unwrap();
    }
    expect_file!["../../docs/reference/metrics.md"].assert_eq(&list);
}
