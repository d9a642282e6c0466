//! The progress output of a run, and the directory of its results.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Writes a line of progress. A closed output is not an error.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The directory of the files with figures.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("headgate-bench")
}
