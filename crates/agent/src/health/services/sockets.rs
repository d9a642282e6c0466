//! The machine's sockets, as the node ports use them; a test replaces them.

use std::io;
use std::net::SocketAddr;

use headgate_http::server::{self, Listener};
use tokio::net::TcpListener;

/// Opens node ports.
pub trait Sockets: Send + Sync {
    /// The type of a bound socket.
    type Listener: Listener + 'static;

    /// Binds `address` for its own IP family only.
    ///
    /// # Errors
    /// As from the system call that failed.
    fn bind(&self, address: SocketAddr) -> io::Result<Self::Listener>;
}

/// The sockets of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemSockets;

impl Sockets for SystemSockets {
    type Listener = TcpListener;

    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        server::bind_single_family(address)
    }
}
