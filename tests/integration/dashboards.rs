//! The Grafana dashboards: each matches Grafana's published schema, and each query runs on a real Prometheus that scrapes a running
//! sandbox. With `HEADGATE_CHARTS=1` the answers are drawn for docs/guides/monitoring.md (`make dashboards`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use headgate_test_kubernetes::{eventually, kubectl, met, scratch};
use nix::sys::signal::Signal;
use serde_json::Value;

use self::prometheus::Prometheus;
use crate::alerts::{documented, documented_labels, exists, metrics_of, unknown_labels};
use crate::harness::http;
use crate::sandbox::command::Sandbox;

mod drawing;
mod prometheus;

const FOLDER: &str = "charts/headgate/files/dashboards";
/// Timeout of each wait, long enough for an election on a busy machine.
const SOON: Duration = Duration::from_mins(2);
/// What no node of a sandbox does: be maintained, be evicted, fail. Queries of these may have no answer.
const WITHOUT_SERIES: [&str; 12] = [
    "headgate_admin_state_last_list_timestamp_seconds",
    "headgate_arm_request_errors_total",
    "headgate_arm_requests_rate_limited_total",
    "headgate_imds_errors_total",
    "headgate_leader_failed_terms_total",
    "headgate_listener_closed_total",
    "headgate_maintenance_blockers",
    "headgate_maintenance_pods",
    "headgate_maintenances",
    "headgate_maintenance_stage_duration_seconds_bucket",
    "headgate_maintenance_out_to_first_evacuation_seconds_bucket",
    "headgate_node_connections",
];
/// The panels that docs/guides/monitoring.md shows: dashboard, panel, file.
const CHARTS: [(&str, &str, &str); 4] = [
    ("headgate-agents", "Nodes with a signal", "agents-signals"),
    ("headgate-agents", "Answers of /healthz", "agents-healthz"),
    (
        "headgate-leader",
        "Entries that should be Down and are",
        "leader-entries",
    ),
    ("headgate-leader", "Requests to ARM", "leader-requests"),
];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The dashboards' files, in their order.
fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository(FOLDER)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    files
}

fn dashboards() -> Vec<Value> {
    let read = |path: PathBuf| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    files().into_iter().map(read).collect()
}

/// A query of a panel.
struct Query {
    dashboard: String,
    panel: String,
    expression: String,
    legend: String,
}

fn queries() -> Vec<Query> {
    let mut queries = Vec::new();
    for dashboard in dashboards() {
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                queries.push(Query {
                    dashboard: text(&dashboard["uid"]),
                    panel: text(&panel["title"]),
                    expression: text(&target["expr"]),
                    legend: text(&target["legendFormat"]),
                });
            }
        }
    }
    queries
}

/// The check against Grafana's schema, which tests/dashboards/build.sh fetches.
fn check(files: &[PathBuf]) -> Output {
    let script = repository("tests/dashboards/build.sh");
    let built = Command::new(&script).output().unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{}: {errors}", script.display());
    let program = String::from_utf8(built.stdout).unwrap();
    Command::new("node")
        .arg(program.trim_end())
        .args(files)
        .output()
        .unwrap()
}

#[test]
fn dashboards_match_grafanas_published_schema() {
    assert!(files().len() >= 4);
    let output = check(&files());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let right = std::fs::read_to_string(&files()[0]).unwrap();
    for (before, after) in [
        ("\"unit\": \"short\"", "\"unti\": \"short\""),
        ("\"displayMode\": \"list\"", "\"displayMode\": \"lst\""),
        ("\"gridPos\"", "\"gridPosition\""),
    ] {
        let wrong = scratch("dashboard").join("wrong.json");
        assert!(right.contains(before), "{before}");
        std::fs::write(&wrong, right.replace(before, after)).unwrap();
        assert_eq!(check(&[wrong]).status.code(), Some(1), "{after}");
    }
}

#[test]
fn dashboards_read_existing_metrics_and_labels_and_have_descriptions() {
    let (documented, labels) = (documented(), documented_labels());
    let mut ids = BTreeSet::new();
    for dashboard in dashboards() {
        assert!(ids.insert(dashboard["uid"].to_string()), "{}", dashboard["uid"]);
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(
                panel["description"].as_str().is_some_and(|text| text.len() > 10),
                "{}",
                panel["title"]
            );
            let place = &panel["gridPos"];
            assert!(
                place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24,
                "{}",
                panel["title"]
            );
        }
    }
    for query in queries() {
        let metrics = metrics_of(&query.expression);
        assert!(!metrics.is_empty(), "{}", query.expression);
        for metric in metrics {
            assert!(
                exists(&metric, &documented),
                "{metric} is not in docs/reference/metrics.md: {}",
                query.expression
            );
        }
        let legend = query.legend.split("{{").skip(1);
        let legend = legend.filter_map(|part| Some(part.split_once("}}")?.0.to_owned()));
        let unknown = unknown_labels(&query.expression, legend, &labels);
        assert!(unknown.is_empty(), "{unknown:?}: {}", query.expression);
    }
}

