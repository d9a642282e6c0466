//! Runs a test again in a network namespace of its own, as root.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

/// The variable with the name of the test that runs in the namespace.
const TEST_VARIABLE: &str = "HEADGATE_TEST_INSIDE";

/// Runs `body` in a new network namespace that has only loopback. Without namespaces or a program that the tests need it prints a line
/// and passes; with `CI=true` it fails, because a check that did not run proves nothing.
pub(crate) fn in_network_namespace(test: &str, body: impl FnOnce()) {
    if std::env::var(TEST_VARIABLE).is_ok_and(|inside| inside == test) {
        return body();
    }
    if let Err(obstacle) = check_available() {
        let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(
            !is_ci,
            "{test} cannot run here ({obstacle}), and CI=true allows no skipping"
        );
        // Not println!, whose output is not shown for a test that passes.
        let _ = writeln!(std::io::stderr(), "{test} not run: {obstacle}");
        return;
    }
    let mut command = unshare("ip link set lo up && exec \"$0\" \"$@\"");
    command.arg(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
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

fn check_available() -> Result<(), String> {
    // An entry shows that the table can be written, and with it what the kernel offers.
    let script = "ip link set lo up && nft list ruleset && conntrack -L -p tcp && setpriv --version";
    let output = unshare(script).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("unshare: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn unshare(script: &str) -> Command {
    let mut command = Command::new("unshare");
    if std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() != 0) {
        command.arg("--map-root-user");
    }
    command.args(["--net", "--", "sh", "-c", script]);
    command
}
