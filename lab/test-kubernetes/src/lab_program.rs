//! The program `headgate-lab` of this build, for tests of other packages: Cargo names a package's programs to its own tests only.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

/// The program, which Cargo puts where it puts the programs of the test that runs.
///
/// # Panics
/// It is missing or older than a source: the command that built this test did not build the lab.
pub fn lab_program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = std::env::current_exe().unwrap();
        let program = test.ancestors().nth(2).unwrap().join("headgate-lab");
        let built = fs::metadata(&program).and_then(|metadata| metadata.modified());
        // The same directories as in lab/build.rs.
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let changed = ["crates", "src", "lab"].map(|directory| last_change(&root.join(directory)));
        assert!(
            built.is_ok_and(|built| changed.iter().all(|changed| *changed <= built)),
            "{} is missing or out of date: add `--test lab` to the command, or `--workspace`",
            program.display()
        );
        program
    });
    &PROGRAM
}

/// When a source below a directory was changed last.
fn last_change(directory: &Path) -> SystemTime {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let changes = entries.filter_map(|entry| {
        if entry.file_type().unwrap().is_dir() {
            return Some(last_change(&entry.path()));
        }
        let is_source = entry.path().extension().is_some_and(|extension| extension == "rs");
        is_source.then(|| entry.metadata().unwrap().modified().unwrap())
    });
    changes.max().unwrap_or(SystemTime::UNIX_EPOCH)
}
