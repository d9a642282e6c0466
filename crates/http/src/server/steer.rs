//! Steering: directs new connections to another process on the same port before this process stops listening.
//!
//! Closing one of several SO_REUSEPORT sockets resets the connections in its accept queue, and the kernel chooses the
//! socket until it is closed. A classic BPF program on the group of sockets chooses instead
//! (`SO_ATTACH_REUSEPORT_CBPF`; it needs no privilege). The program must return the index of another socket, and the
//! kernel does not reveal indexes: sockets are numbered in the order of binding, but the last one takes the place of
//! one that leaves. So the index is found by trial: the program returns one index, and a connection to the own
//! address shows whether that socket is this process's. With an index beyond the group the kernel chooses by hash, as
//! without a program.

use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::http::HeaderName;
use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::socket::{setsockopt, sockopt::AttachReusePortCbpf};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::proxy_protocol::ProxyProtocol;

/// Time for a connection to the own address, which does not leave the kernel.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for the own connection to arrive here, or for the other process to answer it.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between two questions whether another process still answers.
const QUESTION_INTERVAL: Duration = Duration::from_millis(500);
/// Answers in a row that are late, after which the other process counts as ended.
const MAX_LATE_ANSWERS: u32 = 3;
/// Indexes to try; more processes never share a port.
const MAX_GROUP_SIZE: u32 = 8;
/// An index beyond every group, with which the kernel chooses by hash.
const INDEX_BY_HASH: u32 = u32::MAX;
/// The field of the question whether a process stays. Every listener answers it without its router, so that it counts as no probe.
pub(super) const STEERING_HEADER: HeaderName = HeaderName::from_static("x-headgate-steering");
/// A header of the PROXY protocol without addresses.
const UNKNOWN_PEER: &[u8] = b"PROXY UNKNOWN\r\n";
/// The question.
const QUESTION: &[u8] = b"GET / HTTP/1.1\r\nHost: headgate\r\nX-Headgate-Steering: 1\r\n\r\n";

/// Which process has the socket at an index.
enum SocketOwner {
    /// This process: the connection arrived in its own queue.
    ThisProcess,
    /// Another process that keeps serving.
    Staying,
    /// Another process that closes too: its answers carry `Connection: close`.
    Closing,
    /// The connection failed, so the owner is unknown.
    Unknown,
}

/// Directs new connections to a process that keeps serving, if there is one. Connections that arrive here in the
/// meantime go to `serve` at once: another process that closes may ask this one whether it stays.
///
/// # Errors
/// If the kernel does not have the option; the kernel then chooses as before.
pub(super) async fn steer_away(
    listener: &TcpListener,
    proxy_protocol: ProxyProtocol,
    mut serve: impl FnMut(TcpStream),
) -> io::Result<()> {
    let mut own_indexes = 0;
    for index in 0..MAX_GROUP_SIZE {
        attach_program(listener, index)?;
        match find_owner(listener, proxy_protocol, &mut serve).await {
            SocketOwner::Staying => return Ok(()),
            SocketOwner::Closing => {}
            SocketOwner::ThisProcess => own_indexes += 1,
            SocketOwner::Unknown => break,
        }
        // This process has one socket in the group: at the second match the index is beyond the group.
        if own_indexes == 2 {
            break;
        }
    }
    attach_program(listener, INDEX_BY_HASH)
}

/// Waits until no process answers at `address`, or the one that does closes. A process asks this before it binds the address itself.
pub async fn other_process_ended(address: SocketAddr, proxy_protocol: ProxyProtocol) {
    let is_served = async || match connect(address).await {
        Some(stream) => is_staying(stream, proxy_protocol).await,
        None => false,
    };
    // On a busy machine one answer may be late.
    let mut late_answers = 0;
    while late_answers < MAX_LATE_ANSWERS {
        match timeout(ANSWER_TIMEOUT, is_served()).await {
            Ok(true) => late_answers = 0,
            Ok(false) => return,
            Err(_) => late_answers += 1,
        }
        sleep(QUESTION_INTERVAL).await;
    }
}

