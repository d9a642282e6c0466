//! The listener loop: accept, serve, sweep, close.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::connection::{self, ClosePhase};
use super::connection_limit::ConnectionLimit;
use super::connections::{Connections, Limits};
use super::metrics::Metrics;
use super::proxy_protocol::{ExpectedPrefix, ProxyProtocol};
use super::steer;

/// Time between two checks of the time limits of connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after a failed accept, so that the loop does not spin while file descriptors are short.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(10);
/// After new connections were steered away, the accept queue counts as empty when nothing arrived for this time.
const QUEUE_EMPTY_TIMEOUT: Duration = Duration::from_millis(250);
/// Time after which connections that still arrive are steered away once more.
const STEER_INTERVAL: Duration = Duration::from_millis(100);
/// Limit for emptying the accept queue where new connections could not be steered away.
const QUEUE_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for answers in progress after idle connections have been closed.
const FINAL_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a listener ended before it was stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Serving a connection panicked. This is a defect, so the process ends.
    #[error("serving a connection of listener {listener} panicked: {source}")]
    Panicked {
        /// The listener's name in logs and metrics.
        listener: &'static str,
        /// The error of the task, with the panic's message.
        #[source]
        source: tokio::task::JoinError,
    },
}

/// A bound socket, or a replacement for one in a test.
pub trait Listener: Send {
    /// The type of an accepted connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Accepts the next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    /// Directs new connections to another process on the same port, if there is one; it expects the same of a
    /// connection's beginning. Connections that arrive here in the meantime go to `serve`.
    fn steer_away(
        &self,
        proxy_protocol: ProxyProtocol,
        serve: impl FnMut(Self::Stream) + Send,
    ) -> impl Future<Output = ()> + Send;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // An answer is one small write, which Nagle's algorithm would only delay. If the peer is gone already, the
        // first read or write fails.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    async fn steer_away(&self, proxy_protocol: ProxyProtocol, serve: impl FnMut(TcpStream) + Send) {
        if let Err(error) = steer::steer_away(self, proxy_protocol, serve).await {
            tracing::debug!(%error, "new connections not steered to another process");
        }
    }
}

/// The probe socket. No other process shares it, so there is no other socket to steer to.
impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(Self::accept(self).await?.0)
    }

    async fn steer_away(&self, _: ProxyProtocol, _: impl FnMut(UnixStream) + Send) {}
}

/// Serves `router` on `listener` until `stop` is cancelled, then closes: new connections are steered away, those in
/// the accept queue are accepted and answered, open connections get a last answer within the limit's linger timeout,
/// and the rest is aborted.
///
/// # Errors
/// When serving a connection panicked.
pub async fn serve<L: Listener>(
    name: &'static str,
    listener: L,
    router: Router,
    limits: Limits,
    metrics: &Metrics,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let own_limit = ConnectionLimit::new(limits.max_connections);
    serve_with_limit(&own_limit, name, listener, router, limits, metrics, stop).await
}

/// As [`serve`], for one of several listeners that share a connection limit.
///
/// # Errors
/// When serving a connection panicked.
pub async fn serve_with_limit<L: Listener>(
    shared_limit: &ConnectionLimit,
    name: &'static str,
    listener: L,
    router: Router,
    limits: Limits,
    metrics: &Metrics,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let expected = ExpectedPrefix::new(limits.proxy_protocol, || metrics.proxy_headers(name));
    let metrics = metrics.listener(name);
    metrics.bound.set(1);
    let panicked = |source| ServeError::Panicked { listener: name, source };
    let mut connections = Connections::new(limits, shared_limit.clone(), metrics.clone());
    let (close_phase, close_phases) = watch::channel(ClosePhase::Open);
    let pipelined_turns = Arc::new(Semaphore::new(1));
    let add = |connections: &mut Connections, stream| {
        let (expected, router) = (expected.clone(), router.clone());
        let (turns, phases) = (Arc::clone(&pipelined_turns), close_phases.clone());
        connections.add(|activity| connection::serve_connection(stream, expected, router, activity, turns, phases));
    };
    let mut sweeps = interval(SWEEP_INTERVAL);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // In this order, so that many new connections delay neither closing nor the sweep.
            biased;
            () = stop.cancelled() => break,
            // There may be thousands of listeners: one without connections must not wake up.
            _ = sweeps.tick(), if !connections.is_empty() => connections.sweep(),
            ended = connections.join_next() => ended.map_err(panicked)?,
            accepted = listener.accept() => match accepted {
                Ok(stream) => add(&mut connections, stream),
                Err(error) => {
                    metrics.accept_errors.inc();
                    tracing::debug!(listener = name, %error, "connection not accepted");
                    // Without file descriptors, a new probe matters more than the connection that has waited longest.
                    if matches!(error.raw_os_error(), Some(nix::libc::EMFILE | nix::libc::ENFILE)) {
                        connections.evict();
                    }
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            },
        }
    }

    close_phase.send_replace(ClosePhase::LastAnswer);
    let accept_until = Instant::now() + QUEUE_DRAIN_TIMEOUT;
    let mut steered: Option<Instant> = None;
    loop {
        // Again while connections still arrive: when another process leaves the group, the kernel renumbers the
        // sockets.
        if steered.is_none_or(|at| at.elapsed() >= STEER_INTERVAL) {
            listener
                .steer_away(limits.proxy_protocol, |stream| add(&mut connections, stream))
                .await;
            steered = Some(Instant::now());
        }
        match timeout(QUEUE_EMPTY_TIMEOUT, listener.accept()).await {
            Err(_) => break,
            Ok(Ok(stream)) => add(&mut connections, stream),
            Ok(Err(_)) => sleep(ACCEPT_RETRY_DELAY).await,
        }
        if Instant::now() >= accept_until {
            break;
        }
    }
    drop(listener);
    metrics.bound.set(0);
    let mut join_within = async |limit: Duration| {
        let until = Instant::now() + limit;
        while !connections.is_empty() {
            match timeout_at(until, connections.join_next()).await {
                Ok(ended) => ended.map_err(panicked)?,
                Err(_) => break,
            }
        }
        Ok(())
    };
    join_within(limits.linger_timeout).await?;
    close_phase.send_replace(ClosePhase::Ending);
    join_within(FINAL_ANSWER_TIMEOUT).await?;
    connections.abort_all().await;
    Ok(())
}
