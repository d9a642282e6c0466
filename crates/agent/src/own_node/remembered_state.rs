//! The remembered state: the last known state and signals of the own Node on disk, for a restart without an API
//! server.
//!
//! It is one small JSON file that is replaced atomically and names its Node. A file that is corrupt, too large, or
//! another Node's is ignored with a warning. A failed write affects a later restart only, never a health answer.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_core::clock::{Clock, Moment};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::health::ProxyStatus;
use headgate_core::node::{NodeReport, RememberedNode, Source};

/// The file in the state directory.
const FILE_NAME: &str = "state.json";
/// Where the kernel shows the id of the boot, in every container.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";
/// The version of the format. A file of another version is ignored.
const VERSION: u32 = 1;
/// More than is kept of any Node; headgate did not write a larger file.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// Time from a failed write to the next attempt.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// What holds until the machine restarts, although the file outlives that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Boot {
    /// The kernel's id of the boot; empty if it is not known.
    pub id: String,
    /// The `host:port` at which kube-proxy has answered.
    pub kube_proxy: Option<String>,
}

impl Boot {
    /// The present one, in which `kube_proxy` has answered.
    pub fn present(kube_proxy: Option<String>) -> Self {
        let id = std::fs::read_to_string(BOOT_ID_FILE).unwrap_or_default();
        let id = id.trim().to_owned();
        Self { id, kube_proxy }
    }

    /// Whether both are known to be the same.
    pub fn is_same(&self, other: &Self) -> bool {
        !self.id.is_empty() && self.id == other.id
    }
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RememberedState {
    version: u32,
    node_name: String,
    /// The boot in which it was stored.
    #[serde(default)]
    pub boot: Boot,
    /// What was known.
    #[serde(flatten)]
    pub known: RememberedNode,
}

impl RememberedState {
    /// The state to store for a report; `None` before the first observation of the Node.
    pub fn from_report(node_name: &str, boot: Boot, report: &NodeReport, now: Moment) -> Option<Self> {
        Some(Self {
            version: VERSION,
            node_name: node_name.to_owned(),
            boot,
            known: report.remembered(now)?,
        })
    }

    /// Reads the file in `state_dir`; `None` if there is none.
    ///
    /// # Errors
    /// Why a file that is there cannot be used, with its path. The caller logs it and continues without.
    pub fn load(state_dir: &Path, node_name: &str) -> Result<Option<Self>, String> {
        let path = state_dir.join(FILE_NAME);
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
        let parsed = match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => Err(format!("cannot be read: {error}")),
            Ok(length) if length as u64 > MAX_FILE_BYTES => Err(format!("is larger than {MAX_FILE_BYTES} bytes")),
            Ok(_) => Self::parse(&bytes, node_name),
        };
        let named = parsed.map_err(|why| format!("the remembered state {} {why}", path.display()));
        named.map(Some)
    }

    fn parse(bytes: &[u8], node_name: &str) -> Result<Self, String> {
        let state: Self = serde_json::from_slice(bytes).map_err(|error| format!("is corrupt: {error}"))?;
        if state.version != VERSION {
            return Err(format!("has version {}, this is version {VERSION}", state.version));
        }
        if state.node_name != node_name {
            let found = state.node_name;
            return Err(format!("is about Node {found:?}, this is {node_name:?}"));
        }
        Ok(state)
    }

    /// Replaces the file in `state_dir`. If that fails, removes the old file, since an outdated state is worse than
    /// none.
    fn store_or_remove(&self, state_dir: &Path) -> io::Result<()> {
        let stored = self.store(state_dir);
        if stored.is_err() {
            // Removing works on a full disk too. It fails if there is no file, and then there is nothing to remove.
            let _ = std::fs::remove_file(state_dir.join(FILE_NAME));
        }
        stored
    }

    /// Replaces the file in `state_dir`. A reader finds the old file or the new one, never a part.
    ///
    /// # Errors
    /// As from the system call that failed; the old file is unchanged.
    pub fn store(&self, state_dir: &Path) -> io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".state-").tempfile_in(state_dir)?;
        serde_json::to_writer(&mut file, self)?;
        file.flush()?;
        file.persist(state_dir.join(FILE_NAME))?;
        Ok(())
    }
}