/// Makes the kernel choose the socket at `index` for each new connection.
fn attach_program(listener: &TcpListener, index: u32) -> io::Result<()> {
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

/// Connects to the listener's own address and finds out which process gets the connection.
async fn find_owner(
    listener: &TcpListener,
    proxy_protocol: ProxyProtocol,
    serve: &mut impl FnMut(TcpStream),
) -> SocketOwner {
    let Ok(address) = listener.local_addr() else {
        return SocketOwner::Unknown;
    };
    let Some(stream) = connect(address).await else {
        return SocketOwner::Unknown;
    };
    let Ok(own_address) = stream.local_addr() else {
        return SocketOwner::Unknown;
    };
    let arrives_here = async {
        while let Ok((other, peer)) = listener.accept().await {
            if is_same_address(peer, own_address) {
                return;
            }
            serve(other);
        }
        // An own connection that cannot be accepted is for the timeout.
        pending::<()>().await;
    };
    let owner = async {
        tokio::select! {
            // In this order: a connection to this process is in its queue before another process could answer.
            biased;
            () = arrives_here => SocketOwner::ThisProcess,
            stays = is_staying(stream, proxy_protocol) => if stays { SocketOwner::Staying } else { SocketOwner::Closing },
        }
    };
    timeout(ANSWER_TIMEOUT, owner).await.unwrap_or(SocketOwner::Closing)
}

/// A connection to this port of the own machine, in an IP family that it has.
async fn connect(address: SocketAddr) -> Option<TcpStream> {
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

/// Whether the process at the other end keeps serving: it answers, and without `Connection: close`.
async fn is_staying(mut stream: TcpStream, proxy_protocol: ProxyProtocol) -> bool {
    // With the same setting, it closes a connection without a header.
    let header = match proxy_protocol {
        ProxyProtocol::Required => UNKNOWN_PEER,
        ProxyProtocol::Disabled | ProxyProtocol::Optional => &[],
    };
    let mut head = [0; 1024];
    let answer = async {
        stream.write_all(&[header, QUESTION].concat()).await?;
        stream.read(&mut head).await
    };
    let length = answer.await.unwrap_or_default();
    let head = String::from_utf8_lossy(&head[..length]).to_ascii_lowercase();
    head.starts_with("http/") && !head.contains("\r\nconnection: close\r\n")
}

/// Whether two addresses are the same; a dual-stack socket shows IPv4 addresses in their IPv6 form.
fn is_same_address(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use axum::Router;
    use tokio::task::JoinHandle;
    use tokio_util::sync::CancellationToken;

    use super::super::{Limits, Metrics, bind, serve};
    use super::*;

    /// A process that answers every connection with `head`, and the number of connections so far.
    fn process(listener: TcpListener, head: &'static str) -> (JoinHandle<()>, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                // The peer may have closed already.
                let _ = stream.write_all(head.as_bytes()).await;
            }
        });
        (task, count)
    }

    const STAYS: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    const LEAVES: &str = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

    /// Makes `count` connections and returns how many of them arrive at `listener`.
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
    async fn closing_process_gets_no_connections_whatever_the_order() {
        for leaver_first in [true, false] {
            let a = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let address = a.local_addr().unwrap();
            let b = bind(address).unwrap();
            let (leaver, stayer) = if leaver_first { (a, b) } else { (b, a) };
            let (task, count) = process(stayer, STAYS);
            steer_away(&leaver, ProxyProtocol::Disabled, |stream| panic!("arrived: {stream:?}"))
                .await
                .unwrap();
            let before = count.load(Ordering::Relaxed);
            assert_eq!(arriving(&leaver, 50).await, 0, "leaver first: {leaver_first}");
            assert_eq!(count.load(Ordering::Relaxed) - before, 50);
            // The program stays attached to the port when the leaver is gone and another process binds it.
            drop(leaver);
            let next = bind(address).unwrap();
            let before = count.load(Ordering::Relaxed);
            let here = arriving(&next, 20).await;
            assert_eq!(count.load(Ordering::Relaxed) - before + here, 20);
            task.abort();
        }
    }

    /// A process that serves the port with this setting while another one closes: how many of 50 connections arrive at the one that closes,
    /// and how many requests reach the router of the one that stays.
    async fn steered_from(proxy_protocol: ProxyProtocol) -> (usize, usize) {
        let leaver = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let stayer = bind(leaver.local_addr().unwrap()).unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&requests);
        let router = Router::new().fallback(move || async move {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let limits = Limits {
            proxy_protocol,
            ..Limits::HEALTH
        };
        let serving = tokio::spawn(async move {
            let metrics = Metrics::default();
            serve("test", stayer, router, limits, &metrics, CancellationToken::new()).await
        });
        steer_away(&leaver, proxy_protocol, drop).await.unwrap();
        let here = arriving(&leaver, 50).await;
        serving.abort();
        (here, requests.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn connections_go_to_a_process_that_stays_and_its_router_is_not_asked() {
        let mut found = Vec::new();
        for setting in ProxyProtocol::ALL {
            found.push((setting, steered_from(setting).await));
        }
        assert_eq!(found, ProxyProtocol::ALL.map(|setting| (setting, (0, 0))));
    }

    #[tokio::test]
    async fn other_closing_process_is_passed_over() {
        for positions in [[0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 1, 0], [0, 2, 1], [2, 0, 1]] {
            let first = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let address = first.local_addr().unwrap();
            let mut listeners = [Some(first), Some(bind(address).unwrap()), Some(bind(address).unwrap())];
            let leaver = listeners[positions[0]].take().unwrap();
            let (also_leaving, others) = process(listeners[positions[1]].take().unwrap(), LEAVES);
            let (staying, count) = process(listeners[positions[2]].take().unwrap(), STAYS);
            steer_away(&leaver, ProxyProtocol::Disabled, drop).await.unwrap();
            let (before, others_before) = (count.load(Ordering::Relaxed), others.load(Ordering::Relaxed));
            assert_eq!(arriving(&leaver, 30).await, 0, "{positions:?}");
            assert_eq!(count.load(Ordering::Relaxed) - before, 30, "{positions:?}");
            assert_eq!(others.load(Ordering::Relaxed), others_before, "{positions:?}");
            also_leaving.abort();
            staying.abort();
        }
    }

    #[tokio::test]
    async fn processes_that_close_at_once_do_not_wait_for_each_other() {
        let answer = |stream: TcpStream| {
            // The peer may have closed already.
            let _ = stream.try_write(LEAVES.as_bytes());
        };
        let mut shortest = Duration::MAX;
        // More than once: a busy machine takes longer now and then.
        for _ in 0..5 {
            let stayer = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
            let address = stayer.local_addr().unwrap();
            let leavers = [bind(address).unwrap(), bind(address).unwrap()];
            let (task, _) = process(stayer, STAYS);
            let begun = Instant::now();
            let [first, second] = leavers
                .each_ref()
                .map(|leaver| steer_away(leaver, ProxyProtocol::Disabled, answer));
            tokio::try_join!(first, second).unwrap();
            shortest = shortest.min(begun.elapsed());
            task.abort();
        }
        assert!(shortest < ANSWER_TIMEOUT, "{shortest:?}");
    }

    #[tokio::test]
    async fn a_process_that_answers_at_the_address_is_waited_for_until_it_closes() {
        for proxy_protocol in ProxyProtocol::ALL {
            let listener = bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
            let address = listener.local_addr().unwrap();
            let limits = Limits {
                proxy_protocol,
                ..Limits::HEALTH
            };
            let stop = CancellationToken::new();
            let stopped = stop.clone();
            let serving = tokio::spawn(async move {
                serve("test", listener, Router::new(), limits, &Metrics::default(), stopped).await
            });
            let mut ended = std::pin::pin!(other_process_ended(address, proxy_protocol));
            let waited = timeout(2 * QUESTION_INTERVAL, &mut ended).await;
            assert!(waited.is_err(), "{proxy_protocol:?}");
            stop.cancel();
            timeout(Duration::from_secs(5), ended).await.unwrap();
            serving.abort();
        }
    }

    #[tokio::test]
    async fn one_late_answer_is_not_the_end_of_the_other_process() {
        let listener = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, mut questions) = tokio::sync::watch::channel(0_usize);
        let serving = tokio::spawn(async move {
            let mut late = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                asked.send_modify(|asked| *asked += 1);
                // The first answer never comes.
                if *asked.borrow() == 1 {
                    late.push(stream);
                } else {
                    let _ = stream.write_all(STAYS.as_bytes()).await;
                }
            }
        });
        let ended = other_process_ended(address, ProxyProtocol::Disabled);
        tokio::select! {
            () = ended => panic!("it answers"),
            _ = questions.wait_for(|asked| *asked == 4) => {}
        }
        serving.abort();
    }

    #[tokio::test]
    async fn single_process_keeps_its_connections() {
        let alone = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        steer_away(&alone, ProxyProtocol::Disabled, |stream| panic!("arrived: {stream:?}"))
            .await
            .unwrap();
        assert_eq!(arriving(&alone, 20).await, 20);
    }
}
