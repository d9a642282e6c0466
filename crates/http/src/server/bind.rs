//! Binding an address: both IP families on one socket, shared with the process that comes next.
//!
//! `[::]` needs `IPV6_V6ONLY` off said explicitly, and falls back to `0.0.0.0` where the machine has no
//! IPv6. SO_REUSEPORT lets the next process of the same user bind beside this one. A failure is tried
//! again every 5 s, as kube-proxy does, unless asked to fail hard.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

use super::metrics::Metrics;

/// Time from one failed attempt to the next (upstream: kube-proxy's health server).
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Connections the kernel may hold until they are accepted; capped by `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Whether a listener is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindState {
    /// Not tried yet.
    Waiting,
    /// The last attempt failed for this reason.
    Failed(String),
    /// Bound to this address.
    Bound(SocketAddr),
    /// Told to close.
    Closing,
}

impl BindState {
    /// The bound address.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Bound(address) => Some(*address),
            Self::Waiting | Self::Failed(_) | Self::Closing => None,
        }
    }
}

/// An address to bind, and who wants to know.
#[derive(Debug)]
pub struct Binder {
    /// The listener's name, in logs and metrics.
    pub name: &'static str,
    /// The address; port 0 takes a free one.
    pub address: SocketAddr,
    /// Give up at the first failure.
    pub hard_fail: bool,
    /// Where the state is published.
    pub state: watch::Sender<BindState>,
}

impl Binder {
    /// Binds, trying again for as long as it takes.
    ///
    /// # Errors
    /// At the first failure when asked to fail hard.
    pub async fn bind(self, metrics: &Metrics) -> io::Result<TcpListener> {
        let metrics = metrics.listener(self.name);
        loop {
            let error = match bind(self.address).and_then(|listener| Ok((listener.local_addr()?, listener))) {
                Ok((address, listener)) => {
                    tracing::info!(listener = self.name, %address, "listening");
                    self.state.send_replace(BindState::Bound(address));
                    return Ok(listener);
                }
                Err(error) => error,
            };
            metrics.bind_failures.inc();
            let failed = BindState::Failed(error.to_string());
            let news = self.state.send_if_modified(|state| {
                let news = *state != failed;
                *state = failed;
                news
            });
            if self.hard_fail {
                return Err(io::Error::new(
                    error.kind(),
                    format!("{} cannot be bound: {error}", self.address),
                ));
            }
            if news {
                tracing::error!(listener = self.name, address = %self.address, %error,
                    "the address cannot be bound; trying again every {} s", RETRY_INTERVAL.as_secs());
            }
            sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Binds `address` once.
///
/// # Errors
/// The system's reason.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let no_ipv6 = |error: &io::Error| {
        matches!(
            error.raw_os_error(),
            Some(nix::libc::EAFNOSUPPORT | nix::libc::EADDRNOTAVAIL)
        )
    };
    match bind_exactly(address, false) {
        Err(error) if address.ip() == IpAddr::from(std::net::Ipv6Addr::UNSPECIFIED) && no_ipv6(&error) => {
            bind_exactly(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())), false)
        }
        other => other,
    }
}

/// Binds `address` once, for its own IP family alone: `0.0.0.0` and `[::]` may then share a port.
///
/// # Errors
/// The system's reason.
pub fn bind_one_family(address: SocketAddr) -> io::Result<TcpListener> {
    bind_exactly(address, true)
}

/// Binds `address` once, and for this listener alone: an address that is in use, even by another of ours, is refused.
///
/// # Errors
/// The system's reason.
pub fn bind_alone(address: SocketAddr) -> io::Result<TcpListener> {
    bind_socket(address, false, false)
}

/// Lifts the process's limit on open files as far as it may be, within reason: a default of 1024 is
/// less than the connections a listener may hold.
pub fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const ENOUGH: u64 = 16 * 1024;
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft >= ENOUGH {
            Ok(())
        } else {
            setrlimit(Resource::RLIMIT_NOFILE, hard.min(ENOUGH), hard)
        }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit on open files cannot be raised");
    }
}

fn bind_exactly(address: SocketAddr, one_family: bool) -> io::Result<TcpListener> {
    bind_socket(address, one_family, true)
}

fn bind_socket(address: SocketAddr, one_family: bool, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // A port in TIME_WAIT is no reason not to come back.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(one_family)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[tokio::test]
    async fn the_wildcard_answers_on_both_families() {
        let listener = bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
            if ip.is_ipv6() && listener.local_addr().unwrap().is_ipv4() {
                continue; // This machine has no IPv6; the fall-back was taken.
            }
            tokio::net::TcpStream::connect((ip, port)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn two_families_share_a_port() {
        let v4 = bind_one_family(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, v4.local_addr().unwrap().port()));
        match bind_one_family(address) {
            Ok(v6) => assert_eq!(v6.local_addr().unwrap(), address),
            Err(error) => assert_eq!(error.raw_os_error(), Some(nix::libc::EAFNOSUPPORT)),
        }
    }

    #[tokio::test]
    async fn two_of_ours_share_a_port_and_a_strangers_is_refused() {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let first = bind(loopback).unwrap();
        bind(first.local_addr().unwrap()).unwrap();
        let stranger = std::net::TcpListener::bind(loopback).unwrap();
        assert_eq!(
            bind(stranger.local_addr().unwrap()).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
    }

    #[tokio::test]
    async fn who_binds_alone_shares_with_nobody() {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        for first in [bind_alone(loopback).unwrap(), bind(loopback).unwrap()] {
            let taken = first.local_addr().unwrap();
            assert_eq!(bind_alone(taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        }
        let alone = bind_alone(loopback).unwrap().local_addr().unwrap();
        bind_alone(alone).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_taken_port_is_tried_again_until_it_is_free() {
        let stranger = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = stranger.local_addr().unwrap();
        let metrics = Metrics::default();
        let (state, mut states) = watch::channel(BindState::Waiting);
        let binder = Binder {
            name: "test",
            address,
            hard_fail: false,
            state,
        };
        let bound = async { binder.bind(&metrics).await.unwrap() };
        let watcher = async {
            states
                .wait_for(|state| matches!(state, BindState::Failed(_)))
                .await
                .unwrap();
            sleep(Duration::from_secs(12)).await;
            drop(stranger);
        };
        let (listener, ()) = tokio::join!(bound, watcher);
        assert_eq!(listener.local_addr().unwrap(), address);
        assert_eq!(states.borrow().address(), Some(address));
        assert_eq!(metrics.listener("test").bind_failures.get(), 3);
    }

    #[tokio::test]
    async fn a_hard_failure_names_the_address() {
        let stranger = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = stranger.local_addr().unwrap();
        let (state, _states) = watch::channel(BindState::Waiting);
        let binder = Binder {
            name: "test",
            address,
            hard_fail: true,
            state,
        };
        let error = binder.bind(&Metrics::default()).await.unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("{address} cannot be bound")),
            "{error}"
        );
    }
}
