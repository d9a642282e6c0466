//! The remembered state: what was last known of the own Node, on disk, for a restart while the API
//! server is away.
//!
//! One small JSON file, replaced atomically, keyed by the Node's name and UID. A file that is corrupt,
//! oversized or another node's is ignored with a warning; failing to write it costs memory, never health.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_clock::{Clock, Moment};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use super::report::{Report, Source};
use super::signal::Facts;

/// File name in the state directory.
const FILE_NAME: &str = "state.json";
/// Form of the file; another version is ignored.
const VERSION: u32 = 1;
/// More than any Node with its taints; a larger file is not ours.
const MAX_FILE_BYTES: u64 = 256 * 1024;

/// What is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    version: u32,
    /// Name of the Node.
    node_name: String,
    /// What it last said; the settings of the reader decide what of it is a signal.
    pub facts: Facts,
    /// Since when each signal was in force.
    pub since: BTreeMap<String, Timestamp>,
    /// When this was written.
    written_at: Timestamp,
}

/// Why a remembered state is of no use.
#[derive(Debug, thiserror::Error)]
pub enum RememberedError {
    /// It cannot be read.
    #[error("the remembered state {path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It is larger than any state of ours.
    #[error("the remembered state {path} is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not in our form.
    #[error("the remembered state {path} is corrupt: {source}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// It was written by another version.
    #[error("the remembered state {path} has version {found}, this is version {VERSION}")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It is about another Node.
    #[error("the remembered state {path} is about Node {found:?}, this is {expected:?}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The Node it is about.
        found: String,
        /// This Node.
        expected: String,
    },
}

impl Memory {
    /// What of `report` is worth remembering; nothing before the Node was seen.
    #[must_use]
    pub fn of(node_name: &str, report: &Report, now: Moment) -> Option<Self> {
        let facts = report.facts.clone()?;
        let since = report
            .signals
            .iter()
            .map(|(signal, since)| (signal.to_string(), *since))
            .collect();
        Some(Self {
            version: VERSION,
            node_name: node_name.to_owned(),
            facts,
            since,
            written_at: now.wall,
        })
    }

    /// The memory in `state_dir`, if there is one.
    ///
    /// # Errors
    /// When there is a file that cannot be used; the caller warns and goes on without.
    pub fn load(state_dir: &Path, node_name: &str) -> Result<Option<Self>, RememberedError> {
        let path = state_dir.join(FILE_NAME);
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RememberedError::Read { path, source }),
            Ok(length) if length as u64 > MAX_FILE_BYTES => Err(RememberedError::TooLarge { path }),
            Ok(_) => Self::parse(&bytes, &path, node_name).map(Some),
        }
    }

    fn parse(bytes: &[u8], path: &Path, node_name: &str) -> Result<Self, RememberedError> {
        let path = path.to_owned();
        match serde_json::from_slice::<Self>(bytes) {
            Err(source) => Err(RememberedError::Corrupt { path, source }),
            Ok(memory) if memory.version != VERSION => Err(RememberedError::Version {
                path,
                found: memory.version,
            }),
            Ok(memory) if memory.node_name != node_name => Err(RememberedError::Foreign {
                path,
                found: memory.node_name,
                expected: node_name.to_owned(),
            }),
            Ok(memory) => Ok(memory),
        }
    }

    /// Replaces the memory in `state_dir`, or at least takes an older one away.
    fn store_or_forget(&self, state_dir: &Path) -> io::Result<()> {
        let stored = self.store(state_dir);
        if stored.is_err() {
            // Works on a full disk too. A file that is not there needs no removing.
            let _ = std::fs::remove_file(state_dir.join(FILE_NAME));
        }
        stored
    }

    /// Replaces the memory in `state_dir`: a reader sees the old file or the new one, never a part.
    ///
    /// # Errors
    /// The system's reason; what was there before still is.
    pub fn store(&self, state_dir: &Path) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".state-").tempfile_in(state_dir)?;
        serde_json::to_writer(&mut file, self)?;
        file.flush()?;
        file.persist(state_dir.join(FILE_NAME))?;
        Ok(())
    }
}

