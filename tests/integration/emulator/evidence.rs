//! The table of evidence in lab/azure-emulator/README.md: every row has a mark that is explained, and names tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// All files below a directory with one of these extensions.
fn files(directory: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, endings));
        } else if endings
            .iter()
            .any(|ending| path.extension().is_some_and(|found| found == *ending))
        {
            found.push(path);
        }
    }
    found
}

/// The names of the tests in Rust and of the steps in Python.
fn tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = BTreeSet::new();
    for directory in ["crates", "lab", "tests/integration", "tests/azure-clients/python"] {
        for file in files(&root.join(directory), &["rs", "py"]) {
            let text = fs::read_to_string(&file).unwrap();
            if let Some((_, steps)) = text.split_once("\nSTEPS = [") {
                let (steps, _) = steps.split_once(']').unwrap();
                names.extend(steps.split(',').map(|step| step.trim().to_owned()));
            }
            let mut is_test = false;
            for line in text.lines().map(str::trim_start) {
                let name = ["async fn ", "fn "].iter().find_map(|word| line.strip_prefix(word));
                if let Some(name) = name.filter(|_| is_test) {
                    names.extend(name.split(['(', '<']).next().map(str::to_owned));
                }
                is_test = line.starts_with("#[test]")
                    || line.starts_with("#[tokio::test")
                    || (is_test && line.starts_with("#["));
            }
        }
    }
    names
}

#[test]
fn every_behaviour_has_a_mark_and_existing_tests() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/azure-emulator/README.md");
    let text = fs::read_to_string(file).unwrap();
    let (before, rest) = text.split_once("<!-- evidence:begin -->").unwrap();
    let (table, _) = rest.split_once("<!-- evidence:end -->").unwrap();
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|')
            .split(" | ")
            .map(|cell| cell.trim().to_owned())
            .collect()
    };
    let marks: BTreeSet<String> = before
        .lines()
        .rev()
        .take_while(|line| !line.starts_with('#'))
        .filter(|line| line.starts_with("| "))
        .map(|line| cells(line)[0].clone())
        .collect();
    let (tests, mut rows) = (tests(), 0);
    for line in table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| behaviour"))
    {
        let row = cells(line);
        rows += 1;
        if row[1] == "not emulated" {
            continue;
        }
        assert!(marks.contains(&row[1]), "{} is not explained: {line}", row[1]);
        let named: Vec<&str> = row[2].split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test: {line}");
        for name in named {
            assert!(tests.contains(name), "{name} is not a test: {line}");
        }
    }
    assert!(rows > 50, "{rows} rows");
}
