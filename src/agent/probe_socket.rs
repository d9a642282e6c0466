//! The Unix socket `headgate probe` asks over: where it is, and serving it.
//!
//! What is answered there is the operations port's; this room only makes and takes away the file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use headgate_http::server::{self, Limits, Metrics, UnixIncoming};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::sleep;

use super::AgentError;

/// File name of the probe socket in the state directory.
pub const PROBE_SOCKET: &str = "headgate.sock";

/// A socket's path may have this many bytes: Linux' `sun_path` without its final NUL.
const MAX_PATH_BYTES: usize = 107;
/// Time from one failed attempt to make the socket to the next.
const RETRY: Duration = Duration::from_secs(5);

/// Connects to the agent whose state directory this is.
///
/// # Errors
///
/// Where nobody serves there.
pub fn connect(state_dir: &Path) -> io::Result<UnixStream> {
    let address = Address::of(&state_dir.join(PROBE_SOCKET))?;
    UnixStream::connect(&address.path)
}

/// Serves the socket at `path` until told to close; tries again where it cannot be made.
pub(super) async fn serve(
    path: PathBuf,
    router: Router,
    metrics: Metrics,
    close: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let mut told = close.clone();
    let mut said = false;
    let listener = loop {
        match bind(&path) {
            Ok(listener) => break listener,
            Err(error) if !said => {
                said = true;
                tracing::error!(%error, socket = %path.display(),
                    "the probe socket cannot be made, so `headgate probe` fails; trying again every {} s", RETRY.as_secs());
            }
            Err(_) => {}
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = server::told(&mut told) => return Ok(()),
        }
    };
    let ours = identity(&path).ok();
    let incoming = UnixIncoming(listener);
    let served = server::serve("probe", incoming, router, Limits::OPERATIONS, &metrics, close).await;
    // A file that is left answers nobody; but another process may have put its own in the place.
    if identity(&path).ok() == ours {
        let _ = std::fs::remove_file(&path);
    }
    Ok(served?)
}

/// Which file stands at `path`: its device and inode.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    // What an earlier process of this container left.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(&Address::of(path)?.path)
}

/// A spelling of a socket's path that a socket address has room for.
struct Address {
    path: PathBuf,
    /// What a path below `/proc/self/fd` leads through.
    _directory: Option<File>,
}

impl Address {
    fn of(path: &Path) -> io::Result<Self> {
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
