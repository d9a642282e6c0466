//! The machine's side of the node ports: its addresses, and binding them.

use std::io;
use std::net::{IpAddr, SocketAddr};

use headgate_http::server::{self, Incoming};
use nix::ifaddrs::getifaddrs;
use tokio::net::TcpListener;

/// Where node ports are opened.
pub trait Sockets: Send + Sync {
    /// An open port.
    type Incoming: Incoming + 'static;

    /// Opens an address, for its own IP family alone.
    ///
    /// # Errors
    /// The system's reason.
    fn bind(&self, address: SocketAddr) -> io::Result<Self::Incoming>;

    /// The machine's own addresses.
    ///
    /// # Errors
    /// The system's reason.
    fn local_addresses(&self) -> io::Result<Vec<IpAddr>>;
}

/// This machine's.
#[derive(Clone, Copy, Debug)]
pub struct SystemSockets;

impl Sockets for SystemSockets {
    type Incoming = TcpListener;

    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        server::bind_one_family(address)
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
    fn loopback_is_one_of_them() {
        let addresses = SystemSockets.local_addresses().unwrap();
        assert!(addresses.contains(&IpAddr::from([127, 0, 0, 1])), "{addresses:?}");
    }
}
