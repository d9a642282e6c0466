//! Steering new connections to another process on the same port before this one stops listening.
//!
//! Closing one of several SO_REUSEPORT sockets resets what waits in its queue, and the kernel goes on
//! choosing it until it is closed. A classic BPF program on the group chooses the socket instead
//! (`SO_ATTACH_REUSEPORT_CBPF`; needs no privilege). It must name another socket's index, and the kernel
//! tells nobody theirs: sockets are numbered in the order of binding, but the last takes the place of
//! one that leaves. So it is found by trial: the program names an index, a connection to ourselves
//! shows whether that is us. An index beyond the group makes the kernel choose by hash, as before.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::socket::{setsockopt, sockopt::AttachReusePortCbpf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// How long a connection to ourselves may take; it stays in the kernel.
const TRIAL_TIMEOUT: Duration = Duration::from_millis(200);

/// Names another socket of the group than `listener`, if there is one. Connections that arrive here
/// meanwhile are returned, to be served.
///
/// # Errors
/// Where the kernel has no such option; new connections then go on as before.
pub(super) async fn away(listener: &TcpListener) -> io::Result<Vec<TcpStream>> {
    let mut arrived = Vec::new();
    // With one process leaving and one staying the indexes are 0 and 1.
    choose(listener, 0)?;
    let ours = trial(listener, &mut arrived).await;
    choose(listener, u32::from(ours))?;
    Ok(arrived)
}

/// Has the kernel choose the socket at `index` for each new connection.
fn choose(listener: &TcpListener, index: u32) -> io::Result<()> {
    let code = u16::try_from(libc::BPF_RET | libc::BPF_K).map_err(io::Error::other)?;
    let mut program = [sock_filter {
        code,
        jt: 0,
        jf: 0,
        k: index,
    }];
    let program = sock_fprog {
        len: 1,
        filter: program.as_mut_ptr(),
    };
    setsockopt(listener, AttachReusePortCbpf, &program).map_err(io::Error::from)
}

/// Connects to the listener's own address; whether it was we who got the connection.
async fn trial(listener: &TcpListener, arrived: &mut Vec<TcpStream>) -> bool {
    let Ok(address) = listener.local_addr() else {
        return false;
    };
    let reachable = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let Ok(Ok(stream)) = timeout(TRIAL_TIMEOUT, TcpStream::connect((reachable, address.port()))).await else {
        return false;
    };
    let Ok(ours) = stream.local_addr() else { return false };
    // A completed handshake stands in its listener's queue already; others may stand before it.
    while let Ok(Ok((other, peer))) = timeout(TRIAL_TIMEOUT, listener.accept()).await {
        if same(peer, ours) {
            return true;
        }
        arrived.push(other);
    }
    false
}

/// Whether two addresses are the same, seen through a dual-stack socket or not.
fn same(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use super::super::bind;
    use super::*;

    /// How many of `count` new connections come to each listener.
    async fn spread(address: SocketAddr, listeners: &[&TcpListener], count: usize) -> Vec<usize> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let mut counts = Vec::new();
        for listener in listeners {
            let mut here = 0;
            while timeout(Duration::from_millis(20), listener.accept()).await.is_ok() {
                here += 1;
            }
            counts.push(here);
        }
        counts
    }

    #[tokio::test]
    async fn the_one_that_leaves_gets_no_more_whichever_came_first() {
        for leaver_first in [true, false] {
            let a = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let address = a.local_addr().unwrap();
            let b = bind(address).unwrap();
            let (leaver, stayer) = if leaver_first { (a, b) } else { (b, a) };
            assert!(away(&leaver).await.unwrap().is_empty());
            // A trial that was chosen to arrive at the other is there as an extra connection.
            spread(address, &[&stayer], 0).await;
            assert_eq!(
                spread(address, &[&leaver, &stayer], 50).await,
                [0, 50],
                "leaver first: {leaver_first}"
            );
            drop(leaver);
            assert_eq!(spread(address, &[&stayer], 20).await, [20]);
            let third = bind(address).unwrap();
            assert_eq!(spread(address, &[&stayer, &third], 20).await.iter().sum::<usize>(), 20);
            assert!(away(&stayer).await.is_ok());
            spread(address, &[&third], 0).await;
            assert_eq!(spread(address, &[&stayer, &third], 50).await, [0, 50]);
        }
    }

    #[tokio::test]
    async fn alone_it_goes_on_as_before() {
        let alone = bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
        assert!(away(&alone).await.unwrap().is_empty());
        let port = alone.local_addr().unwrap().port();
        assert_eq!(
            spread(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), &[&alone], 20).await,
            [20]
        );
    }
}
