//! The sandbox's directory: a temporary one, or the one of `--dir`.
//!
//! Its invariant: the sandbox removes nothing that it did not make, and overwrites no file of others. A lock
//! distinguishes a directory that is in use from one that a killed sandbox left behind.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::TempDir;

use super::agents;
use super::azure::Addresses;
use super::files::{create_private_directory, removed};

/// The entries that the sandbox makes in the directory, besides the logs and the lock.
const ENTRIES: [&str; 7] = [
    "azure",
    "kubeconfig",
    "sandbox.json",
    "control-plane",
    "controllers",
    "maintenances",
    "nodes",
];
/// The lock file, held while the sandbox runs. Its presence marks the entries as a sandbox's.
const LOCK: &str = "sandbox.lock";

/// The directory cannot be used or cleaned up.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another sandbox uses it.
    #[error("another sandbox is running in {}; stop it or give another --dir", .0.display())]
    InUse(PathBuf),
    /// It has files of the same names that no sandbox made.
    #[error("{} exists and was not made by a sandbox; move it away or give another --dir", .0.display())]
    NotOwned(PathBuf),
    /// A file or directory cannot be created, written or removed.
    #[error("cannot {action} {}: {source}; check its permissions, or give another --dir", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// A directory that is locked for this sandbox.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Removes the whole directory when dropped, even in a panic.
    temporary: Option<TempDir>,
    _lock: File,
}

/// A node in `sandbox.json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeAddresses {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) addresses: agents::Addresses,
}

/// The content of `sandbox.json`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Description<'a> {
    pub(super) kubeconfig: &'a Path,
    pub(super) nodes: &'a [NodeAddresses],
    pub(super) emulator: &'a Addresses,
    /// The file for `--azure-config-file`.
    pub(super) azure_json: &'a Path,
}

impl Directory {
    /// Uses the directory of `--dir`, or makes a temporary one.
    pub(super) fn prepare(given: Option<&Path>) -> Result<Self, DirectoryError> {
        let Some(given) = given else {
            let temporary = tempfile::Builder::new()
                .prefix("headgate-sandbox-")
                .permissions(Permissions::from_mode(0o700))
                .tempdir();
            let temporary = temporary.map_err(failed("create a directory in", &std::env::temp_dir()))?;
            let path = temporary.path().to_owned();
            let lock = lock(&path)?;
            return Ok(Self {
                path,
                temporary: Some(temporary),
                _lock: lock,
            });
        };
        let path = std::path::absolute(given).map_err(failed("use", given))?;
        create_private_directory(&path).map_err(failed("create the directory", &path))?;
        let is_unmarked = !path.join(LOCK).exists();
        if let Some(entry) = ENTRIES
            .iter()
            .map(|entry| path.join(entry))
            .find(|entry| is_unmarked && entry.exists())
        {
            return Err(DirectoryError::NotOwned(entry));
        }
        let lock = lock(&path)?;
        remove_entries(&path)?; // left behind by a sandbox that was killed
        Ok(Self {
            path,
            temporary: None,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of all logs.
    pub(super) fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// The directory of one node's agent.
    pub(super) fn node(&self, name: &str) -> PathBuf {
        self.path.join("nodes").join(name)
    }

    /// The directory of a controller.
    pub(super) fn controller(&self, name: &str) -> PathBuf {
        self.path.join("controllers").join(name)
    }

    /// The directory of the manifests of maintenances.
    pub(super) fn maintenances(&self) -> PathBuf {
        self.path.join("maintenances")
    }

    /// The directory of the Azure emulator.
    pub(super) fn azure(&self) -> PathBuf {
        self.path.join("azure")
    }

    /// Writes `sandbox.json` atomically. When it exists, everything in it is running.
    pub(super) fn write_description(&self, description: &Description<'_>) -> Result<(), DirectoryError> {
        let path = self.path.join("sandbox.json");
        let write = || -> io::Result<()> {
            let mut file = tempfile::Builder::new().prefix(".sandbox-").tempfile_in(&self.path)?;
            serde_json::to_writer_pretty(&mut file, description)?;
            file.write_all(b"\n")?;
            file.persist(&path)?;
            Ok(())
        };
        write().map_err(failed("write", &path))
    }

    /// Removes a temporary directory, or the sandbox's entries except the logs from a named one.
    pub(super) fn remove(self) -> Result<(), DirectoryError> {
        if let Some(temporary) = self.temporary {
            return temporary.close().map_err(failed("remove", &self.path));
        }
        remove_entries(&self.path)?;
        let lock = self.path.join(LOCK);
        fs::remove_file(&lock).map_err(failed("remove", &lock))
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_owned();
    move |source| DirectoryError::Io { action, path, source }
}

fn lock(directory: &Path) -> Result<File, DirectoryError> {
    let path = directory.join(LOCK);
    let file = File::create(&path).map_err(failed("write", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DirectoryError::InUse(directory.to_owned())),
        Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
    }
}

fn remove_entries(directory: &Path) -> Result<(), DirectoryError> {
    for entry in ENTRIES {
        let path = directory.join(entry);
        let outcome = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed(outcome).map_err(failed("remove", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_temporary_directory_is_removed() {
        let directory = Directory::prepare(None).unwrap();
        let path = directory.path().to_owned();
        fs::create_dir_all(directory.logs()).unwrap();
        directory.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_named_directory_keeps_the_logs_and_files_of_others() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("made/if/missing");
        let directory = Directory::prepare(Some(&path)).unwrap();
        fs::write(path.join("kubeconfig"), "").unwrap();
        fs::write(path.join("mine"), "").unwrap();
        fs::create_dir_all(directory.node("node-1")).unwrap();
        fs::create_dir_all(directory.logs()).unwrap();
        directory.remove().unwrap();
        let mut left: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["logs", "mine"]);
    }

    #[test]
    fn files_of_others_are_not_touched() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("kubeconfig"), "precious").unwrap();
        let error = Directory::prepare(Some(parent.path())).unwrap_err();
        assert!(matches!(error, DirectoryError::NotOwned(_)), "{error}");
        assert_eq!(fs::read(parent.path().join("kubeconfig")).unwrap(), b"precious");
    }

    #[test]
    fn one_sandbox_at_a_time_and_leftovers_of_a_killed_one_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let first = Directory::prepare(Some(parent.path())).unwrap();
        fs::write(parent.path().join("sandbox.json"), "old").unwrap();
        let error = Directory::prepare(Some(parent.path())).unwrap_err();
        assert!(matches!(error, DirectoryError::InUse(_)), "{error}");
        drop(first); // as if killed: the kernel releases the lock
        // A child of another test may have the lock, too, until it starts its program.
        let end = Instant::now() + Duration::from_secs(10);
        let second = loop {
            match Directory::prepare(Some(parent.path())) {
                Err(DirectoryError::InUse(_)) if Instant::now() < end => sleep(Duration::from_millis(10)),
                prepared => break prepared.unwrap(),
            }
        };
        assert!(!parent.path().join("sandbox.json").exists());
        second.remove().unwrap();
    }
}
