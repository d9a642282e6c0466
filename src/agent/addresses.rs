//! Which addresses were bound, for whoever gave port 0.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tokio::sync::watch;

use crate::server::BindState;

/// The bound addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// Of `/healthz` and `/livez`.
    pub healthz: SocketAddr,
    /// Of operations.
    pub metrics: SocketAddr,
}

/// Waits until both listeners are bound; `None` when one never will be.
pub(super) async fn bound([mut healthz, mut metrics]: [watch::Receiver<BindState>; 2]) -> Option<Addresses> {
    let healthz = healthz
        .wait_for(|state| state.address().is_some())
        .await
        .ok()?
        .address()?;
    let metrics = metrics
        .wait_for(|state| state.address().is_some())
        .await
        .ok()?
        .address()?;
    Some(Addresses { healthz, metrics })
}

/// Writes the addresses to `path` once both are bound, whole or not at all.
pub(super) async fn write(states: [watch::Receiver<BindState>; 2], path: PathBuf) {
    let Some(addresses) = bound(states).await else { return };
    if let Err(error) = replace(&path, &addresses) {
        tracing::error!(%error, path = %path.display(), "the addresses file cannot be written");
    }
}

fn replace(path: &Path, addresses: &Addresses) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".addresses-").tempfile_in(directory)?;
    serde_json::to_writer(&mut file, addresses)?;
    file.persist(path)?;
    Ok(())
}
