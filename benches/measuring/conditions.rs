//! What figures depend on, for their files to state: the commit, how the program was built, the kernel, and the machine.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value, json};

/// All of them but the load.
pub(crate) fn conditions() -> Map<String, Value> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let conditions = json!({
        "commit": commit(), "profile": profile(), "kernel": first_line("/proc/sys/kernel/osrelease"), "processor": processor(),
        "cores": cores,
    });
    conditions.as_object().cloned().unwrap_or_default()
}

/// The commit of the sources, with `-dirty` where they differ from it; outside of a repository `HEADGATE_COMMIT`.
fn commit() -> String {
    let mut git = Command::new("git");
    git.current_dir(env!("CARGO_MANIFEST_DIR"));
    let described = git.args(["describe", "--always", "--dirty", "--exclude", "*"]).output();
    let described = described.ok().filter(|output| output.status.success());
    let described = described.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let given = || env::var("HEADGATE_COMMIT").unwrap_or_else(|_| "not-stated".to_owned());
    described.unwrap_or_else(given)
}

/// The directory of the program, which is that of its profile, and what the environment changes about profiles.
fn profile() -> String {
    let directory = Path::new(env!("CARGO_BIN_EXE_headgate"))
        .parent()
        .and_then(Path::file_name)
        .unwrap_or_default();
    let changes = env::vars().filter(|(name, _)| name.starts_with("CARGO_PROFILE_") || name == "RUSTFLAGS");
    let mut changes: Vec<_> = changes.map(|(name, value)| format!("{name}={value}")).collect();
    changes.sort();
    changes.insert(0, directory.to_string_lossy().into_owned());
    changes.join(" ")
}

fn first_line(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().next().unwrap_or("?").to_owned()
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name"));
    model.map_or_else(
        || "?".to_owned(),
        |model| model.trim_start_matches([' ', '\t', ':']).to_owned(),
    )
}