/// Stores each new report in `state_dir` until the sender is dropped, with the boot, and with the address of kube-proxy once that has
/// answered.
///
/// Disk access happens outside the runtime's threads, so a slow disk delays nothing else. After a failed write the
/// old file is removed and the write is retried until it succeeds.
pub async fn store_reports(
    mut reports: watch::Receiver<NodeReport>,
    mut proxy: watch::Receiver<ProxyStatus>,
    boot: Boot,
    state_dir: PathBuf,
    node_name: String,
    clock: Clock,
) {
    let mut is_failing = false;
    loop {
        let report = reports.borrow_and_update().clone();
        let has_answered = proxy.borrow().is_known();
        let boot = Boot {
            id: boot.id.clone(),
            kube_proxy: boot.kube_proxy.clone().filter(|_| has_answered),
        };
        // A remembered report is on disk already.
        if report.source == Source::Watch
            && let Some(state) = RememberedState::from_report(&node_name, boot, &report, clock.now())
        {
            let directory = state_dir.clone();
            let stored = tokio::task::spawn_blocking(move || state.store_or_remove(&directory)).await;
            match stored.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
                Ok(()) if is_failing => {
                    is_failing = false;
                    tracing::info!(directory = %state_dir.display(), "remembered state written again");
                }
                Ok(()) => {}
                Err(error) => {
                    if !is_failing {
                        tracing::warn!(%error, directory = %state_dir.display(), retry_in = ?WRITE_RETRY_INTERVAL,
                            "remembered state not written; after a restart without an API server the Node is unknown");
                    }
                    is_failing = true;
                }
            }
        }
        let changed = async {
            tokio::select! {
                changed = reports.changed() => changed,
                Ok(_) = proxy.wait_for(ProxyStatus::is_known), if !has_answered => Ok(()),
            }
        };
        let changed = if is_failing {
            timeout(WRITE_RETRY_INTERVAL, changed).await.unwrap_or(Ok(()))
        } else {
            changed.await
        };
        if changed.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::node::{Node, SignalRules, Taint};

    use super::*;

    fn state() -> RememberedState {
        let node = Node {
            uid: "u".into(),
            taints: vec![Taint::new("drain", "NoSchedule")],
            ..Node::default()
        };
        let (node, now) = (
            node.with_signals(&SignalRules::new(["drain"], &[])),
            Clock::System.now(),
        );
        let report = NodeReport::initial(None, &SignalRules::default(), now).with_node(node, now);
        RememberedState::from_report("node-1", Boot::default(), &report, now).unwrap()
    }

    #[test]
    fn stored_state_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(RememberedState::load(dir.path(), "node-1").unwrap(), None);
        state().store(dir.path()).unwrap();
        state().store(dir.path()).unwrap();
        let loaded = RememberedState::load(dir.path(), "node-1").unwrap().unwrap();
        assert_eq!(loaded.known.node.taints, state().known.node.taints);
        let files = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 1, "no temporary file is left");
    }

    #[test]
    fn unusable_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |bytes: &[u8]| std::fs::write(dir.path().join(FILE_NAME), bytes).unwrap();
        let load = || RememberedState::load(dir.path(), "node-1").unwrap_err();
        for corrupt in [&b""[..], b"{", b"[]", b"{\"version\":1}", b"\xff\xfe"] {
            write(corrupt);
            assert!(load().contains("state.json is corrupt: "), "{corrupt:?}");
        }
        write(&vec![b' '; 256 * 1024 + 1]);
        assert!(load().ends_with("state.json is larger than 262144 bytes"));
        write(&serde_json::to_vec(&RememberedState { version: 2, ..state() }).unwrap());
        assert!(load().ends_with("state.json has version 2, this is version 1"));
        let of_another = RememberedState {
            node_name: "node-2".into(),
            ..state()
        };
        write(&serde_json::to_vec(&of_another).unwrap());
        assert!(load().contains("is about Node \"node-2\", this is \"node-1\""));
    }

    #[tokio::test]
    async fn failed_write_removes_the_old_file_and_is_retried() {
        let dir = tempfile::tempdir().unwrap();
        state().store(dir.path()).unwrap();
        let missing = dir.path().join("missing");
        assert!(state().store_or_remove(&missing).is_err());
        std::fs::create_dir(&missing).unwrap();
        state().store(&missing).unwrap();
        let initial = NodeReport::initial(Some(state().known), &SignalRules::default(), Clock::System.now());
        let (reports, report) = watch::channel(initial);
        std::fs::remove_dir_all(&missing).unwrap();
        tokio::time::pause();
        let proxy = watch::Sender::new(ProxyStatus::new(WRITE_RETRY_INTERVAL));
        let (directory, node) = (missing.clone(), "node-1".to_owned());
        let store = store_reports(
            report,
            proxy.subscribe(),
            Boot::default(),
            directory,
            node,
            Clock::System,
        );
        let storing = tokio::spawn(store);
        let observed = reports.borrow().with_node(Node::default(), Clock::System.now());
        reports.send_replace(observed);
        tokio::time::sleep(WRITE_RETRY_INTERVAL / 2).await;
        std::fs::create_dir(&missing).unwrap();
        while RememberedState::load(&missing, "node-1").unwrap().is_none() {
            tokio::time::sleep(WRITE_RETRY_INTERVAL / 2).await;
            tokio::task::yield_now().await;
        }
        drop(reports);
        storing.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn kube_proxy_is_remembered_for_the_boot_once_it_has_answered() {
        let dir = tempfile::tempdir().unwrap();
        let now = Clock::System.now();
        let report = NodeReport::initial(None, &SignalRules::default(), now).with_node(Node::default(), now);
        let reports = watch::Sender::new(report);
        let proxy = watch::Sender::new(ProxyStatus::new(WRITE_RETRY_INTERVAL));
        let boot = Boot::present(Some("127.0.0.1:10256".to_owned()));
        let (directory, node) = (dir.path().to_owned(), "node-1".to_owned());
        let (report, proxied) = (reports.subscribe(), proxy.subscribe());
        let store = store_reports(report, proxied, boot.clone(), directory, node, Clock::System);
        let storing = tokio::spawn(store);
        let stored = async |kube_proxy: Option<String>| {
            let expected = Boot {
                kube_proxy,
                ..boot.clone()
            };
            let load = || RememberedState::load(dir.path(), "node-1").unwrap();
            while load().is_none_or(|state| state.boot != expected) {
                tokio::time::sleep(WRITE_RETRY_INTERVAL).await;
                tokio::task::yield_now().await;
            }
        };
        stored(None).await;
        proxy.send_replace(ProxyStatus::answered_before(WRITE_RETRY_INTERVAL, now));
        stored(boot.kube_proxy.clone()).await;
        drop(reports);
        storing.await.unwrap();
        let other = Boot {
            id: "other".to_owned(),
            ..Boot::default()
        };
        assert!(
            boot.is_same(&Boot::present(None)) && !boot.is_same(&other) && !Boot::default().is_same(&Boot::default())
        );
    }
}
