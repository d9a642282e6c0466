//! The wall clock of a machine, for the processes on it. libfaketime adds what a file says to the time that they read; their monotonic
//! clock stays as it is, as on a machine whose clock is set.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use headgate_test_kubernetes::scratch;
use jiff::Timestamp;

use crate::chaos::history::{Event, What};

#[derive(Debug)]
pub(super) struct MachineClock {
    file: PathBuf,
    ahead_seconds: i64,
    /// The processes that have been started.
    processes: Vec<u32>,
}

impl MachineClock {
    pub(super) fn new() -> Self {
        Self {
            file: scratch("clock").join("clock"),
            ahead_seconds: 0,
            processes: Vec::new(),
        }
    }

    pub(super) fn ahead_seconds(&self) -> i64 {
        self.ahead_seconds
    }

    /// Sets the clock, also for the processes that run.
    pub(super) fn set(&mut self, controller: &str, ahead_seconds: i64) -> Event {
        self.ahead_seconds = ahead_seconds;
        let begin = Timestamp::now();
        // No process reads half a file.
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{ahead_seconds:+}\n")).unwrap();
        std::fs::rename(&next, &self.file).unwrap();
        let controller = controller.to_owned();
        Event {
            begin,
            end: Timestamp::now(),
            what: What::ClockSet {
                controller,
                ahead_seconds,
            },
        }
    }

    /// What makes a process read this clock.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 5] {
        [
            ("LD_PRELOAD", library()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.clone().into()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("NO_FAKE_STAT", "1".into()),
        ]
    }

    pub(super) fn started(&mut self, process: Option<u32>) {
        self.processes.extend(process);
    }
}

impl Drop for MachineClock {
    /// Removes the shared memory that the library leaves of processes that are killed.
    fn drop(&mut self) {
        for process in &self.processes {
            for kind in ["faketime_shm", "sem.faketime_sem"] {
                let _ = std::fs::remove_file(format!("/dev/shm/{kind}_{process}"));
            }
        }
    }
}

/// The library for processes with several threads, as its own program finds it.
fn library() -> OsString {
    const MISSING: &str = "faketime is missing: its library makes clocks jump; on Debian: apt-get install faketime";
    let output = Command::new("faketime")
        .args(["-m", "-f", "+0", "printenv", "LD_PRELOAD"])
        .output();
    let output = output.unwrap_or_else(|error| panic!("{MISSING}: {error}"));
    let library = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && library.contains("libfaketime"),
        "{MISSING}: {library:?}"
    );
    library.trim().into()
}

/// A program that is linked statically would not notice the library.
pub(super) fn assert_is_faked(process: Option<u32>) {
    let maps = process.map(|process| std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap());
    assert!(
        maps.is_some_and(|maps| maps.contains("libfaketime")),
        "the program does not read the clock by the C library: build it without crt-static"
    );
}
