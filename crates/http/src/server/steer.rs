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

/// How long a connection to ourselves may take; it stays in the kernel.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// How long our own connection is looked for in our queue. It stood there before the search began, behind
/// no more than came before it; what comes later must not prolong the search.
const SEARCH_TIMEOUT: Duration = Duration::from_millis(60);
/// How long a process next door may take to show that it stays.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
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
    let search = async {
        while let Ok((other, peer)) = listener.accept().await {
            if same(peer, ours) {
                return true;
            }
            arrived.push(other);
        }
        false
    };
    if timeout(SEARCH_TIMEOUT, search).await == Ok(true) {
        return Chosen::Ours;
    }
    if stays(stream).await {
        Chosen::Staying
    } else {
        Chosen::Leaving
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
        if let Ok(Ok(stream)) = timeout(CONNECT_TIMEOUT, TcpStream::connect((*ip, address.port()))).await {
            return Some(stream);
        }
    }
    None
}

/// Whether the process behind `stream` stays: it answers, and does not announce that it closes. The path is
/// one that nobody has, so that no counter moves.
async fn stays(mut stream: TcpStream) -> bool {
    let answer = async {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: headgate\r\n\r\n").await?;
        let mut head = vec![0; 1024];
        let length = stream.read(&mut head).await?;
        head.truncate(length);
        Ok::<_, io::Error>(head)
    };
    let Ok(Ok(head)) = timeout(ANSWER_TIMEOUT, answer).await else {
        return false;
    };
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    head.starts_with("http/") && !head.contains("\r\nconnection: close\r\n")
}

/// Whether two addresses are the same, seen through a dual-stack socket or not.
fn same(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::JoinHandle;

    use super::super::bind;
    use super::*;

    /// A process that answers every connection with `head`; how many there were.
    fn process(listener: TcpListener, head: &'static str) -> (JoinHandle<()>, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                // Whoever hangs up first does not matter here.
                let _ = stream.write_all(head.as_bytes()).await;
            }
        });
        (task, count)
    }

    const STAYS: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    const LEAVES: &str = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

    /// Makes `count` connections; how many of them come to `listener`.
    async fn arriving(listener: &TcpListener, count: usize) -> usize {
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        let mut here = 0;
        while timeout(Duration::from_millis(50), listener.accept()).await.is_ok() {
            here += 1;
        }
        here
    }

    #[tokio::test]
    async fn the_one_that_leaves_gets_no_more_whichever_came_first() {
        for leaver_first in [true, false] {
            let a = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let address = a.local_addr().unwrap();
            let b = bind(address).unwrap();
            let (leaver, stayer) = if leaver_first { (a, b) } else { (b, a) };
            let (task, count) = process(stayer, STAYS);
            assert!(away(&leaver).await.unwrap().is_empty());
            let before = count.load(Ordering::Relaxed);
            assert_eq!(arriving(&leaver, 50).await, 0, "leaver first: {leaver_first}");
            assert_eq!(count.load(Ordering::Relaxed) - before, 50);
            // The program stays on the port when the leaver is gone and another process comes.
            drop(leaver);
            let next = bind(address).unwrap();
            let before = count.load(Ordering::Relaxed);
            let here = arriving(&next, 20).await;
            assert_eq!(count.load(Ordering::Relaxed) - before + here, 20);
            task.abort();
        }
    }

    #[tokio::test]
    async fn another_that_leaves_is_passed_over() {
        for positions in [[0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 1, 0], [0, 2, 1], [2, 0, 1]] {
            let first = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let address = first.local_addr().unwrap();
            let mut listeners = [Some(first), Some(bind(address).unwrap()), Some(bind(address).unwrap())];
            let leaver = listeners[positions[0]].take().unwrap();
            let (also_leaving, others) = process(listeners[positions[1]].take().unwrap(), LEAVES);
            let (staying, count) = process(listeners[positions[2]].take().unwrap(), STAYS);
            away(&leaver).await.unwrap();
            let (before, others_before) = (count.load(Ordering::Relaxed), others.load(Ordering::Relaxed));
            assert_eq!(arriving(&leaver, 30).await, 0, "{positions:?}");
            assert_eq!(count.load(Ordering::Relaxed) - before, 30, "{positions:?}");
            assert_eq!(others.load(Ordering::Relaxed), others_before, "{positions:?}");
            also_leaving.abort();
            staying.abort();
        }
    }

    #[tokio::test]
    async fn alone_it_goes_on_as_before() {
        let alone = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        assert!(away(&alone).await.unwrap().is_empty());
        assert_eq!(arriving(&alone, 20).await, 20);
    }
}
