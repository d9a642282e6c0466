//! Microsoft's Python and Go clients on the emulator, one scenario for each test. tests/azure-clients has the
//! steps and their assertions; a failure shows the output of the whole scenario.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use headgate_sandbox::process::Process;
use tokio::time::timeout;

use super::emulator_process::Emulator;

/// Time to build the clients, after a build of the control plane.
const BUILD_TIMEOUT: Duration = Duration::from_mins(45);
/// Time for a scenario; the longest needs a quarter of a minute on a quiet machine.
const SCENARIO_TIMEOUT: Duration = Duration::from_mins(3);
/// For scenarios that are not about operations: an operation has ended at the first poll.
const SHORT_OPERATIONS: &[&str] = &["--operation-delay", "1ms"];
/// For scenarios about operations.
const OPERATIONS_OF_A_SECOND: &[&str] = &["--operation-delay", "1s"];
/// For scenarios about lists.
const PAGES_OF_ONE: &[&str] = &["--operation-delay", "1ms", "--page-size", "1"];

/// Microsoft's client in one of its languages.
#[derive(Clone, Copy, Debug)]
enum Client {
    Python,
    Go,
}

impl Client {
    /// A command that runs its scenarios. Fetches or builds the client if necessary, and reports that on stderr.
    fn command(self) -> Command {
        static PYTHON: OnceLock<PathBuf> = OnceLock::new();
        static GO: OnceLock<PathBuf> = OnceLock::new();
        match self {
            Self::Python => {
                let mut command = Command::new(PYTHON.get_or_init(|| build_on_thread("python")));
                command.arg("-B").arg(sources().join("python/run.py"));
                command
            }
            Self::Go => Command::new(GO.get_or_init(|| build_on_thread("go"))),
        }
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/azure-clients")
}

/// The path that build.sh prints. Runs on its own thread because the caller's thread has a runtime already.
fn build_on_thread(part: &'static str) -> PathBuf {
    std::thread::spawn(move || build(part)).join().unwrap()
}

#[tokio::main(flavor = "current_thread")]
async fn build(part: &str) -> PathBuf {
    let script = sources().join("build.sh");
    let mut command = tokio::process::Command::new(&script);
    command
        .arg(part)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    let output = timeout(BUILD_TIMEOUT, command.output())
        .await
        .expect("build.sh ends in time")
        .unwrap();
    assert!(
        output.status.success(),
        "{} {part}: {}",
        script.display(),
        output.status
    );
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}

/// Runs a scenario with its own emulator, which has to stop with exit code 0.
async fn run_scenario(client: Client, scenario: &str, arguments: &[&str], emulator: &[&str]) {
    let mut command = client.command();
    let emulator = Emulator::start(emulator).await;
    command.current_dir(&emulator.directory);
    command.args(["--addresses", "addresses.json", "--ca-file", "ca.pem"]);
    command.args(arguments).arg(scenario);
    // No proxy and no identity of the machine that runs the tests.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.to_uppercase().ends_with("_PROXY") || name.starts_with("AZURE_") || name.starts_with("IDENTITY_") {
            command.env_remove(name);
        }
    }
    let log = emulator.directory.join("scenario.log");
    let mut process = Process::start("scenario", command, &log).unwrap_or_else(|error| panic!("{error}"));
    let status = process.wait(SCENARIO_TIMEOUT).await;
    let output = std::fs::read_to_string(&log).unwrap();
    assert!(
        status.is_some_and(|status| status.success()) && output.contains("ok: "),
        "{client:?}, {scenario}: {status:?} (none: not within {SCENARIO_TIMEOUT:?})\n{output}\nthe emulator's log:\n{}",
        emulator.log()
    );
    println!("{output}");
    emulator.stop().await;
}

#[tokio::test]
async fn python_lists_pages_and_reads_load_balancers_with_their_children() {
    run_scenario(Client::Python, "reading", &[], PAGES_OF_ONE).await;
}

#[tokio::test]
async fn python_changes_pools_and_nothing_else_with_and_without_if_match() {
    run_scenario(Client::Python, "writing", &[], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn python_changes_pools_over_tls() {
    run_scenario(Client::Python, "writing", &["--tls"], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn python_follows_operations_that_succeed_fail_and_are_superseded() {
    run_scenario(Client::Python, "operations", &[], OPERATIONS_OF_A_SECOND).await;
}

#[tokio::test]
async fn python_reports_errors_and_retries_failures() {
    run_scenario(Client::Python, "errors", &[], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn python_waits_while_throttled_and_recovers_by_a_new_read() {
    run_scenario(Client::Python, "throttling", &[], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn python_signs_in_with_each_kind_of_credential() {
    run_scenario(Client::Python, "credentials", &[], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn python_sets_states_of_interfaces_but_not_their_membership() {
    run_scenario(Client::Python, "interfaces", &[], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn go_lists_pages_and_reads_load_balancers_with_their_children() {
    run_scenario(Client::Go, "reading", &[], PAGES_OF_ONE).await;
}

#[tokio::test]
async fn go_changes_pools_and_nothing_else_with_and_without_if_match() {
    run_scenario(Client::Go, "writing", &[], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn go_follows_operations_that_succeed_fail_and_are_superseded() {
    run_scenario(Client::Go, "operations", &[], OPERATIONS_OF_A_SECOND).await;
}

#[tokio::test]
async fn go_waits_while_throttled_and_recovers_by_a_new_read() {
    run_scenario(Client::Go, "throttling", &[], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn go_signs_in_with_each_kind_of_credential() {
    run_scenario(Client::Go, "credentials", &[], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn go_sets_states_of_interfaces_but_not_their_membership() {
    run_scenario(Client::Go, "interfaces", &[], SHORT_OPERATIONS).await;
}

#[tokio::test]
async fn go_writes_the_largest_pool_and_writes_concurrently() {
    run_scenario(Client::Go, "concurrency", &[], SHORT_OPERATIONS).await;
}
