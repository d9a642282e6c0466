//! A child process: its output goes to a file, it is stopped and reaped, and it does not outlive its owner.
//!
//! Its invariant: no process started here survives this one, however this one ends. [`Process::stop`] stops it in an
//! orderly way. Dropping a [`Process`] kills it and waits until it is reaped. If neither runs (SIGKILL, abort), the
//! kernel kills it, because each child requests SIGKILL for the death of its parent.
//!
//! The kernel sends that signal when the *thread* that spawned the child ends, not the whole process. So start a
//! process only from a thread that lives as long as the process: the main thread under a `current_thread` runtime or a
//! dedicated thread, never a worker of a thread pool.

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

mod parent_death;

/// Time to wait for a killed process. The kernel needs milliseconds.
const REAP_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes at the end of a log that are searched for its last lines.
const TAIL_BYTES: u64 = 16 * 1024;
/// Lines of a log that an error shows.
const TAIL_LINES: usize = 12;
/// Characters of each of these lines.
const TAIL_COLUMNS: usize = 400;

/// A child process cannot be started, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The log file cannot be opened.
    #[error("cannot write {}, the log of {name}: {source}; check the directory's permissions and free space", log.display())]
    Log {
        /// The process's name in messages.
        name: String,
        /// The path of the log file.
        log: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The program cannot be run.
    #[error("cannot run {name} ({program}): {source}; check that the file exists and may be executed")]
    Spawn {
        /// The process's name in messages.
        name: String,
        /// The path of the program.
        program: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The process has ended.
    #[error("{name} ended ({status}); its last log lines:\n{tail}")]
    Ended {
        /// The process's name in messages.
        name: String,
        /// Its exit status, as text.
        status: String,
        /// The last lines of its log.
        tail: String,
    },
}

/// A child process and its log. Dropping it kills the process.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `command` with empty input, appending its output to `log`, in its own process group: Ctrl-C in the
    /// terminal reaches only the owner, which stops its children in order.
    ///
    /// Call this within a tokio runtime, on a thread that lives as long as the process.
    ///
    /// # Errors
    /// The log file cannot be opened, or the program cannot be run.
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
        parent_death::kill_with_parent(&mut command);

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

    /// The process's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file with its output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The process id; `None` once the process has ended and been reaped.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a signal if the process is running.
    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid {
            // This fails only if the process has just ended.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Waits, without a timeout, until the process ends; returns how it ended. Cancel safe.
    pub async fn wait_for_exit(&mut self) -> ProcessError {
        let status = self.child.wait().await;
        self.report(status)
    }

    /// How the process ended; `None` if it is running.
    pub fn try_wait(&mut self) -> Option<ProcessError> {
        self.child.try_wait().transpose().map(|status| self.report(status))
    }

    /// Waits at most `limit` for the process to end by itself.
    pub async fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        timeout(limit, self.child.wait()).await.ok()?.ok()
    }

    /// Stops the process: sends SIGTERM, after `limit` SIGKILL, and reaps it. Returns its exit status, `None` if the
    /// kernel does not report it.
    pub async fn stop(mut self, limit: Duration) -> Option<ExitStatus> {
        self.signal(Signal::SIGTERM);
        if let Some(status) = self.wait(limit).await {
            return Some(status);
        }
        self.kill().await
    }

    /// Kills the process and reaps it.
    pub async fn kill(mut self) -> Option<ExitStatus> {
        self.signal(Signal::SIGKILL);
        self.wait(REAP_TIMEOUT).await
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
    /// Kills and reaps the process, which blocks for some milliseconds.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) || self.child.start_kill().is_err() {
            return;
        }
        let deadline = Instant::now() + REAP_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The last lines of a log, indented, for an error message.
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

/// A command that runs `program` in `directory`.
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

    /// Waits until the shell has written a line.
    async fn wait_for_output(process: &Process) {
        for _ in 0..500 {
            if std::fs::metadata(process.log()).is_ok_and(|log| log.len() > 0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nothing written to {}", process.log().display());
    }

    #[tokio::test]
    async fn an_exit_is_reported_with_the_last_lines() {
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
    async fn stop_sends_sigterm_and_kills_after_the_timeout() {
        let directory = tempfile::tempdir().unwrap();
        let process = shell(
            "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done",
            directory.path(),
        );
        wait_for_output(&process).await;
        let status = process.stop(Duration::from_secs(10)).await.unwrap();
        assert_eq!(status.code(), Some(7));

        std::fs::remove_file(directory.path().join("shell.log")).unwrap();
        let process = shell(
            "trap '' TERM; echo ready; while :; do sleep 0.01; done",
            directory.path(),
        );
        wait_for_output(&process).await;
        let pid = process.id().unwrap();
        let status = process.stop(Duration::from_millis(50)).await.unwrap();
        assert_eq!(status.code(), None, "killed");
        assert!(!is_running(pid));
    }

    #[tokio::test]
    async fn a_dropped_process_is_killed_and_reaped() {
        let directory = tempfile::tempdir().unwrap();
        let process = shell("exec sleep 1000", directory.path());
        let pid = process.id().unwrap();
        drop(process);
        assert!(!is_running(pid));
    }

    #[tokio::test]
    async fn the_error_names_a_missing_program() {
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
            let process = runtime.block_on(async { shell("exec sleep 1000", &path) });
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
