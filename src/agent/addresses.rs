//! Which addresses were bound, for whoever gave port 0.
//!
//! The file is there only while this process answers at what it says: what an earlier one left goes
//! before anything is bound, and it goes with a graceful stop. A waiter that finds it can connect.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_http::server::{self, BindState};
use serde::Serialize;
use tempfile::NamedTempFile;
use tokio::sync::watch;
use tokio::time::sleep;

use super::AgentError;
use super::supervise::Tasks;

/// What the names of its temporary files begin with.
const TEMPORARY: &str = ".addresses-";
/// Whoever may look into the directory may read it.
const MODE: u32 = 0o644;
/// Time from one failed attempt to write it to the next.
const RETRY: Duration = Duration::from_secs(5);

/// The bound addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// Of `/healthz` and `/livez`, where they are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthz: Option<SocketAddr>,
    /// Of operations.
    pub metrics: SocketAddr,
}

/// The states of the listeners that there are.
#[derive(Clone, Debug)]
pub(super) struct Listeners {
    /// The health port, where this process answers for its node.
    pub(super) healthz: Option<watch::Receiver<BindState>>,
    /// The operations port.
    pub(super) metrics: watch::Receiver<BindState>,
}

/// Waits until all listeners are bound; `None` when one never will be.
pub(super) async fn bound(listeners: Listeners) -> Option<Addresses> {
    async fn address(mut state: watch::Receiver<BindState>) -> Option<SocketAddr> {
        state.wait_for(|state| state.address().is_some()).await.ok()?.address()
    }
    let healthz = match listeners.healthz {
        Some(state) => Some(address(state).await?),
        None => None,
    };
    let metrics = address(listeners.metrics).await?;
    Some(Addresses { healthz, metrics })
}

/// Removes what an earlier process left at `path`, finds out whether the file can be written, and has a task
/// write it once the listeners are bound and remove it when told to close.
pub(super) fn keep(
    tasks: &mut Tasks,
    path: PathBuf,
    listeners: Listeners,
    close: &watch::Sender<bool>,
) -> Result<(), AgentError> {
    let file = AddressesFile { path };
    match file.clear() {
        Ok(()) => {
            tasks.listener("addresses-file", file.keep(listeners, close.subscribe()));
            Ok(())
        }
        Err(source) => Err(AgentError::AddressesFile {
            path: file.path,
            source,
        }),
    }
}

/// Where the addresses are to be written.
struct AddressesFile {
    path: PathBuf,
}

impl AddressesFile {
    /// Writes the file once the listeners are bound, and removes it when told to close.
    async fn keep(self, listeners: Listeners, mut close: watch::Receiver<bool>) -> Result<(), AgentError> {
        let mut told = close.clone();
        let written = tokio::select! {
            written = self.written(listeners) => written,
            () = server::told(&mut told) => return Ok(()),
        };
        server::told(&mut close).await;
        // Not one that a process after this one has put there.
        let ours = |there: Metadata| (there.dev(), there.ino()) == (written.dev(), written.ino());
        if fs::symlink_metadata(&self.path).is_ok_and(ours) {
            // A file that cannot be removed now could not have been written.
            let _ = fs::remove_file(&self.path);
        }
        Ok(())
    }

    /// Waits for the addresses and for the disk: from here on a failure costs the file, never health.
    async fn written(&self, listeners: Listeners) -> Metadata {
        let Some(addresses) = bound(listeners).await else {
            return std::future::pending().await;
        };
        let mut said = false;
        loop {
            match self.replace(&addresses) {
                Ok(written) => return written,
                Err(error) if !said => {
                    said = true;
                    tracing::error!(%error, path = %self.path.display(),
                        "the addresses file cannot be written; trying again every {} s", RETRY.as_secs());
                }
                Err(_) => {}
            }
            sleep(RETRY).await;
        }
    }

    fn clear(&self) -> io::Result<()> {
        let is_ours = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(TEMPORARY.as_bytes());
        let entries = fs::read_dir(self.directory()).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            if is_ours(&entry.file_name()) {
                // Litter of a process that was killed; what cannot be removed hurts nobody.
                let _ = fs::remove_file(entry.path());
            }
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.temporary().map(drop)
    }

    /// Replaces the file whole or not at all.
    fn replace(&self, addresses: &Addresses) -> io::Result<Metadata> {
        let mut file = self.temporary()?;
        serde_json::to_writer(&mut file, addresses)?;
        file.as_file().set_permissions(Permissions::from_mode(MODE))?;
        file.persist(&self.path)?.metadata()
    }

    fn temporary(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(self.directory())
    }

    fn directory(&self) -> &Path {
        let parent = self.path.parent();
        parent
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."))
    }
}
