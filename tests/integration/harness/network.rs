//! Tests in their own network namespace, because kube-proxy writes iptables rules that would otherwise be the
//! machine's.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use headgate_sandbox::{process, process::Process};
use headgate_test_kubernetes::scratch;

/// The variable with the name of the test that runs in the namespace.
const TEST_VARIABLE: &str = "HEADGATE_TEST_INSIDE";
/// Time for the test in the namespace.
const TEST_TIMEOUT: Duration = Duration::from_mins(5);

/// Runs `body` as root in a new network namespace that has only loopback. `test` is the path of the calling test
/// (`kube_proxy::answers`), which runs again in the namespace and there starts its own control plane. The caller must
/// be a plain `#[test]`, ignored where there are no namespaces: this function makes the runtime.
pub(crate) fn in_network_namespace(test: &str, body: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    if std::env::var(TEST_VARIABLE).is_ok_and(|inside| inside == test) {
        return runtime.block_on(body());
    }
    let directory = scratch("network");
    let mut command = unshare_command(&directory, "ip link set lo up && exec \"$0\" \"$@\"");
    command.arg(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(TEST_VARIABLE, test);
    let log = directory.join("output.log");
    let status = runtime.block_on(async {
        let mut process = Process::start(test, command, &log).unwrap();
        process.wait(TEST_TIMEOUT).await
    });
    let output = std::fs::read_to_string(&log).unwrap();
    println!("{output}");
    let status =
        status.unwrap_or_else(|| panic!("{test} did not end within {TEST_TIMEOUT:?} in its own network namespace"));
    assert!(status.success(), "{test} in its own network namespace: {status}");
    assert!(output.contains("1 passed"), "no test is named {test}");
}

fn unshare_command(directory: &Path, script: &str) -> Command {
    let mut command = process::command_in("unshare", directory);
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !is_root {
        command.arg("--map-root-user");
        // Only the real root can write the default lock file.
        command.env("XTABLES_LOCKFILE", std::env::temp_dir().join("headgate-xtables.lock"));
    }
    command.args(["--net", "--", "sh", "-c", script]);
    command
}
