//! Runs a test again in a network namespace of its own, as root.

use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

/// The variable with the name of the test that runs in the namespace.
const TEST_VARIABLE: &str = "HEADGATE_TEST_INSIDE";

/// Runs `body` in a new network namespace that has only loopback.
pub(crate) fn in_network_namespace(test: &str, body: impl FnOnce()) {
    if std::env::var(TEST_VARIABLE).is_ok_and(|inside| inside == test) {
        return body();
    }
    let mut command = Command::new("unshare");
    if std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() != 0) {
        command.arg("--map-root-user");
    }
    let script = "ip link set lo up && exec \"$0\" \"$@\"";
    command.args(["--net", "--", "sh", "-c", script]);
    command.arg(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(TEST_VARIABLE, test);
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    println!("{printed}");
    assert!(
        output.status.success(),
        "{test} in its own network namespace: {}",
        output.status
    );
    assert!(printed.contains("1 passed"), "no test is named {test}");
}
