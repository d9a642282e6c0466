//! Binding an address, for both IP families on one socket, and shared with the process that replaces this one.
//!
//! For `[::]`, `IPV6_V6ONLY` is switched off explicitly, and `0.0.0.0` is the fallback on a machine without IPv6.
//! SO_REUSEPORT lets another process of the same user bind the same port. Binding is retried every 5 s, as in
//! kube-proxy, unless `hard_fail` is set.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

use super::metrics::Metrics;
use headgate_core::publish_if_changed;

/// Time between two attempts to bind (upstream: kube-proxy's health server).
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Length of the accept queue in connections; the kernel caps it at `net.core.somaxconn`.
const ACCEPT_QUEUE_LENGTH: i32 = 4096;

/// Whether a listener is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindState {
    /// The first attempt is still to come.
    Waiting,
    /// The last attempt failed, with this text of the error.
    Failed(String),
    /// The listener accepts connections at this address.
    Bound(SocketAddr),
    /// The process stops; the listener closes.
    Closing,
}

impl BindState {
    /// The address, while the listener is bound.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Bound(address) => Some(*address),
            Self::Waiting | Self::Failed(_) | Self::Closing => None,
        }
    }
}

/// Binds the address of one listener and publishes the outcome.
#[derive(Debug)]
pub struct Binder {
    /// The listener's name, in logs and metrics.
    pub name: &'static str,
    /// The address; port 0 takes a free one.
    pub address: SocketAddr,
    /// Whether the first failure is final.
    pub hard_fail: bool,
    /// Receives each change of the state.
    pub state: watch::Sender<BindState>,
    /// Writes the log; `None` for the caller. A thread that answers probes may not wait while nobody reads standard error.
    pub log_runtime: Option<Handle>,
}

impl Binder {
    /// Binds the address; retries until it succeeds.
    ///
    /// # Errors
    /// At the first failure, if `hard_fail` is set.
    pub async fn bind(self, metrics: &Metrics) -> io::Result<TcpListener> {
        let metrics = metrics.listener(self.name);
        loop {
            let error = match bind(self.address).and_then(|listener| Ok((listener.local_addr()?, listener))) {
                Ok((address, listener)) => {
                    let listener_name = self.name;
                    log_on(self.log_runtime.as_ref(), move || {
                        tracing::info!(listener = listener_name, %address, "listener bound");
                    });
                    self.state.send_replace(BindState::Bound(address));
                    return Ok(listener);
                }
                Err(error) => error,
            };
            metrics.bind_failures.inc();
            let failed = BindState::Failed(error.to_string());
            let is_new = publish_if_changed(&self.state, failed);
            if self.hard_fail {
                return Err(io::Error::new(
                    error.kind(),
                    format!("{} cannot be bound: {error}", self.address),
                ));
            }
            if is_new {
                let (listener, address) = (self.name, self.address);
                log_on(self.log_runtime.as_ref(), move || {
                    tracing::error!(listener, %address, %error, retry_in = ?RETRY_INTERVAL, "listener not bound");
                });
            }
            sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Writes to the log on this runtime, without waiting, or here without one.
pub fn log_on(runtime: Option<&Handle>, write: impl FnOnce() + Send + 'static) {
    match runtime {
        Some(runtime) => drop(runtime.spawn(async move { write() })),
        None => write(),
    }
}

/// Binds `address` with one attempt, shared with other processes of the same user.
///
/// # Errors
/// As from the system call that failed.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let no_ipv6 = |error: &io::Error| {
        matches!(
            error.raw_os_error(),
            Some(nix::libc::EAFNOSUPPORT | nix::libc::EADDRNOTAVAIL)
        )
    };
    match bind_socket(address, false, true) {
        Err(error) if address.ip() == IpAddr::from(std::net::Ipv6Addr::UNSPECIFIED) && no_ipv6(&error) => {
            bind_socket(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())), false, true)
        }
        other => other,
    }
}

