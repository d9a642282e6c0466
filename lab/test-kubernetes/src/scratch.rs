//! A directory for this run in `tmp` of cargo's target directory, and the removal of the directories of earlier runs.
//!
//! A killed test binary cannot remove its directory. Each run holds a lock on a file in its directory, and each run
//! removes the directories whose lock is free.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The directory of this run. The process holds its lock until it ends.
fn run() -> &'static Path {
    static RUN: OnceLock<(PathBuf, File)> = OnceLock::new();
    let (directory, _lock) = RUN.get_or_init(|| {
        // The binary is `target/debug/deps/TEST`.
        let test = std::env::current_exe().unwrap();
        let root = test.ancestors().nth(3).unwrap().join("tmp/integration");
        fs::create_dir_all(&root).unwrap();
        // Held during creation and removal, so that a new directory without its lock is not removed.
        let root_lock = File::create(root.join("lock")).unwrap();
        root_lock.lock().unwrap();
        for entry in fs::read_dir(&root).unwrap() {
            let entry = entry.unwrap().path();
            if entry.is_dir() && File::open(entry.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok()) {
                // What root has left stays.
                drop(fs::remove_dir_all(entry));
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

/// Creates an empty directory whose name starts with `purpose`.
pub fn scratch(purpose: &str) -> PathBuf {
    static CREATED: AtomicU32 = AtomicU32::new(0);
    let directory = run().join(format!("{purpose}-{}", CREATED.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&directory).unwrap();
    directory
}

/// Writes a program that the test will run. A separate process writes it: programs that other tests start meanwhile would inherit the file that
/// this process has open for writing, and the kernel refuses to run a file that is open for writing.
pub fn write_program(path: &Path, content: impl AsRef<[u8]>) {
    let mut sh = Command::new("sh")
        .args(["-c", r#"cat >"$0" && chmod 755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe is closed at the end of the statement.
    sh.stdin.take().unwrap().write_all(content.as_ref()).unwrap();
    assert!(sh.wait().unwrap().success(), "{} is not written", path.display());
}
