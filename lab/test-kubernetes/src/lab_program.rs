//! The program `headgate-lab` of this build, for tests of other packages: Cargo names a package's programs to its own tests only.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

/// The program, which Cargo puts where it puts the programs of the test that runs.
///
/// # Panics
/// It is missing or older than its sources: the command that built this test built no test of the lab.
#[must_use]
pub fn lab_program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = std::env::current_exe().unwrap();
        let program = test.ancestors().nth(2).unwrap().join("headgate-lab");
        if let Err(reason) = check_age(&program) {
            panic!("{reason}: add `--test lab` to the command, or `--workspace`");
        }
        program
    });
    &PROGRAM
}

/// Checks that none of a program's sources is younger than it. Cargo lists them beside it.
fn check_age(program: &Path) -> Result<(), String> {
    let changed = |file: &Path| -> Result<SystemTime, String> {
        let time = fs::metadata(file).and_then(|metadata| metadata.modified());
        time.map_err(|error| format!("{}: {error}", file.display()))
    };
    let built = changed(program)?;
    let listed = fs::read_to_string(program.with_extension("d")).map_err(|error| error.to_string())?;
    let (_, sources) = listed.split_once(": ").ok_or("no sources are listed")?;
    for source in sources.split_whitespace().map(Path::new) {
        if changed(source)? > built {
            return Err(format!("{} is older than {}", program.display(), source.display()));
        }
    }
    Ok(())
}
