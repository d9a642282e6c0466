//! A directory for this run in `tmp` of cargo's target directory, and the removal of what dead runs left.
//!
//! A test binary may be killed, so nobody can be relied on to tidy up behind himself. Each run holds a
//! lock on a file in its directory; whoever comes later removes the directories whose lock is free.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// This run's directory. Its lock is held until the process ends.
fn run() -> &'static Path {
    static RUN: OnceLock<(PathBuf, File)> = OnceLock::new();
    let (directory, _lock) = RUN.get_or_init(|| {
        // Of `target/debug/deps/TEST`.
        let test = std::env::current_exe().unwrap();
        let root = test.ancestors().nth(3).unwrap().join("tmp/integration");
        fs::create_dir_all(&root).unwrap();
        // Held while directories come and go, so that nobody takes one without its lock yet for a dead one.
        let gate = File::create(root.join("lock")).unwrap();
        gate.lock().unwrap();
        for entry in fs::read_dir(&root).unwrap() {
            let entry = entry.unwrap().path();
            if entry.is_dir() && File::open(entry.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok()) {
                fs::remove_dir_all(entry).unwrap();
            }
        }
        let directory = tempfile::Builder::new()
            .prefix("run-")
            .tempdir_in(&root)
            .unwrap()
            .keep();
        let lock = File::create(directory.join("lock")).unwrap();
        lock.lock().unwrap();
        (directory, lock)
    });
    directory
}

/// A fresh directory for one purpose.
pub fn scratch(purpose: &str) -> PathBuf {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let directory = run().join(format!("{purpose}-{}", MADE.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&directory).unwrap();
    directory
}
