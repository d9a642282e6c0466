//! The Unix socket over which `headgate probe` queries its own process, and `headgate connections` counts for it. It has the same
//! routes as the operations port, and those of the counter; this module creates, serves and removes the file.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use headgate_http::server::{self, Limits, Metrics};
use tokio::net::UnixListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::AgentError;

/// The name of the socket in the state directory.
pub(crate) const PROBE_SOCKET_FILE: &str = "headgate.sock";

/// Owner and group may connect.
const SOCKET_MODE: u32 = 0o660;
/// The longest path in a socket address: Linux' `sun_path` without its final NUL.
const MAX_PATH_BYTES: usize = 107;
/// Time from a failed attempt to create the socket to the next.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Connects to the agent with this socket.
///
/// # Errors
/// When no process serves the socket.
pub(crate) fn connect(socket: &Path) -> io::Result<UnixStream> {
    let address = SocketPath::new(socket)?;
    UnixStream::connect(&address.path)
}

/// Serves the socket at `path` until `stop` is cancelled; retries while it cannot be created.
pub(super) async fn serve(
    path: PathBuf,
    router: Router,
    metrics: Metrics,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    let mut is_logged = false;
    let listener = loop {
        match bind(&path) {
            Ok(listener) => break listener,
            Err(error) if !is_logged => {
                is_logged = true;
                tracing::error!(%error, socket = %path.display(), retry_in = ?BIND_RETRY_INTERVAL,
                    "probe socket not created, `headgate probe` fails");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = sleep(BIND_RETRY_INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
    };
    let own_file = file_identity(&path).ok();
    let served = server::serve("probe", listener, router, Limits::OPERATIONS, &metrics, stop).await;
    // Another process may have put its own socket there since; that one must stay.
    if file_identity(&path).ok() == own_file {
        let _ = std::fs::remove_file(&path);
    }
    Ok(served?)
}

/// Device and inode, which distinguish a file from another one at the same path.
pub(super) fn file_identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    // An earlier process of this container may have left its socket.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&SocketPath::new(path)?.path)?;
    // For the container that counts connections: it is root without its rights, in the same group.
    std::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}

/// A path to the socket that fits into a socket address.
struct SocketPath {
    path: PathBuf,
    /// Keeps a path below `/proc/self/fd` valid.
    _directory: Option<File>,
}

impl SocketPath {
    fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= MAX_PATH_BYTES {
            let path = path.to_owned();
            return Ok(Self { path, _directory: None });
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        let directory = File::open(parent)?;
        Ok(Self {
            path: PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name),
            _directory: Some(directory),
        })
    }
}
