//! Microsoft's Python and Go clients each tell a story against the emulator, a chapter a test. The steps and what each
//! asserts are in tests/azure-clients; a failure shows the whole chapter.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use headgate_sandbox::process::Process;
use tokio::time::timeout;

use super::process::Emulator;

/// How long making the clients may take, where that has not been done and the control plane is being built first.
const BUILDING: Duration = Duration::from_mins(45);
/// How long a chapter may take; the longest needs a quarter of a minute on a quiet machine.
const TELLING: Duration = Duration::from_mins(3);
/// For chapters that are not about the course of operations: over at the first poll.
const AT_ONCE: &[&str] = &["--operation-delay", "1ms"];
/// For those that are.
const A_SECOND: &[&str] = &["--operation-delay", "1s"];
/// For lists.
const PAGES_OF_ONE: &[&str] = &["--operation-delay", "1ms", "--page-size", "1"];

/// Who tells the story.
#[derive(Clone, Copy, Debug)]
enum Client {
    Python,
    Go,
}

impl Client {
    /// A command that runs its story; the client is fetched or built if need be, which is said on stderr.
    fn story(self) -> Command {
        static PYTHON: OnceLock<PathBuf> = OnceLock::new();
        static GO: OnceLock<PathBuf> = OnceLock::new();
        match self {
            Self::Python => {
                let mut command = Command::new(PYTHON.get_or_init(|| made("python")));
                command.arg("-B").arg(sources().join("python/story.py"));
                command
            }
            Self::Go => Command::new(GO.get_or_init(|| made("go"))),
        }
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/azure-clients")
}

/// What build.sh provides; run on a thread of its own because the caller's has a runtime already.
fn made(part: &'static str) -> PathBuf {
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
    let output = timeout(BUILDING, command.output())
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

/// Has a client tell a chapter to an emulator of its own, which then has to end well.
async fn tell(client: Client, chapter: &str, arguments: &[&str], emulator: &[&str]) {
    let mut command = client.story();
    let emulator = Emulator::start(emulator).await;
    command.current_dir(&emulator.directory);
    command.args(["--addresses", "addresses.json", "--ca-file", "ca.pem"]);
    command.args(arguments).arg(chapter);
    // Neither a proxy nor an identity of the machine that the tests run on.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.to_uppercase().ends_with("_PROXY") || name.starts_with("AZURE_") || name.starts_with("IDENTITY_") {
            command.env_remove(name);
        }
    }
    let log = emulator.directory.join("story.log");
    let mut story = Process::start("story", command, &log).unwrap_or_else(|error| panic!("{error}"));
    let status = story.wait(TELLING).await;
    let told = std::fs::read_to_string(&log).unwrap();
    assert!(
        status.is_some_and(|status| status.success()) && told.contains("ok: "),
        "{client:?}, {chapter}: {status:?} (none: not within {TELLING:?})\n{told}\nthe emulator's log:\n{}",
        emulator.log()
    );
    println!("{told}");
    emulator.stop().await;
}

#[tokio::test]
async fn python_lists_pages_and_reads_load_balancers_with_their_children() {
    tell(Client::Python, "reading", &[], PAGES_OF_ONE).await;
}

#[tokio::test]
async fn python_changes_pools_and_nothing_else_with_and_without_if_match() {
    tell(Client::Python, "writing", &[], AT_ONCE).await;
}

#[tokio::test]
async fn python_changes_pools_over_tls() {
    tell(Client::Python, "writing", &["--tls"], AT_ONCE).await;
}

#[tokio::test]
async fn python_follows_operations_that_succeed_fail_and_are_superseded() {
    tell(Client::Python, "operations", &[], A_SECOND).await;
}

#[tokio::test]
async fn python_is_told_what_is_not_found_or_not_allowed_and_tries_again_what_broke() {
    tell(Client::Python, "mistakes", &[], AT_ONCE).await;
}

#[tokio::test]
async fn python_waits_out_throttling_and_recovers_by_a_fresh_read() {
    tell(Client::Python, "throttling", &[], AT_ONCE).await;
}

#[tokio::test]
async fn python_signs_in_with_each_kind_of_credential() {
    tell(Client::Python, "credentials", &[], AT_ONCE).await;
}

#[tokio::test]
async fn python_sets_states_of_interfaces_but_not_their_membership() {
    tell(Client::Python, "interfaces", &[], AT_ONCE).await;
}

#[tokio::test]
async fn go_lists_pages_and_reads_load_balancers_with_their_children() {
    tell(Client::Go, "reading", &[], PAGES_OF_ONE).await;
}

#[tokio::test]
async fn go_changes_pools_and_nothing_else_with_and_without_if_match() {
    tell(Client::Go, "writing", &[], AT_ONCE).await;
}

#[tokio::test]
async fn go_follows_operations_that_succeed_fail_and_are_superseded() {
    tell(Client::Go, "operations", &[], A_SECOND).await;
}

#[tokio::test]
async fn go_waits_out_throttling_and_recovers_by_a_fresh_read() {
    tell(Client::Go, "throttling", &[], AT_ONCE).await;
}

#[tokio::test]
async fn go_signs_in_with_each_kind_of_credential() {
    tell(Client::Go, "credentials", &[], AT_ONCE).await;
}

#[tokio::test]
async fn go_sets_states_of_interfaces_but_not_their_membership() {
    tell(Client::Go, "interfaces", &[], AT_ONCE).await;
}

#[tokio::test]
async fn go_writes_the_largest_pool_and_writes_with_five_others() {
    tell(Client::Go, "crowds", &[], AT_ONCE).await;
}