/// As [`bind`], but for the address's own IP family only: `0.0.0.0` and `[::]` may then share a port.
///
/// # Errors
/// As from the system call that failed.
pub fn bind_single_family(address: SocketAddr) -> io::Result<TcpListener> {
    bind_socket(address, true, true)
}

/// Binds `address` for this listener only: fails if the address is in use, even by another headgate process.
///
/// # Errors
/// As from the system call that failed.
pub fn bind_exclusive(address: SocketAddr) -> io::Result<TcpListener> {
    bind_socket(address, false, false)
}

/// Raises the process's soft limit on open files to 16,384 or to the hard limit. The usual default of 1024 is less
/// than the connections that one listener may have. A failure is logged only.
pub fn raise_open_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    const OPEN_FILE_LIMIT: u64 = 16 * 1024;
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft >= OPEN_FILE_LIMIT {
            Ok(())
        } else {
            setrlimit(Resource::RLIMIT_NOFILE, hard.min(OPEN_FILE_LIMIT), hard)
        }
    });
    if let Err(error) = raised {
        tracing::info!(%error, "limit on open files not raised");
    }
}

fn bind_socket(address: SocketAddr, is_single_family: bool, is_shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Connections in TIME_WAIT must not keep a restarted process from its port.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(is_single_family)?;
    }
    socket.bind(&address.into())?;
    socket.listen(ACCEPT_QUEUE_LENGTH)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[tokio::test]
    async fn wildcard_accepts_both_families() {
        let listener = bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
            if ip.is_ipv6() && std::net::TcpListener::bind((ip, 0)).is_err() {
                continue; // This machine has no IPv6: the fallback is in use.
            }
            tokio::net::TcpStream::connect((ip, port)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn single_family_listeners_share_a_port() {
        let v4 = bind_single_family(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, v4.local_addr().unwrap().port()));
        match bind_single_family(address) {
            Ok(v6) => assert_eq!(v6.local_addr().unwrap(), address),
            Err(error) => assert_eq!(error.raw_os_error(), Some(nix::libc::EAFNOSUPPORT)),
        }
    }

    #[tokio::test]
    async fn headgate_listeners_share_a_port_but_not_with_others() {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let first = bind(loopback).unwrap();
        bind(first.local_addr().unwrap()).unwrap();
        let stranger = std::net::TcpListener::bind(loopback).unwrap();
        let error = bind(stranger.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn exclusive_listener_shares_its_port_with_no_other() {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        for first in [bind_exclusive(loopback).unwrap(), bind(loopback).unwrap()] {
            let taken = first.local_addr().unwrap();
            assert_eq!(bind_exclusive(taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        }
        let alone = bind_exclusive(loopback).unwrap().local_addr().unwrap();
        bind_exclusive(alone).unwrap();
    }

    fn binder(address: SocketAddr, hard_fail: bool) -> (Binder, watch::Receiver<BindState>) {
        let (state, states) = watch::channel(BindState::Waiting);
        let binder = Binder {
            name: "test",
            address,
            hard_fail,
            state,
            log_runtime: None,
        };
        (binder, states)
    }

    #[tokio::test(start_paused = true)]
    async fn taken_port_is_retried_until_it_is_free() {
        let stranger = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = stranger.local_addr().unwrap();
        let metrics = Metrics::default();
        let (binder, mut states) = binder(address, false);
        let bound = async { binder.bind(&metrics).await.unwrap() };
        let watcher = async {
            let failed = states.wait_for(|state| matches!(state, BindState::Failed(_)));
            drop(failed.await.unwrap());
            sleep(Duration::from_secs(12)).await;
            drop(stranger);
        };
        let (listener, ()) = tokio::join!(bound, watcher);
        assert_eq!(listener.local_addr().unwrap(), address);
        assert_eq!(states.borrow().address(), Some(address));
        assert_eq!(metrics.listener("test").bind_failures.get(), 3);
    }

    #[tokio::test]
    async fn hard_failure_names_the_address() {
        let stranger = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = stranger.local_addr().unwrap();
        let (binder, _states) = binder(address, true);
        let error = binder.bind(&Metrics::default()).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{address} cannot be bound")), "{error}");
    }
}
