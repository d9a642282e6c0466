//! `headgate-lab sandbox` as a child process, with its standard output and standard error in files.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_sandbox::{process, process::Process};
use headgate_test_kubernetes::{assets, eventually, lab_program, scratch};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// How long a test waits until it is ready, beside other tests.
const START_TIMEOUT: Duration = Duration::from_mins(5);
/// How long a test waits until its output shows a change.
const OUTPUT_TIMEOUT: Duration = Duration::from_mins(1);
/// How long a test waits for the end of a run.
const RUN_TIMEOUT: Duration = Duration::from_mins(5);

/// A sandbox with its temporary directory below a directory of the test.
pub(crate) struct Sandbox {
    process: Process,
    home: PathBuf,
    /// For each node, the number of lines up to the last one waited for.
    read: HashMap<String, usize>,
}

impl Sandbox {
    /// Starts it with these arguments, and with the control plane's programs if it needs them.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let assets = assets().directory().to_str().unwrap().to_owned();
        if arguments.contains(&"--kubeconfig") {
            return Self::run(arguments);
        }
        Self::run(&[&["--assets", &assets], arguments].concat())
    }

    /// Starts it with exactly these arguments.
    pub(super) fn run(arguments: &[&str]) -> Self {
        let home = scratch("sandbox");
        // `exec` replaces the shell, so the process id is the command's.
        let mut command = process::command_in("sh", &home);
        command.args(["-c", "exec \"$0\" \"$@\" >output 2>errors"]);
        command.arg(lab_program()).arg("sandbox");
        command.args(arguments).env("TMPDIR", &home);
        let process = Process::start("headgate-lab sandbox", command, &home.join("shell.log")).unwrap();
        Self {
            process,
            home,
            read: HashMap::new(),
        }
    }

    /// Its temporary directory, while it exists.
    pub(super) fn directory(&self) -> PathBuf {
        let entries = fs::read_dir(&self.home).unwrap().map(|entry| entry.unwrap().path());
        let mut directories: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
        assert_eq!(directories.len(), 1, "{directories:?}; {}", self.errors());
        directories.remove(0)
    }

    /// Waits for `sandbox.json` and returns its content.
    pub(crate) async fn description(&mut self) -> Value {
        let Self { process, home, .. } = self;
        eventually(START_TIMEOUT, "sandbox.json is written", async || {
            let ended = process.try_wait();
            assert!(ended.is_none(), "{ended:?}: {}", read(&home.join("errors")));
            for entry in fs::read_dir(&home).unwrap() {
                if let Ok(text) = fs::read(entry.unwrap().path().join("sandbox.json")) {
                    return Ok(serde_json::from_slice(&text).expect("written whole or not at all"));
                }
            }
            Err(read(&home.join("errors")))
        })
        .await
    }

    /// Waits for a line about a node, a pool (`LOAD BALANCER/POOL`) or a caller of ARM, after the last one that was
    /// waited for. Skips lines in between.
    pub(super) async fn wait_for_line(&mut self, node: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
        let read = self.read.get(node).copied().unwrap_or(0);
        let (number, line) = eventually(OUTPUT_TIMEOUT, &format!("a line about {node}"), async || {
            let mut lines = self.lines(node).into_iter().enumerate().skip(read);
            let found = lines.find(|(_, line)| is_expected(line));
            found.ok_or_else(|| format!("{:?}", self.lines(node)))
        })
        .await;
        self.read.insert(node.to_owned(), number + 1);
        line
    }

    /// The lines about a node after the last one that was waited for.
    pub(super) fn unread(&self, node: &str) -> Vec<Value> {
        self.lines(node).split_off(self.read.get(node).copied().unwrap_or(0))
    }

    fn lines(&self, node: &str) -> Vec<Value> {
        let text = read(&self.home.join("output"));
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = whole.lines().map(|line| serde_json::from_str(line).unwrap());
        let about = |line: &Value| match (&line["loadBalancer"], &line["pool"]) {
            (Value::String(load_balancer), Value::String(pool)) => format!("{load_balancer}/{pool}") == node,
            _ => line["node"] == node || line["caller"] == node,
        };
        lines.filter(about).collect()
    }

    pub(crate) fn errors(&self) -> String {
        read(&self.home.join("errors"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Waits for its end; its exit code, `None` if a signal ended it.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let status = self.process.wait(RUN_TIMEOUT).await;
        let status = status.unwrap_or_else(|| panic!("it is still running: {}", self.errors()));
        status.code()
    }

    /// Ends it by a signal, and checks that it leaves nothing behind.
    pub(crate) async fn stop(&mut self, signal: Signal) {
        let directory = self.directory();
        self.signal(signal);
        assert_eq!(self.exit_code().await, Some(0), "{}", self.errors());
        self.assert_nothing_left(&directory);
    }

    /// Asserts that none of its processes and directories is left.
    pub(super) fn assert_nothing_left(&self, directory: &Path) {
        let left = [processes_of(directory), processes_of(&self.home)].concat();
        assert_eq!(left, Vec::<(i32, String)>::new());
        assert!(!directory.exists(), "{} is left", directory.display());
        let entries: Vec<_> = fs::read_dir(&self.home)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(entries.iter().all(|path| path.is_file()), "{entries:?}");
    }
}

/// Process ids and command lines of the processes that have a directory in their command line or run in it.
pub(super) fn processes_of(directory: &Path) -> Vec<(i32, String)> {
    let text = directory.to_str().unwrap();
    let named = |entry: fs::DirEntry| -> Option<(i32, String)> {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let line = String::from_utf8_lossy(&fs::read(entry.path().join("cmdline")).ok()?).replace('\0', " ");
        let runs_in = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory));
        (line.contains(text) || runs_in).then_some((id, line))
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| named(entry.ok()?))
        .collect()
}

/// Sends a signal to a node's agent.
pub(crate) fn signal_agent(directory: &Path, node: &str, signal: Signal) {
    let agent = format!(" agent --node-name {node} ");
    let found: Vec<_> = processes_of(directory)
        .into_iter()
        .filter(|(_, line)| line.contains(&agent))
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    kill(Pid::from_raw(found[0].0), signal).unwrap();
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}
