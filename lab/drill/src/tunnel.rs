//! TCP from an address inside a node to one of this process's network namespace.
//!
//! Agents and kube-proxy run in their nodes' namespaces, the control plane and the Azure emulator outside. A node's listener hands each
//! accepted stream to a [`dial`] task outside, which connects and copies. The streams stay in the namespaces in which
//! they were made.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Connections of all nodes through one tunnel at once.
const MAX_CONNECTIONS: usize = 1024;
/// How long connecting to the other end may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where processes of a node connect to, and who connects on.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// The address inside each node.
    pub near: SocketAddr,
    /// Receives what was accepted.
    pub streams: mpsc::Sender<std::net::TcpStream>,
}

impl Tunnel {
    /// A tunnel from this address of each node, and what [`dial`] needs.
    pub fn new(near: SocketAddr) -> (Self, mpsc::Receiver<std::net::TcpStream>) {
        let (streams, accepted) = mpsc::channel(16);
        (Self { near, streams }, accepted)
    }
}

/// Accepts until the other end is gone. A connection that cannot be carried on is closed.
pub(crate) async fn accept(listener: TcpListener, streams: mpsc::Sender<std::net::TcpStream>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        if let Ok(stream) = stream.into_std()
            && streams.send(stream).await.is_err()
        {
            return;
        }
    }
}

/// Connects accepted streams to `target`, until all senders are dropped.
pub(crate) async fn dial(target: SocketAddr, mut accepted: mpsc::Receiver<std::net::TcpStream>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            stream = accepted.recv(), if connections.len() < MAX_CONNECTIONS => {
                let Some(stream) = stream else { return };
                connections.spawn(carry(stream, target));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn carry(near: std::net::TcpStream, target: SocketAddr) {
    let Ok(mut near) = TcpStream::from_std(near) else {
        return;
    };
    let Ok(Ok(mut far)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(target)).await else {
        return;
    };
    let _ = near.set_nodelay(true);
    let _ = far.set_nodelay(true);
    // Either end may break off; the other sees its connection closed.
    let _ = copy_bidirectional(&mut near, &mut far).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_connection_gets_through_in_both_directions_and_ends_at_both_ends() {
        let [near, far] = [TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0")];
        let (near, far) = (near.await.unwrap(), far.await.unwrap());
        let (tunnel, accepted) = Tunnel::new(near.local_addr().unwrap());
        let accepting = tokio::spawn(accept(near, tunnel.streams));
        let dialling = tokio::spawn(dial(far.local_addr().unwrap(), accepted));
        let mut client = TcpStream::connect(tunnel.near).await.unwrap();
        client.write_all(b"ask").await.unwrap();
        let (mut server, _) = far.accept().await.unwrap();
        let mut text = [0; 3];
        server.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"ask");
        server.write_all(b"yes").await.unwrap();
        client.read_exact(&mut text).await.unwrap();
        assert_eq!(&text, b"yes");
        drop(server);
        assert_eq!(client.read(&mut text).await.unwrap(), 0, "closed");
        // Without its other end, the near one stops accepting.
        dialling.abort();
        let _ = dialling.await;
        let _late = TcpStream::connect(tunnel.near).await.unwrap();
        accepting.await.unwrap();
    }
}
