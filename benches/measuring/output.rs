//! What people see of a run, and where its figures are left.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A line for the person who watches; one that nobody reads is not worth failing for.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The directory of the files with figures.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("headgate-bench")
}
