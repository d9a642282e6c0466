//! Files of a drill, and the error of writing one.

use std::io;
use std::path::{Path, PathBuf};

/// A file or directory of the drill cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}; check the free space of the directory for temporary files", path.display())]
pub struct WriteError {
    /// The path of the file.
    pub path: PathBuf,
    /// The error of the operating system.
    pub source: io::Error,
}

/// Writes a file, and makes its directory.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), WriteError> {
    let directory = path.parent().unwrap_or(path);
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(path, text));
    let path = path.to_owned();
    written.map_err(|source| WriteError { path, source })
}
