//! A Pod's process: it answers each byte with the indexes of its node and of the node that forwards the connection, and
//! `/ready` with 200 until its health check is failed.
//!
//! Dropping it ends the process: its sockets close, and established connections see FIN or RST.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::http;
use crate::network::addresses::{POD_PORT, POD_READY_PORT, node_with_address};

/// Connections one Pod serves at once; more wait in the listener's queue.
const MAX_CONNECTIONS: usize = 4096;

/// How long a port of the Pod before may stay in use.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two attempts.
const LISTEN_INTERVAL: Duration = Duration::from_millis(5);

/// A Pod's process.
#[derive(Debug)]
pub struct Pod {
    ready: Arc<AtomicBool>,
    tasks: [JoinHandle<()>; 2],
}

impl Pod {
    /// Starts one in the network namespace of the calling thread, on all of its addresses.
    ///
    /// # Errors
    /// Another process listens on its ports.
    pub async fn start(node: u8) -> io::Result<Self> {
        let listener = listen(POD_PORT).await?;
        let ready_listener = listen(POD_READY_PORT).await?;
        let ready = Arc::new(AtomicBool::new(true));
        let answers = Arc::clone(&ready);
        let answer: http::Answer = Arc::new(move |path| match path {
            "/ready" if answers.load(Ordering::Relaxed) => StatusCode::OK,
            "/ready" => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::NOT_FOUND,
        });
        let tasks = [
            tokio::spawn(serve(listener, node)),
            tokio::spawn(http::serve(ready_listener, answer)),
        ];
        Ok(Self { ready, tasks })
    }

    /// What `/healthcheck/fail` of Envoy does.
    pub(crate) fn fail_health_check(&self) {
        self.ready.store(false, Ordering::Relaxed);
    }

    /// Ends it, and returns once its sockets are closed.
    pub(crate) async fn end(mut self) {
        for task in &mut self.tasks {
            task.abort();
            // An aborted task has no result.
            let _ = task.await;
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Listens, also where the Pod before has just closed the port: a child process that another thread starts has a copy of
/// its socket until it executes its program.
async fn listen(port: u16) -> io::Result<TcpListener> {
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    loop {
        match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                sleep(LISTEN_INTERVAL).await;
            }
            listener => return listener,
        }
    }
}

async fn serve(listener: TcpListener, node: u8) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                if let Ok((stream, peer)) = accepted {
                    connections.spawn(echo(stream, [node, forwarded_by(peer).unwrap_or(node)]));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Another node replaces the client's address by its own; a connection through the Pod's own node, or one that no node
/// forwards, comes from its client.
fn forwarded_by(peer: SocketAddr) -> Option<u8> {
    match peer.ip() {
        IpAddr::V4(address) => node_with_address(address),
        IpAddr::V6(_) => None,
    }
}

async fn echo(mut stream: TcpStream, nodes: [u8; 2]) {
    let _ = stream.set_nodelay(true);
    let mut request = [0];
    // The client ends the connection, or it broke: either way this side is done.
    while stream.read_exact(&mut request).await.is_ok() && stream.write_all(&nodes).await.is_ok() {}
}
