//! Ports on 127.0.0.1 for programs that need a port number in a flag.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A port that a bound socket with SO_REUSEPORT holds and that it never listens on. The kernel does not give it to
/// others as a free port or to outgoing connections, and refuses connections to it. A program that sets SO_REUSEPORT
/// itself (`kube-apiserver --permit-port-sharing`) can listen on it, any number of times.
#[derive(Debug)]
pub(super) struct ReservedPort {
    number: u16,
    _socket: Socket,
}

impl ReservedPort {
    pub(super) fn on_loopback() -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_port(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        let address = socket
            .local_addr()?
            .as_socket()
            .ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self {
            number: address.port(),
            _socket: socket,
        })
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }

    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_reserved_port_refuses_connections_until_a_program_listens() {
        let reserved = ReservedPort::on_loopback().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, reserved.number()));
        let is_refused = || {
            let connected = TcpStream::connect_timeout(&address, Duration::from_secs(1));
            connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        assert!(is_refused());
        assert_eq!(TcpListener::bind(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);

        for _ in 0..2 {
            let program = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            program.set_reuse_address(true).unwrap();
            program.set_reuse_port(true).unwrap();
            program.bind(&address.into()).unwrap();
            program.listen(8).unwrap();
            for _ in 0..5 {
                TcpStream::connect(address).unwrap();
            }
            drop(program);
            // A child of another test may have the socket, too, until it starts its program.
            let end = Instant::now() + Duration::from_secs(10);
            while !is_refused() {
                assert!(Instant::now() < end, "it still accepts connections");
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
