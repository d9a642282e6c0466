//! `benches/table.py` puts runs of one commit together and refuses others.

use std::path::Path;
use std::process::Command;

use headgate_test_kubernetes::scratch;
use serde_json::{Value, json};

/// A result of one row as a benchmark writes it.
fn result(value: f64, commit: &str) -> Value {
    json!({
        "name": "resident-memory",
        "checks": [{"figure": "added per node: resident", "value": value, "unit": "MiB", "peer": 100.0, "peer_name": "kube-proxy",
            "ratio": value / 100.0, "budget": "≤ 10 MiB", "pass": value <= 10.0}],
        "conditions": {"commit": commit, "profile": "release", "kernel": "6.18.5", "processor": "any", "cores": 2,
            "precedence": true, "loadAverage": "0.50"},
    })
}

/// What the script prints for these files, or why it refuses them.
#[allow(
    clippy::unwrap_in_result,
    reason = "an error is what the script says, and not a failure of the test"
)]
fn table(results: &[Value]) -> Result<String, String> {
    let directory = scratch("benchmarks");
    for (number, result) in (1..).zip(results) {
        let file = directory.join(format!("resident-memory-{number}.json"));
        std::fs::write(file, result.to_string()).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/table.py");
    let mut command = Command::new("python3");
    let output = command
        .arg(script)
        .arg(&directory)
        .args(["--runs", "3"])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

#[test]
fn a_table_of_benchmarks_is_of_one_clean_commit() {
    let runs = |commits: [&str; 3]| -> Vec<Value> {
        [9.0, 12.0, 9.5]
            .into_iter()
            .zip(commits)
            .map(|(value, commit)| result(value, commit))
            .collect()
    };
    let clean = runs(["abcdef12"; 3]);
    let shown = table(&clean).unwrap();
    for expected in [
        "3 runs of commit abcdef12, profile release, Linux 6.18.5, 2 cores (any), load average 0.50 to 0.50.",
        "| `resident-memory`: added per node: resident | ≤ 10 MiB | 9.50 (9.00 to 12.0) MiB | kube-proxy 100 (100 to 100) MiB | 0.10 | no, 2 of 3 |",
    ] {
        assert!(shown.contains(expected), "{expected} in\n{shown}");
    }

    let refused = |results: &[Value], reason: &str| {
        let error = table(results).unwrap_err();
        assert!(error.contains(reason), "{reason} in {error}");
    };
    refused(&runs(["abcdef12", "abcdef12", "1234567a"]), "the commit of");
    refused(&runs(["abcdef12-dirty"; 3]), "is not a commit without changes");
    refused(&clean[..2], "ran 2 times, and not 3");
    refused(&[], "has no results");
    for condition in ["profile", "kernel", "commit"] {
        let mut mixed = clean.clone();
        mixed[1]["conditions"][condition] = json!("another");
        refused(&mixed, &format!("the {condition} of"));
        mixed[1]["conditions"].as_object_mut().unwrap().remove(condition);
        refused(&mixed, &format!("does not state its {condition}"));
    }
    let mut other = clean;
    other[2]["checks"][0]["figure"] = json!("resident");
    refused(&other, "different figures");
}
