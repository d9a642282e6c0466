//! The addresses that were bound, for settings with port 0, and the file that contains them.
//!
//! Invariant: the file exists only while this process accepts connections at its addresses. An old file is removed
//! before anything is bound, and the own file at a graceful stop. So who waits for the file can connect.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_http::server::BindState;
use serde::Serialize;
use tempfile::NamedTempFile;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::AgentError;
use super::probe_socket::file_identity;
use super::tasks::Tasks;

/// The prefix of temporary files beside the addresses file.
const TEMPORARY_PREFIX: &str = ".addresses-";
/// The file is readable for everybody who can read the directory.
const FILE_MODE: u32 = 0o644;
/// Time from a failed write to the next attempt.
const WRITE_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The bound addresses, in the form of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BoundAddresses {
    /// The health port; `None` if this process has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthz: Option<SocketAddr>,
    /// The address of the operations port.
    pub metrics: SocketAddr,
}

/// The states of the process's listeners.
#[derive(Clone, Debug)]
pub(super) struct Listeners {
    /// The health port, if this process answers for its node.
    pub(super) healthz: Option<watch::Receiver<BindState>>,
    /// The state of the operations port's socket.
    pub(super) metrics: watch::Receiver<BindState>,
}

/// Waits until all listeners are bound; `None` if the process stops before.
pub(super) async fn wait_until_bound(listeners: Listeners) -> Option<BoundAddresses> {
    async fn address(mut state: watch::Receiver<BindState>) -> Option<SocketAddr> {
        state.wait_for(|state| state.address().is_some()).await.ok()?.address()
    }
    let healthz = match listeners.healthz {
        Some(state) => Some(address(state).await?),
        None => None,
    };
    let metrics = address(listeners.metrics).await?;
    Some(BoundAddresses { healthz, metrics })
}

/// Removes an old file at `path`, checks that the file can be written, and starts the task that writes it when the
/// listeners are bound and removes it when `stop` is cancelled.
pub(super) fn start_addresses_file(
    tasks: &mut Tasks,
    path: PathBuf,
    listeners: Listeners,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let file = AddressesFile { path };
    match file.prepare() {
        Ok(()) => {
            tasks.spawn_stoppable("addresses-file", file.run(listeners, stop));
            Ok(())
        }
        Err(source) => Err(AgentError::AddressesFile {
            path: file.path,
            source,
        }),
    }
}

/// The file with the bound addresses.
struct AddressesFile {
    path: PathBuf,
}

impl AddressesFile {
    async fn run(self, listeners: Listeners, stop: CancellationToken) -> Result<(), AgentError> {
        let written = tokio::select! {
            written = self.write_when_bound(listeners) => written,
            () = stop.cancelled() => return Ok(()),
        };
        stop.cancelled().await;
        // A file that another process has put there since must stay.
        if file_identity(&self.path).is_ok_and(|found| found == written) {
            // Removing needs the same rights as writing did.
            let _ = fs::remove_file(&self.path);
        }
        Ok(())
    }

    /// Waits for the addresses, and writes the file; retries until it succeeds. A failure affects only the file.
    async fn write_when_bound(&self, listeners: Listeners) -> (u64, u64) {
        let Some(addresses) = wait_until_bound(listeners).await else {
            return std::future::pending().await;
        };
        let mut is_logged = false;
        loop {
            match self.replace(&addresses) {
                Ok(written) => return written,
                Err(error) if !is_logged => {
                    is_logged = true;
                    tracing::error!(%error, path = %self.path.display(), retry_in = ?WRITE_RETRY_INTERVAL,
                        "addresses file not written");
                }
                Err(_) => {}
            }
            sleep(WRITE_RETRY_INTERVAL).await;
        }
    }

    fn prepare(&self) -> io::Result<()> {
        let is_temporary = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes());
        let entries = fs::read_dir(self.directory()).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            if is_temporary(&entry.file_name()) {
                // A killed process left it. If it cannot be removed, it does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.temporary_file().map(drop)
    }

    /// Replaces the file completely or not at all.
    fn replace(&self, addresses: &BoundAddresses) -> io::Result<(u64, u64)> {
        let mut file = self.temporary_file()?;
        serde_json::to_writer(&mut file, addresses)?;
        file.as_file().set_permissions(Permissions::from_mode(FILE_MODE))?;
        let written = file.persist(&self.path)?.metadata()?;
        Ok((written.dev(), written.ino()))
    }

    fn temporary_file(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .tempfile_in(self.directory())
    }

    fn directory(&self) -> &Path {
        let parent = self.path.parent();
        parent
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
    }
}
