//! Health answers and health probes: HTTP with a status and nothing else.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::probe::ProbeResult;

/// How long a peer may take to send its request's header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections served at once by one listener; probes need one or two.
const MAX_CONNECTIONS: usize = 64;

/// The status for a path.
pub(crate) type Answer = Arc<dyn Fn(&str) -> StatusCode + Send + Sync>;

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, answer: Answer) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => accepted,
            Some(_) = connections.join_next() => continue,
        };
        // A connection that failed before it was accepted concerns its peer alone.
        let Ok((stream, _)) = accepted else { continue };
        let answer = Arc::clone(&answer);
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let status = answer(request.uri().path());
                let mut response = Response::new(Full::new(Bytes::new()));
                *response.status_mut() = status;
                std::future::ready(Ok::<_, Infallible>(response))
            });
            // How a probe ends its connection does not matter.
            let _ = server::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// What a probe asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The address and port of the backend.
    pub address: SocketAddrV4,
    /// The path of an HTTP probe; none for a TCP handshake.
    pub path: Option<&'static str>,
}

impl Probe {
    /// What it finds within this time.
    pub(crate) async fn ask(&self, bound: Duration) -> ProbeResult {
        timeout(bound, self.attempt()).await.unwrap_or(ProbeResult::Failure)
    }

    /// Whether it succeeds in time: a handshake, or status 200.
    pub(crate) async fn succeeds(&self, bound: Duration) -> bool {
        self.ask(bound).await == ProbeResult::Success
    }

    async fn attempt(&self) -> ProbeResult {
        let connected = TcpStream::connect(SocketAddr::from(self.address)).await;
        match (connected, self.path) {
            (Ok(_), None) => ProbeResult::Success,
            (Ok(stream), Some(path)) => match self.get(stream, path).await {
                Ok(StatusCode::OK) => ProbeResult::Success,
                // Whatever ends the connection without an answer is taken for a reset.
                Ok(_) | Err(_) => ProbeResult::Refusal,
            },
            (Err(error), Some(_)) if is_reset(&error) => ProbeResult::Refusal,
            (Err(_), _) => ProbeResult::Failure,
        }
    }

    async fn get(&self, stream: TcpStream, path: &str) -> io::Result<StatusCode> {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let request = Request::get(path)
            .header(HOST, self.address.to_string())
            .body(Empty::<Bytes>::new())
            .map_err(io::Error::other)?;
        // The sender is dropped with the answer, which ends the connection.
        let exchange = async move { sender.send_request(request).await.map(|response| response.status()) };
        let (status, _ended) = tokio::join!(exchange, connection);
        status.map_err(io::Error::other)
    }
}

fn is_reset(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::net::TcpSocket;

    use super::*;

    #[tokio::test]
    async fn a_probe_accepts_200_and_nothing_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
            panic!()
        };
        let healthy = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&healthy);
        let server = tokio::spawn(serve(
            listener,
            Arc::new(move |path| match path {
                "/healthz" if seen.load(Ordering::Relaxed) => StatusCode::OK,
                "/healthz" => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::NOT_FOUND,
            }),
        ));
        let bound = Duration::from_secs(10);
        let probe = |path| Probe { address, path };
        assert!(probe(Some("/healthz")).succeeds(bound).await);
        assert!(!probe(Some("/")).succeeds(bound).await);
        assert!(probe(None).succeeds(bound).await);
        healthy.store(false, Ordering::Relaxed);
        assert!(!probe(Some("/healthz")).succeeds(bound).await);
        server.abort();
        // Bound and not listening: the port of the server that has ended may be another process's by now.
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let SocketAddr::V4(address) = silent.local_addr().unwrap() else {
            panic!()
        };
        let refused = Probe { address, path: None };
        assert!(!refused.succeeds(bound).await, "nothing listens");
    }

    #[tokio::test]
    async fn a_probe_without_an_answer_ends_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
            panic!()
        };
        let probe = Probe {
            address,
            path: Some("/healthz"),
        };
        assert!(
            !probe.succeeds(Duration::from_millis(50)).await,
            "accepted by the kernel, never answered"
        );
    }
}
