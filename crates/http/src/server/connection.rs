//! One connection: hyper's HTTP/1 over a stream that notes what it is waiting for.
//!
//! Adds what Go's server does and hyper does not: HTTP/1.1 without exactly one Host is a 400. While the
//! listener closes, each answer carries `Connection: close`, so that no peer sends another request into
//! a connection that is about to go.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, watch};
use tower::Service as _;

use super::activity::{Activity, Phase};
use super::proxy_protocol::Expected;

/// Headers and request line may take this much; hyper answers 431 beyond it.
const MAX_HEADER_BYTES: usize = 16 * 1024;

/// How far a listener is with closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// Not at all.
    No,
    /// The next answer on each connection is its last.
    Soon,
    /// Connections without a request end now.
    Now,
}

/// In the extensions of a response: close the connection and send nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseWithoutAnswer;

/// A connection is to be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed without an answer")]
struct Unanswered;

/// Serves one connection until its peer is done or the listener has closed.
pub(super) async fn run<S>(
    mut stream: S,
    expected: Expected,
    router: Router,
    activity: Arc<Activity>,
    lane: Arc<Semaphore>,
    mut closing: watch::Receiver<Closing>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let start = tokio::select! {
        biased;
        start = expected.strip(&mut stream) => start,
        () = told_to_end(&mut closing) => None,
    };
    let Some(unread) = start else { return };
    let watched = Watched {
        unread,
        stream,
        activity: Arc::clone(&activity),
    };
    let announced = closing.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        // No byte was read since the last answer: this request came together with the one before.
        let lane = (activity.phase() != Phase::Request).then(|| Arc::clone(&lane));
        activity.enter(Phase::Answer);
        let last = *announced.borrow() != Closing::No;
        let mut router = router.clone();
        async move {
            let _turn = match &lane {
                Some(lane) => Some(turn(lane).await),
                None => None,
            };
            let mut response = if has_one_host(&request) {
                // A router is always ready, and its error type is Infallible.
                let Ok(response) = router.call(request.map(Body::new)).await;
                response
            } else {
                bad_request()
            };
            if response.extensions().get::<CloseWithoutAnswer>().is_some() {
                return Err(Unanswered);
            }
            if last {
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            // Time limits are the sweep's, which knows an idle connection from half a request.
            .header_read_timeout(None)
            .max_buf_size(MAX_HEADER_BYTES)
            // One buffer for all that is to be written. With a queue of buffers hyper 1.12 puts its own 400, to nonsense
            // behind a request, before the rest of an answer that waits for room (and panics in debug builds).
            .writev(false)
            // Header names as Go spells them, for peers that compare them to the letter.
            .title_case_headers(true)
            // A peer may say "that was all" before it has its answer.
            .half_close(true)
            .serve_connection(TokioIo::new(watched), service)
    );
    let mut asked_to_end = false;
    loop {
        tokio::select! {
            // A failed connection is its peer's business; nothing of ours depends on it.
            _ = connection.as_mut() => return,
            () = told_to_end(&mut closing), if !asked_to_end => {
                asked_to_end = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Waits until connections are to end; a listener that is gone means the same.
async fn told_to_end(closing: &mut watch::Receiver<Closing>) {
    // The outcome holds a lock and is dropped here.
    let _ = closing.wait_for(|closing| *closing == Closing::Now).await;
}

/// A turn at answering in the lane that all pipelined requests of a listener share: one of them for each
/// turn of the runtime, so that however many there are, a fresh probe never waits for more than one.
async fn turn(lane: &Semaphore) -> Result<SemaphorePermit<'_>, AcquireError> {
    let turn = lane.acquire().await;
    tokio::task::yield_now().await;
    turn
}

/// RFC 9112, 3.2: a request in HTTP/1.1 has exactly one Host. Older versions need none.
fn has_one_host<B>(request: &Request<B>) -> bool {
    let hosts = request.headers().get_all(HOST).iter().count();
    if request.version() == Version::HTTP_11 {
        hosts == 1
    } else {
        hosts <= 1
    }
}

fn bad_request() -> Response<Body> {
    let mut response = Response::new(Body::from("400 Bad Request: missing or repeated Host header"));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A stream that notes its reads and writes.
struct Watched<S> {
    /// Read from the stream already, and handed on before anything else.
    unread: Vec<u8>,
    stream: S,
    activity: Arc<Activity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.unread.is_empty() {
            let later = this.unread.split_off(this.unread.len().min(buffer.remaining()));
            buffer.put_slice(&std::mem::replace(&mut this.unread, later));
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buffer);
        // The first byte starts the request's clock; later ones do not move it.
        if buffer.filled().len() > before && this.activity.phase() == Phase::Idle {
            this.activity.enter(Phase::Request);
        }
        outcome
    }
}

impl<S> Watched<S> {
    fn wrote<T>(&self, outcome: Poll<T>) -> Poll<T> {
        match outcome {
            Poll::Pending if self.activity.phase() != Phase::Write => self.activity.enter(Phase::Write),
            Poll::Ready(_) if matches!(self.activity.phase(), Phase::Answer | Phase::Write) => {
                self.activity.enter(Phase::Idle);
            }
            _ => {}
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write(cx, buffer);
        this.wrote(outcome)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
