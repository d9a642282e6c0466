//! `headgate-lab drill` on a terminal: the line for each step, and Ctrl-C. The terminal is the one that util-linux's `script` makes.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use headgate_test_kubernetes::{lab_program, scratch};

use super::{DRILL_TIMEOUT, descendants, drill, is_alive, runs};

/// A drill on a terminal of its own. Dropping it closes the terminal, which ends the drill.
struct OnTerminal {
    script: Child,
    output: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

impl OnTerminal {
    fn start(flags: &str, directory: &Path) -> Self {
        let program = lab_program().to_str().unwrap();
        let command = format!("stty columns 100 rows 24; exec '{program}' drill {flags}");
        let mut script = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", &command, "/dev/null"])
            .current_dir(directory)
            .env("TMPDIR", directory)
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("script, of util-linux (Debian: bsdutils): {error}"));
        let mut stdout = script.stdout.take().unwrap();
        let (send, output) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stdout.read(&mut buffer) {
                if send.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            script,
            output,
            seen: String::new(),
        }
    }

    /// Reads until this text has been written.
    fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + DRILL_TIMEOUT;
        while !self.seen.contains(text) {
            let rest = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(rest) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("no {text:?}: {error}; on the terminal: {:?}", self.seen),
            }
        }
    }

    /// Reads to the end; gives how the drill ended, and all that was written.
    fn end(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + DRILL_TIMEOUT;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            match self.output.recv_timeout(rest) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(error) => panic!("{error}; on the terminal: {:?}", self.seen),
            }
        }
        (self.script.wait().unwrap(), std::mem::take(&mut self.seen))
    }

    fn press_ctrl_c(&mut self) {
        self.script.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    }
}

#[test]
#[ignore = "needs network namespaces"]
fn there_is_a_line_for_each_step() {
    let output = drill("--scenario scale-down --strategy none --nodes 2 --speed 20")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = text.lines().take(2).collect();
    assert_eq!(
        lines,
        [
            "headgate-lab drill: starting for none",
            "headgate-lab drill: none, run 1 of 1"
        ]
    );
}

#[test]
#[ignore = "needs network namespaces"]
fn ctrl_c_on_a_terminal_leaves_nothing_behind() {
    let directory = scratch("drill-ctrl-c");
    let files = || std::fs::read_dir(&directory).unwrap().count();
    let flags = "--scenario spot --strategy healthz --nodes 2 --notice 10m";
    let mut terminal = OnTerminal::start(flags, &directory);
    terminal.wait_for("run 1 of 1");
    let started = descendants(terminal.script.id());
    let [drill] = started.as_slice() else {
        panic!("the drill is the only child of script: {started:?}")
    };
    let children = descendants(*drill);
    let on_nodes = children.iter().filter(|child| runs(**child, "headgate")).count();
    assert!(on_nodes >= 2, "an agent on each node: {children:?}");
    assert_eq!(files(), 1, "the files of the control plane");
    terminal.press_ctrl_c();
    let (status, written) = terminal.end();
    assert_eq!(status.code(), Some(130), "{written:?}");
    assert!(
        written
            .trim_end()
            .ends_with("headgate-lab: interrupted; everything it started is gone"),
        "{written:?}"
    );
    for _ in 0..100 {
        if !children.iter().any(|child| is_alive(*child)) {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let alive: Vec<_> = children.iter().filter(|child| is_alive(**child)).collect();
    assert!(alive.is_empty(), "{alive:?} of {children:?}");
    assert_eq!(files(), 0, "no directory is left");
}
