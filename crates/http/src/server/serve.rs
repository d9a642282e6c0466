//! The listener loop: accept, serve, sweep, close.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::connection::{self, Closing};
use super::connections::{Connections, Limits};
use super::crowd::Crowd;
use super::metrics::Metrics;
use super::proxy_protocol::Expected;
use super::steer;

/// How often waiting connections are looked at.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failed accept, so that a want of file descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// A queue in which nothing arrived for this long, after new connections were steered away, is empty.
const QUIET: Duration = Duration::from_millis(250);
/// Time after which connections that still come are steered away once more.
const STEER_INTERVAL: Duration = Duration::from_millis(100);
/// Bound on emptying the queue where new connections could not be steered away.
const MAX_ACCEPT_LINGER: Duration = Duration::from_secs(2);
/// Time for answers under way once connections are told to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a listener ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Serving a connection panicked: a defect, which must not be lived with.
    #[error("serving a connection of listener {listener} panicked: {source}")]
    Panicked {
        /// The listener.
        listener: &'static str,
        /// The panic.
        #[source]
        source: tokio::task::JoinError,
    },
}

/// Where connections come from.
pub trait Incoming: Send {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
    /// Leaves new connections to another process, if there is one; what arrives here meanwhile.
    fn steer_away(&self) -> impl Future<Output = Vec<Self::Stream>> + Send;
}

impl Incoming for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // An answer is one small write; waiting to fill a segment only delays it.
        // A peer that has gone already is found out when it is answered.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    async fn steer_away(&self) -> Vec<TcpStream> {
        steer::away(self).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "new connections cannot be steered to another process");
            Vec::new()
        })
    }
}

/// A Unix socket, for this container's own probes.
#[derive(Debug)]
pub struct UnixIncoming(pub UnixListener);

impl Incoming for UnixIncoming {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.0.accept().await?.0)
    }

    async fn steer_away(&self) -> Vec<UnixStream> {
        Vec::new()
    }
}

/// Waits to be told to close; a sender that is gone means the same.
pub async fn told(close: &mut watch::Receiver<bool>) {
    // The outcome holds a lock and is dropped here.
    let _ = close.wait_for(|close| *close).await;
}

/// Serves `router` on `incoming` until `close` says so, then closes gracefully: new connections are
/// steered away, what is queued is accepted and answered, open connections get a last answer within
/// the limit's linger, and the rest is ended.
///
/// # Errors
/// When serving a connection panicked.
pub async fn serve<I: Incoming>(
    name: &'static str,
    incoming: I,
    router: Router,
    limits: Limits,
    metrics: &Metrics,
    close: watch::Receiver<bool>,
) -> Result<(), ServeError> {
    let alone = Crowd::new(limits.connections);
    serve_among(&alone, name, incoming, router, limits, metrics, close).await
}

/// The same, for one of many listeners that share a bound on their connections.
///
/// # Errors
/// When serving a connection panicked.
pub async fn serve_among<I: Incoming>(
    crowd: &Crowd,
    name: &'static str,
    incoming: I,
    router: Router,
    limits: Limits,
    metrics: &Metrics,
    mut close: watch::Receiver<bool>,
) -> Result<(), ServeError> {
    let expected = Expected::new(limits.proxy_protocol, || metrics.proxy_headers(name));
    let metrics = metrics.listener(name);
    metrics.bound.set(1);
    let panicked = |source| ServeError::Panicked { listener: name, source };
    let mut connections = Connections::new(limits, crowd.clone(), metrics.clone());
    let (closing, closings) = watch::channel(Closing::No);
    let lane = Arc::new(Semaphore::new(1));
    let add = |connections: &mut Connections, stream| {
        let (expected, router, lane, closings) =
            (expected.clone(), router.clone(), Arc::clone(&lane), closings.clone());
        connections.add(|activity| connection::run(stream, expected, router, activity, lane, closings));
    };
    let mut sweeps = interval(SWEEP_INTERVAL);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = pin!(told(&mut close));
    loop {
        tokio::select! {
            // In this order: a flood of connections must starve neither closing nor the sweep.
            biased;
            () = &mut told => break,
            // There may be thousands of listeners: one without connections has nothing to wake up for.
            _ = sweeps.tick(), if !connections.is_empty() => connections.sweep(),
            ended = connections.ended() => ended.map_err(panicked)?,
            accepted = incoming.accept() => match accepted {
                Ok(stream) => add(&mut connections, stream),
                Err(error) => {
                    metrics.accept_errors.inc();
                    tracing::debug!(listener = name, %error, "a connection was not accepted");
                    // Out of file descriptors: a fresh probe is worth more than who has waited longest.
                    if matches!(error.raw_os_error(), Some(nix::libc::EMFILE | nix::libc::ENFILE)) {
                        connections.evict();
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }

    closing.send_replace(Closing::Soon);
    let accept_until = Instant::now() + MAX_ACCEPT_LINGER;
    let mut steered: Option<Instant> = None;
    loop {
        // Again when connections still come: another process that left has moved the others' places.
        if steered.is_none_or(|at| at.elapsed() >= STEER_INTERVAL) {
            for stream in incoming.steer_away().await {
                add(&mut connections, stream);
            }
            steered = Some(Instant::now());
        }
        match timeout(QUIET, incoming.accept()).await {
            Err(_) => break,
            Ok(Ok(stream)) => add(&mut connections, stream),
            Ok(Err(_)) => sleep(ACCEPT_PAUSE).await,
        }
        if Instant::now() >= accept_until {
            break;
        }
    }
    drop(incoming);
    metrics.bound.set(0);
    let mut wait = async |limit: Duration| {
        let until = Instant::now() + limit;
        while !connections.is_empty() {
            match tokio::time::timeout_at(until, connections.ended()).await {
                Ok(ended) => ended.map_err(panicked)?,
                Err(_) => break,
            }
        }
        Ok(())
    };
    wait(limits.linger).await?;
    closing.send_replace(Closing::Now);
    wait(END_TIMEOUT).await?;
    connections.abort().await;
    Ok(())
}
