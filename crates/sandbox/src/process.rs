//! One child process that is owned: its output goes to a file, it is stopped and reaped, and it never
//! outlives its owner.
//!
//! The invariant: no process started here survives this one, however this one ends. [`Process::stop`]
//! is the polite way; dropping a [`Process`] kills it and waits for that; and where neither runs
//! (SIGKILL, abort) the kernel kills it, because each child asks for SIGKILL at its parent's death.
//!
//! That last signal comes when the *thread* that spawned the child ends, not the whole process. So
//! start a process only from a thread that lives as long as the process shall: the main thread under a
//! `current_thread` runtime, or a thread kept for that purpose; never a worker of a thread pool.
//!
//! What is run, with which arguments, is left to the callers.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::time::timeout;

mod tether;

/// How long a killed process is waited for. The kernel needs milliseconds.
const REAPING: Duration = Duration::from_secs(2);
/// How much of a log is read to find its last lines.
const TAIL_BYTES: u64 = 16 * 1024;
/// How many of a log's last lines an error shows.
const TAIL_LINES: usize = 12;
/// How much of each of them.
const TAIL_COLUMNS: usize = 400;

/// What went wrong with a child process.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The log file cannot be made.
    #[error("cannot write {}, the log of {name}: {source}; check the directory's permissions and free space", log.display())]
    Log {
        /// The process's name.
        name: String,
        /// The file.
        log: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The program cannot be run.
    #[error("cannot run {name} ({program}): {source}; check that the file exists and may be executed")]
    Spawn {
        /// The process's name.
        name: String,
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The process ended although it should be running.
    #[error("{name} ended ({status}); its last log lines:\n{tail}")]
    Ended {
        /// The process's name.
        name: String,
        /// How it ended.
        status: String,
        /// The last lines of its log.
        tail: String,
    },
}

/// A running child process and its log.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `command`, its output appended to `log`, its input empty, in a process group of its own:
    /// a Ctrl-C in the terminal reaches only the owner, which stops its children in order.
    ///
    /// Must be called within a tokio runtime, on a thread that lives as long as the process shall.
    ///
    /// # Errors
    /// The log file cannot be made, or the program cannot be run.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Self, ProcessError> {
        let unwritable = |source| ProcessError::Log {
            name: name.to_owned(),
            log: log.to_owned(),
            source,
        };
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(unwritable)?;
        let errors = output.try_clone().map_err(unwritable)?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        tether::die_with_parent(&mut command);

        let program = command.get_program().to_string_lossy().into_owned();
        let mut command = tokio::process::Command::from(command);
        command.process_group(0).kill_on_drop(true);
        match command.spawn() {
            Ok(child) => Ok(Self {
                name: name.to_owned(),
                log: log.to_owned(),
                child,
            }),
            Err(source) => Err(ProcessError::Spawn {
                name: name.to_owned(),
                program,
                source,
            }),
        }
    }

    /// What the process is called in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file with the process's output.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The process's id; none once it has ended and been reaped.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a signal, if the process still runs.
    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid {
            // It fails only where the process has just ended, which whoever waits for it will see.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Waits, without a bound, until the process ends; then reports how. May be dropped and called again.
    pub async fn wait_for_exit(&mut self) -> ProcessError {
        let status = self.child.wait().await;
        self.report(status)
    }

    /// Whether the process has ended already, and how.
    pub fn try_wait(&mut self) -> Option<ProcessError> {
        self.child.try_wait().transpose().map(|status| self.report(status))
    }

    /// Waits for the process to end of its own accord, at most for `bound`.
    pub async fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        timeout(bound, self.child.wait()).await.ok()?.ok()
    }

    /// Stops the process: SIGTERM, SIGKILL after `bound`, and reaps it.
    ///
    /// Gives its exit status, or none where the kernel would not tell.
    pub async fn stop(mut self, bound: Duration) -> Option<ExitStatus> {
        self.signal(Signal::SIGTERM);
        if let Some(status) = self.wait(bound).await {
            return Some(status);
        }
        self.kill().await
    }

    /// Kills the process and reaps it.
    pub async fn kill(mut self) -> Option<ExitStatus> {
        self.signal(Signal::SIGKILL);
        self.wait(REAPING).await
    }

    fn report(&self, status: io::Result<ExitStatus>) -> ProcessError {
        ProcessError::Ended {
            name: self.name.clone(),
            status: status.map_or_else(|error| error.to_string(), |status| status.to_string()),
            tail: last_log_lines(&self.log),
        }
    }
}

