//! Files that a sandbox writes, and the error of writing one.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A file or directory cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}; check the directory's permissions and free space", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

/// Adds the path to an error of writing it.
pub(crate) fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    let path = path.to_owned();
    move |source| WriteError { path, source }
}

/// The outcome of a removal, where it does not matter whether there was something to remove.
///
/// # Errors
/// There was, and it cannot be removed.
pub(crate) fn removed(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Creates a directory that only its owner can enter. An existing one stays as it is.
///
/// # Errors
/// The directory cannot be created.
pub(crate) fn create_private_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Writes a new file that only its owner can read.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_private_file(file: &Path, text: &str) -> Result<(), WriteError> {
    let write = || {
        removed(fs::remove_file(file))?;
        let mut private = File::options();
        let mut open = private.write(true).create_new(true).mode(0o600).open(file)?;
        open.write_all(text.as_bytes())
    };
    write().map_err(unwritable(file))
}