/// Fails if a series has a label that docs/reference/metrics.md does not have.
async fn labels_are_documented(prometheus: &Prometheus) {
    let documented = documented_labels();
    let of_target = ["__name__", "instance", "job", "node", "le"];
    let mut seen = BTreeSet::new();
    for series in prometheus
        .series("{__name__=~\"headgate_.*|cloudprovider_.*|proxy_.*\"}")
        .await
    {
        let series = series.as_object().unwrap();
        let name = series["__name__"].as_str().unwrap();
        let family = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix).filter(|name| documented.contains_key(*name)));
        let family = family.unwrap_or(name);
        let labels = &documented
            .get(family)
            .unwrap_or_else(|| panic!("{name} is not in docs/reference/metrics.md"));
        for label in series.keys().filter(|label| !of_target.contains(&label.as_str())) {
            assert!(
                labels.contains(label),
                "docs/reference/metrics.md has no label {label} of {family}"
            );
        }
        seen.insert(family.to_owned());
    }
    assert!(seen.len() >= 40, "{seen:?}");
}

#[tokio::test]
async fn every_query_runs_on_a_prometheus_that_scrapes_a_sandbox() {
    let mut sandbox = Sandbox::start(&["--nodes", "3"]);
    let description = sandbox.description().await;
    let kubeconfig = PathBuf::from(description["kubeconfig"].as_str().unwrap());
    let nodes = description["nodes"].as_array().unwrap().clone();
    let prometheus = Prometheus::start(&nodes).await;
    let kube = |arguments: &[&str]| {
        let output = kubectl(&kubeconfig).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let until = async |what: &str, expression: &str, is_so: fn(f64) -> bool| {
        eventually(SOON, what, async || {
            // Load balancers probe; here the test does.
            for node in &nodes {
                let address = node["healthz"].as_str().unwrap().parse().unwrap();
                http::get(address, "/healthz")
                    .await
                    .map_err(|error| error.to_string())?;
            }
            let value = prometheus.value(expression).await;
            met(value.is_some_and(is_so), format!("{expression} is {value:?}"))
        })
        .await;
    };
    let start = prometheus::now();
    until("all targets are up", "sum(up)", |up| up >= 3.0).await;
    until("an instance leads", "sum(headgate_leader)", |leaders| leaders >= 1.0).await;
    until("the pools are known", "sum(headgate_pool_addresses)", |entries| {
        entries >= 3.0
    })
    .await;
    until("some scrapes", "min(count_over_time(up[1h]))", |count| count >= 10.0).await;
    kube(&["taint", "node", "node-2", "headgate.dev/maintenance=:NoSchedule"]);
    until("entries are Down", "sum(headgate_pool_actual_down)", |down| down >= 1.0).await;
    until(
        "one node answers 503",
        "count(headgate_healthy{path=\"healthz\"} == 0)",
        |out| out >= 1.0,
    )
    .await;
    until(
        "it shows",
        "min(count_over_time((headgate_pool_actual_down > 0)[1h:1s]))",
        |count| count >= 8.0,
    )
    .await;
    kube(&["taint", "node", "node-2", "headgate.dev/maintenance-"]);
    until("entries are None again", "sum(headgate_pool_actual_down)", |down| {
        down == 0.0
    })
    .await;
    until(
        "it shows",
        "min(count_over_time((headgate_pool_actual_down == 0)[10s:1s]))",
        |count| count >= 5.0,
    )
    .await;

    let end = prometheus::now();
    let mut empty = Vec::new();
    let mut drawn: BTreeMap<&str, Vec<drawing::Line>> = BTreeMap::new();
    for query in queries() {
        let expression = query.expression.replace("$__rate_interval", "10s");
        let expression = expression.replace("$cluster", ".*").replace("$node", "node-2");
        let series = prometheus.range(&expression, start, end).await;
        let may_be_empty = |metric: &String| WITHOUT_SERIES.contains(&metric.as_str());
        if series.is_empty() && !metrics_of(&expression).iter().all(may_be_empty) {
            empty.push(format!("{} / {}: {expression}", query.dashboard, query.panel));
        }
        let chart = CHARTS
            .iter()
            .find(|(uid, panel, _)| *uid == query.dashboard && *panel == query.panel);
        if let Some((_, _, file)) = chart {
            drawn
                .entry(file)
                .or_default()
                .extend(series.iter().map(|series| drawing::Line::new(series, &query.legend)));
        }
    }
    assert!(
        empty.is_empty(),
        "no answer in a sandbox with a leader:\n{}",
        empty.join("\n")
    );
    labels_are_documented(&prometheus).await;
    assert_eq!(drawn.len(), CHARTS.len(), "every chart has a panel");
    if std::env::var_os("HEADGATE_CHARTS").is_some() {
        for (_, panel, file) in CHARTS {
            let path = repository(&format!("docs/dashboards/{file}.svg"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, drawing::draw(panel, &drawn[file])).unwrap();
        }
    }
    prometheus.stop().await;
    sandbox.signal(Signal::SIGINT);
    assert_eq!(sandbox.exit_code().await, Some(0), "{}", sandbox.errors());
}