impl Drop for Process {
    /// Kills and reaps; this blocks for the milliseconds that takes.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) || self.child.start_kill().is_err() {
            return;
        }
        let deadline = Instant::now() + REAPING;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The last lines of a log, indented, for an error message.
#[must_use]
pub fn last_log_lines(log: &Path) -> String {
    let text = match last_bytes(log) {
        Ok(text) => text,
        Err(error) => return format!("  (cannot read {}: {error})", log.display()),
    };
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return "  (it wrote nothing)".to_owned();
    }
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    last.iter().map(|line| shortened(line)).collect::<Vec<_>>().join("\n")
}

fn shortened(line: &str) -> String {
    let end = line.char_indices().nth(TAIL_COLUMNS);
    match end {
        Some((end, _)) => format!("  {}…", &line[..end]),
        None => format!("  {line}"),
    }
}

fn last_bytes(log: &Path) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A command for `program` that runs in `directory`.
#[must_use]
pub fn command_in(program: impl AsRef<OsStr>, directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(directory);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, directory: &Path) -> Process {
        let mut command = command_in("sh", directory);
        command.args(["-c", script]);
        Process::start("shell", command, &directory.join("shell.log")).unwrap()
    }

    fn is_running(pid: u32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    /// Waits until the shell has got as far as writing a line.
    async fn has_written(process: &Process) {
        for _ in 0..500 {
            if std::fs::metadata(process.log()).is_ok_and(|log| log.len() > 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nothing written to {}", process.log().display());
    }

    #[tokio::test]
    async fn an_end_is_reported_with_the_last_lines() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = shell("seq 1 40; echo to stderr >&2; exit 3", directory.path());
        let text = process.wait_for_exit().await.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "shell ended (exit status: 3); its last log lines:");
        assert_eq!(lines[1], "  30");
        assert_eq!(lines[lines.len() - 1], "  to stderr");
        assert!(process.try_wait().is_some());
    }

    #[tokio::test]
    async fn stopping_is_polite_first_and_firm_after_the_bound() {
        let directory = tempfile::tempdir().unwrap();
        let process = shell(
            "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done",
            directory.path(),
        );
        has_written(&process).await;
        let status = process.stop(Duration::from_secs(10)).await.unwrap();
        assert_eq!(status.code(), Some(7));

        std::fs::remove_file(directory.path().join("shell.log")).unwrap();
        let process = shell(
            "trap '' TERM; echo ready; while :; do sleep 0.01; done",
            directory.path(),
        );
        has_written(&process).await;
        let pid = process.id().unwrap();
        let status = process.stop(Duration::from_millis(50)).await.unwrap();
        assert_eq!(status.code(), None, "killed");
        assert!(!is_running(pid));
    }

    #[tokio::test]
    async fn a_dropped_process_is_gone_and_reaped() {
        let directory = tempfile::tempdir().unwrap();
        let process = shell("sleep 1000", directory.path());
        let pid = process.id().unwrap();
        drop(process);
        assert!(!is_running(pid));
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let command = command_in("/nonexistent/etcd", directory.path());
        let error = Process::start("etcd", command, &directory.path().join("etcd.log")).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot run etcd (/nonexistent/etcd): "),
            "{error}"
        );
    }

    #[test]
    fn a_process_ends_with_the_thread_that_started_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let pid = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let process = runtime.block_on(async { shell("sleep 1000", &path) });
            let pid = process.id().unwrap();
            // As if this process had been killed: no destructor runs.
            std::mem::forget(process);
            pid
        })
        .join()
        .unwrap();
        let dead = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat.contains(") Z "),
            Err(_) => true,
        };
        let deadline = Instant::now() + Duration::from_mins(1);
        while !dead() {
            assert!(Instant::now() < deadline, "process {pid} outlived its thread");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
