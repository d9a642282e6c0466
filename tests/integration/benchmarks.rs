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
        let name = result["name"].as_str().unwrap();
        let file = directory.join(format!("{name}-{number}.json"));
        std::fs::write(file, result.to_string()).unwrap();
    }
    script(&directory, &["--runs", "3"])
}

/// What the script prints for the files of this directory, or why it refuses them.
#[allow(
    clippy::unwrap_in_result,
    reason = "an error is what the script says, and not a failure of the test"
)]
fn script(directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/table.py");
    let mut command = Command::new("python3");
    let output = command.arg(script).arg(directory).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

#[test]
fn each_program_has_a_table_between_its_marks() {
    let directory = scratch("benchmarks");
    let write = |row: &str| {
        let mut result = result(9.0, "abcdef12");
        result["name"] = json!(row);
        std::fs::write(directory.join(format!("{row}-1.json")), result.to_string()).unwrap();
    };
    let page = directory.join("page.md");
    let marks = |program: &str| format!("<!-- benches/table.py: {program} -->\nold\n<!-- the end of the table -->\n");
    std::fs::write(&page, format!("{}between\n{}", marks("agent"), marks("leader"))).unwrap();
    let arguments = ["--runs", "1", "--write", page.to_str().unwrap()];

    write("leader-pace");
    script(&directory, &arguments).unwrap();
    let (agent, leader) = parts(&page);
    assert!(agent.contains("\nold\n"), "{agent}");
    assert!(
        leader.contains("| `leader-pace`: ") && !leader.contains("old"),
        "{leader}"
    );

    write("resident-memory");
    script(&directory, &arguments).unwrap();
    let (agent, leader) = parts(&page);
    assert!(
        agent.contains("| `resident-memory`: ") && !agent.contains("old"),
        "{agent}"
    );
    assert!(
        leader.contains("| `leader-pace`: ") && !leader.contains("resident-memory"),
        "{leader}"
    );

    std::fs::write(&page, marks("agent")).unwrap();
    let error = script(&directory, &arguments).unwrap_err();
    assert!(
        error.contains("does not have the marks <!-- benches/table.py: leader -->"),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&page).unwrap(), marks("agent"));
}

/// What the page has before and after the word between its tables.
fn parts(page: &Path) -> (String, String) {
    let text = std::fs::read_to_string(page).unwrap();
    let (agent, leader) = text.split_once("between\n").unwrap();
    (agent.to_owned(), leader.to_owned())
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
