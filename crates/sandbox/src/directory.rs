//! The sandbox's directory: a temporary one, or one the user named.
//!
//! The invariant: nothing is removed that the sandbox did not make, and no file that was there before is
//! overwritten. A lock tells a directory in use from one left behind by a sandbox that was killed.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::TempDir;

use super::agents;
use super::azure::Addresses;
use super::certificates::create_private_directory;

/// What lies in the directory while the sandbox runs, besides the logs and the lock.
const ENTRIES: [&str; 5] = ["azure", "kubeconfig", "sandbox.json", "control-plane", "nodes"];
/// Held, locked, as long as the sandbox runs. Whoever finds it knows that the entries are a sandbox's.
const LOCK: &str = "sandbox.lock";

/// The directory cannot be used or tidied up.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It is in use.
    #[error("another sandbox is running in {}; stop that one or give another --dir", .0.display())]
    Busy(PathBuf),
    /// Somebody else's files are there.
    #[error("{} is there already and was not made by a sandbox; move it away or give another --dir", .0.display())]
    Foreign(PathBuf),
    /// A file or directory cannot be made or removed.
    #[error("cannot {doing} {}: {source}; check its permissions, or give another --dir", path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A directory ready for use.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Removes the whole directory when dropped, even in a panic.
    temporary: Option<TempDir>,
    _lock: File,
}

/// One node, for whoever reads `sandbox.json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeAddresses {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) addresses: agents::Addresses,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Description<'a> {
    kubeconfig: &'a Path,
    nodes: &'a [NodeAddresses],
    emulator: &'a Addresses,
    /// For `--azure-config-file`.
    azure_json: &'a Path,
}

impl Directory {
    /// Takes the directory the user named, or a fresh temporary one.
    pub(super) fn prepare(given: Option<&Path>) -> Result<Self, DirectoryError> {
        let Some(given) = given else {
            let temporary = tempfile::Builder::new()
                .prefix("headgate-sandbox-")
                .permissions(Permissions::from_mode(0o700))
                .tempdir();
            let temporary = temporary.map_err(failed("make a directory in", &std::env::temp_dir()))?;
            let path = temporary.path().to_owned();
            let lock = lock(&path)?;
            return Ok(Self {
                path,
                temporary: Some(temporary),
                _lock: lock,
            });
        };
        let path = std::path::absolute(given).map_err(failed("use", given))?;
        create_private_directory(&path).map_err(failed("make the directory", &path))?;
        let foreign = !path.join(LOCK).exists();
        if let Some(entry) = ENTRIES
            .iter()
            .map(|entry| path.join(entry))
            .find(|entry| foreign && entry.exists())
        {
            return Err(DirectoryError::Foreign(entry));
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

    /// The directory of the logs of everything that runs.
    pub(super) fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// The directory of one node's agent.
    pub(super) fn node(&self, name: &str) -> PathBuf {
        self.path.join("nodes").join(name)
    }

    /// The directory of the Azure emulator.
    pub(super) fn azure(&self) -> PathBuf {
        self.path.join("azure")
    }

    /// Writes `sandbox.json`, whole or not at all: who finds it finds everything in it running.
    pub(super) fn describe(
        &self,
        kubeconfig: &Path,
        nodes: &[NodeAddresses],
        emulator: &Addresses,
        azure_json: &Path,
    ) -> Result<(), DirectoryError> {
        let path = self.path.join("sandbox.json");
        let write = || -> io::Result<()> {
            let mut file = tempfile::Builder::new().prefix(".sandbox-").tempfile_in(&self.path)?;
            serde_json::to_writer_pretty(
                &mut file,
                &Description {
                    kubeconfig,
                    nodes,
                    emulator,
                    azure_json,
                },
            )?;
            file.write_all(b"\n")?;
            file.persist(&path)?;
            Ok(())
        };
        write().map_err(failed("write", &path))
    }

    /// Removes a temporary directory whole, and of a named one what the sandbox made, but the logs.
    pub(super) fn remove(self) -> Result<(), DirectoryError> {
        if let Some(temporary) = self.temporary {
            return temporary.close().map_err(failed("remove", &self.path));
        }
        remove_entries(&self.path)?;
        let lock = self.path.join(LOCK);
        fs::remove_file(&lock).map_err(failed("remove", &lock))
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirectoryError {
    let path = path.to_owned();
    move |source| DirectoryError::Io { doing, path, source }
}

fn lock(directory: &Path) -> Result<File, DirectoryError> {
    let path = directory.join(LOCK);
    let file = File::create(&path).map_err(failed("write", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DirectoryError::Busy(directory.to_owned())),
        Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
    }
}

fn remove_entries(directory: &Path) -> Result<(), DirectoryError> {
    for entry in ENTRIES {
        let path = directory.join(entry);
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &path)(error)),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_directory_vanishes() {
        let directory = Directory::prepare(None).unwrap();
        let path = directory.path().to_owned();
        fs::create_dir_all(directory.logs()).unwrap();
        directory.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_named_directory_keeps_what_is_not_ours_and_the_logs() {
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
    fn somebody_elses_kubeconfig_is_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("kubeconfig"), "precious").unwrap();
        let error = Directory::prepare(Some(parent.path())).unwrap_err();
        assert!(matches!(error, DirectoryError::Foreign(_)), "{error}");
        assert_eq!(fs::read(parent.path().join("kubeconfig")).unwrap(), b"precious");
    }

    #[test]
    fn one_sandbox_at_a_time_and_a_killed_ones_remains_go() {
        let parent = tempfile::tempdir().unwrap();
        let first = Directory::prepare(Some(parent.path())).unwrap();
        fs::write(parent.path().join("sandbox.json"), "old").unwrap();
        let error = Directory::prepare(Some(parent.path())).unwrap_err();
        assert!(matches!(error, DirectoryError::Busy(_)), "{error}");
        drop(first); // as if killed: the kernel gives the lock back
        let second = Directory::prepare(Some(parent.path())).unwrap();
        assert!(!parent.path().join("sandbox.json").exists());
        second.remove().unwrap();
    }
}
