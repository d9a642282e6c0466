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
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// How long each step of a trial may take; it stays in the kernel or next door.
const TRIAL_TIMEOUT: Duration = Duration::from_millis(200);
/// More processes than ever share a port.
const MAX_GROUP: u32 = 8;
/// An index no group has: the kernel chooses by hash.
const BY_HASH: u32 = u32::MAX;

/// Who gets the connections at the index on trial.
enum Chosen {
    /// This very listener.
    Ours,
    /// Another process, which stays.
    Staying,
    /// Another process, which is closing too: its answers say `Connection: close`.
    Leaving,
    /// Nobody could be reached, so nothing is known.
    Unknown,
}

/// Has new connections go to a process that stays, if there is one. Connections that arrive here
/// meanwhile are returned, to be served.
///
/// # Errors
/// Where the kernel has no such option; new connections then go on as before.
pub(super) async fn away(listener: &TcpListener) -> io::Result<Vec<TcpStream>> {
    let mut arrived = Vec::new();
    let mut ours = 0;
    for index in 0..MAX_GROUP {
        choose(listener, index)?;
        match trial(listener, &mut arrived).await {
            Chosen::Staying => return Ok(arrived),
            Chosen::Leaving => {}
            Chosen::Ours => ours += 1,
            Chosen::Unknown => break,
        }
        // Each index is one socket: seen twice, we are beyond the group.
        if ours == 2 {
            break;
        }
    }
    choose(listener, BY_HASH)?;
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

/// Connects to the listener's own address and sees who gets the connection.
async fn trial(listener: &TcpListener, arrived: &mut Vec<TcpStream>) -> Chosen {
    let Some(stream) = connect(listener).await else {
        return Chosen::Unknown;
    };
    let Ok(ours) = stream.local_addr() else {
        return Chosen::Unknown;
    };
    // A completed handshake stands in its listener's queue already; others may stand before it.
    while let Ok(Ok((other, peer))) = timeout(Duration::from_millis(20), listener.accept()).await {
        if same(peer, ours) {
            return Chosen::Ours;
        }
        arrived.push(other);
    }
    if is_leaving(stream).await {
        Chosen::Leaving
    } else {
        Chosen::Staying
    }
}

/// A connection to the listener's own port, by whichever family this machine has.
async fn connect(listener: &TcpListener) -> Option<TcpStream> {
    let address = listener.local_addr().ok()?;
    let reachable: &[IpAddr] = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
        IpAddr::V6(ip) if ip.is_unspecified() => &[IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)],
        ip => &[ip],
    };
    for ip in reachable {
        if let Ok(Ok(stream)) = timeout(TRIAL_TIMEOUT, TcpStream::connect((*ip, address.port()))).await {
            return Some(stream);
        }
    }
    None
}

/// Whether the process behind `stream` is closing. The path is one that nobody has, so that no counter
/// moves; one that gives no answer in time counts as staying.
async fn is_leaving(mut stream: TcpStream) -> bool {
    let answer = async {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: headgate\r\n\r\n").await?;
        let mut head = vec![0; 1024];
        let length = stream.read(&mut head).await?;
        head.truncate(length);
        Ok::<_, io::Error>(head)
    };
    let Ok(Ok(head)) = timeout(TRIAL_TIMEOUT, answer).await else {
        return false;
    };
    String::from_utf8_lossy(&head)
        .to_ascii_lowercase()
        .contains("\r\nconnection: close\r\n")
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
