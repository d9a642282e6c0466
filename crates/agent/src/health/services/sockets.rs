//! The machine's addresses and sockets, as the node ports use them; a test replaces them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use headgate_http::server::{self, Listener};
use nix::ifaddrs::getifaddrs;
use tokio::net::TcpListener;

/// Opens node ports and lists addresses.
pub trait Sockets: Send + Sync {
    /// The type of a bound socket.
    type Listener: Listener + 'static;

    /// Binds `address` for its own IP family only.
    ///
    /// # Errors
    /// As from the system call that failed.
    fn bind(&self, address: SocketAddr) -> io::Result<Self::Listener>;

    /// The addresses of the machine's interfaces.
    ///
    /// # Errors
    /// As from the system call that failed.
    fn local_addresses(&self) -> io::Result<Vec<IpAddr>>;
}

/// The sockets and interfaces of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemSockets;

impl Sockets for SystemSockets {
    type Listener = TcpListener;

    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        server::bind_single_family(address)
    }

    fn local_addresses(&self) -> io::Result<Vec<IpAddr>> {
        let ip = |interface: nix::ifaddrs::InterfaceAddress| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
        };
        Ok(getifaddrs()?.filter_map(ip).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_a_local_address() {
        let addresses = SystemSockets.local_addresses().unwrap();
        assert!(addresses.contains(&IpAddr::from([127, 0, 0, 1])), "{addresses:?}");
    }
}
