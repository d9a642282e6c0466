//! Tests in a network namespace of their own, for what would otherwise change the machine's: kube-proxy
//! writes iptables rules.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use headgate_sandbox::{process, process::Process};
use headgate_test_kubernetes::scratch;

/// Names the test that runs inside.
const INSIDE: &str = "HEADGATE_TEST_INSIDE";
/// How long the test may take inside.
const PATIENCE: Duration = Duration::from_mins(5);

/// Runs `body` in a fresh network namespace with only loopback, as root there. `test` is the path of the
/// calling test (`kube_proxy::answers`), which is run once more inside; a control plane it asks for is
/// a separate one, started in there. The caller is a plain `#[test]`: the runtime is made here.
///
/// Where namespaces or iptables cannot be had, this says so in a line and passes; with `CI=true` it fails,
/// since a check that ran nothing proves nothing.
pub(crate) fn in_network_namespace(test: &str, body: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    if std::env::var(INSIDE).is_ok_and(|inside| inside == test) {
        return runtime.block_on(body());
    }
    if let Err(obstacle) = can_be_had() {
        let checked = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(
            !checked,
            "{test} cannot run: no network namespace with iptables here ({obstacle}), and CI=true allows no skipping"
        );
        // Not println!, which nobody sees of a test that passes.
        let _ = writeln!(
            std::io::stderr(),
            "{test} not run: no network namespace with iptables here ({obstacle})"
        );
        return;
    }
    let directory = scratch("network");
    let mut command = unshared(&directory, "ip link set lo up && exec \"$0\" \"$@\"");
    command.arg(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, test);
    let log = directory.join("output.log");
    let status = runtime.block_on(async {
        let mut process = Process::start(test, command, &log).unwrap();
        process.wait(PATIENCE).await
    });
    let output = std::fs::read_to_string(&log).unwrap();
    println!("{output}");
    let status = status.unwrap_or_else(|| panic!("{test} did not end within {PATIENCE:?} in its own network"));
    assert!(status.success(), "{test} in its own network: {status}");
    assert!(output.contains("1 passed"), "no test is called {test}");
}

fn can_be_had() -> Result<(), String> {
    let mut command = unshared(Path::new("."), "ip link set lo up && iptables -w 5 -t nat -n -L");
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("unshare: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn unshared(directory: &Path, script: &str) -> Command {
    let mut command = process::command_in("unshare", directory);
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !is_root {
        command.arg("--map-root-user");
        // The usual lock file is for the real root only.
        command.env("XTABLES_LOCKFILE", std::env::temp_dir().join("headgate-xtables.lock"));
    }
    command.args(["--net", "--", "sh", "-c", script]);
    command
}