/// Time from a failed write to the next attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Writes every new report to `state_dir`; runs until the sender is gone.
///
/// Disk work is done off the runtime, so that a slow disk delays nothing but the memory. Where a report
/// cannot be written the older one is taken away, since a verdict that no longer holds is worse than none,
/// and writing is tried again until it succeeds.
pub async fn keep(mut reports: watch::Receiver<Report>, state_dir: PathBuf, node_name: String, clock: Clock) {
    let mut failing = false;
    loop {
        let report = reports.borrow_and_update().clone();
        // What was remembered is on disk already.
        if report.source == Source::Watch
            && let Some(memory) = Memory::of(&node_name, &report, clock.now())
        {
            let directory = state_dir.clone();
            let stored = tokio::task::spawn_blocking(move || memory.store_or_forget(&directory)).await;
            match stored.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
                Ok(()) if failing => {
                    failing = false;
                    tracing::info!("the node's state is remembered again");
                }
                Ok(()) => {}
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, directory = %state_dir.display(),
                            "the node's state cannot be remembered; a restart while the API server is away starts from nothing");
                    }
                    failing = true;
                }
            }
        }
        let changed = if failing {
            timeout(RETRY_INTERVAL, reports.changed()).await.unwrap_or(Ok(()))
        } else {
            reports.changed().await
        };
        if changed.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        let report = Report::initial(None, &[], Clock::System.now()).observed(
            Facts {
                uid: "u".into(),
                taints: vec!["drain".into()],
                ..Facts::default()
            },
            &["drain".to_owned()],
            Clock::System.now(),
        );
        Memory::of("node-1", &report, Clock::System.now()).unwrap()
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Memory::load(dir.path(), "node-1").unwrap(), None);
        memory().store(dir.path()).unwrap();
        memory().store(dir.path()).unwrap();
        let loaded = Memory::load(dir.path(), "node-1").unwrap().unwrap();
        assert_eq!(loaded.facts, memory().facts);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |bytes: &[u8]| std::fs::write(dir.path().join(FILE_NAME), bytes).unwrap();
        let load = || Memory::load(dir.path(), "node-1").unwrap_err();
        for corrupt in [&b""[..], b"{", b"[]", b"{\"version\":1}", b"\xff\xfe"] {
            write(corrupt);
            assert!(matches!(load(), RememberedError::Corrupt { .. }), "{corrupt:?}");
        }
        write(&vec![b' '; 256 * 1024 + 1]);
        assert!(matches!(load(), RememberedError::TooLarge { .. }));
        write(&serde_json::to_vec(&Memory { version: 2, ..memory() }).unwrap());
        assert!(matches!(load(), RememberedError::Version { found: 2, .. }));
        write(
            &serde_json::to_vec(&Memory {
                node_name: "node-2".into(),
                ..memory()
            })
            .unwrap(),
        );
        assert!(
            load()
                .to_string()
                .contains("is about Node \"node-2\", this is \"node-1\"")
        );
    }

    #[tokio::test]
    async fn a_verdict_that_cannot_be_written_is_forgotten_and_written_later() {
        let dir = tempfile::tempdir().unwrap();
        memory().store(dir.path()).unwrap();
        // A directory in the way of the new file: nothing can be renamed onto it. The old one is gone first.
        let missing = dir.path().join("missing");
        assert!(memory().store_or_forget(&missing).is_err());
        std::fs::create_dir(&missing).unwrap();
        memory().store(&missing).unwrap();
        let (reports, report) = watch::channel(Report::initial(Some(memory()), &[], Clock::System.now()));
        std::fs::remove_dir_all(&missing).unwrap();
        tokio::time::pause();
        let keeping = tokio::spawn(keep(report, missing.clone(), "node-1".to_owned(), Clock::System));
        let seen = reports.borrow().observed(Facts::default(), &[], Clock::System.now());
        reports.send_replace(seen);
        tokio::time::sleep(RETRY_INTERVAL / 2).await;
        std::fs::create_dir(&missing).unwrap();
        while Memory::load(&missing, "node-1").unwrap().is_none() {
            tokio::time::sleep(RETRY_INTERVAL / 2).await;
            tokio::task::yield_now().await;
        }
        drop(reports);
        keeping.await.unwrap();
    }
}
