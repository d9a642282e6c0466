//! One connection: hyper's HTTP/1 over a stream that records what it waits for.
//!
//! This adds two things that Go's server does and hyper does not. A request in HTTP/1.1 without exactly one Host gets
//! 400. While the listener closes, each answer carries `Connection: close`, so that the peer sends no further request
//! on a connection that is about to end. It also answers the question of `steer`.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONNECTION, HOST};
use axum::http::{HeaderValue, Request, StatusCode, Version};
use axum::response::IntoResponse as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit, watch};
use tower::Service as _;

use super::activity::{Activity, Phase};
use super::proxy_protocol::ExpectedPrefix;
use super::steer::STEERING_HEADER;

/// The body of the 400 to a request that does not name one host.
const NO_HOST: &str = "400 Bad Request: missing or repeated Host header";
/// The largest request line with headers. hyper answers a larger one with 431.
const MAX_HEADER_BYTES: usize = 16 * 1024;

/// How far a listener has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosePhase {
    /// It does not close.
    Open,
    /// The next answer on each connection is the last.
    LastAnswer,
    /// Connections without a request end.
    Ending,
}

/// In the extensions of a response: the connection is closed and nothing of the response is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseWithoutAnswer;

/// The error by which hyper closes a connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed without an answer")]
struct Unanswered;

/// Serves one connection until its peer ends it or the listener has closed.
pub(super) async fn serve_connection<S>(
    mut stream: S,
    expected: ExpectedPrefix,
    router: Router,
    activity: Arc<Activity>,
    pipelined_turns: Arc<Semaphore>,
    mut close_phase: watch::Receiver<ClosePhase>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let unread = tokio::select! {
        biased;
        unread = expected.strip(&mut stream) => unread,
        () = wait_for_end(&mut close_phase) => None,
    };
    let Some(unread) = unread else { return };
    let recorded = RecordedStream {
        unread,
        stream,
        activity: Arc::clone(&activity),
    };
    let current_phase = close_phase.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        // No byte was read since the last answer: this request arrived together with the one before.
        let turns = (activity.phase() != Phase::Request).then(|| Arc::clone(&pipelined_turns));
        activity.enter(Phase::Answer);
        let is_last = *current_phase.borrow() != ClosePhase::Open;
        let mut router = router.clone();
        async move {
            let _turn = match &turns {
                Some(turns) => Some(take_turn(turns).await),
                None => None,
            };
            let mut response = if !has_one_host(&request) {
                (StatusCode::BAD_REQUEST, [(CONNECTION, "close")], NO_HOST).into_response()
            } else if request.headers().contains_key(STEERING_HEADER) {
                // The question of another process that closes.
                StatusCode::NOT_FOUND.into_response()
            } else {
                // A router is always ready, and its error type is Infallible.
                let Ok(response) = router.call(request.map(Body::new)).await;
                response
            };
            if response.extensions().get::<CloseWithoutAnswer>().is_some() {
                return Err(Unanswered);
            }
            if is_last {
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            // The sweep applies the time limits, since it distinguishes an idle connection from half a request.
            .header_read_timeout(None)
            .max_buf_size(MAX_HEADER_BYTES)
            // One buffer for everything to write. With a queue of buffers, hyper 1.12 writes its own 400, for
            // nonsense behind a request, before the rest of an answer that waits for room (and panics in debug
            // builds).
            .writev(false)
            // Header names as Go spells them, for peers that compare them case-sensitively.
            .title_case_headers(true)
            // A peer may shut down its sending side before it has its answer.
            .half_close(true)
            .serve_connection(TokioIo::new(recorded), service)
    );
    let mut is_ending = false;
    loop {
        tokio::select! {
            // A failed connection concerns its peer only.
            _ = connection.as_mut() => return,
            () = wait_for_end(&mut close_phase), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Waits until connections are to end. A listener that is gone means the same.
async fn wait_for_end(close_phase: &mut watch::Receiver<ClosePhase>) {
    // The outcome holds a lock and is dropped here.
    let _ = close_phase.wait_for(|phase| *phase == ClosePhase::Ending).await;
}

/// Waits for this request's turn among all pipelined requests of the listener. The runtime answers one of them per
/// iteration, so a new probe waits for one of them at most.
async fn take_turn(turns: &Semaphore) -> Result<SemaphorePermit<'_>, AcquireError> {
    let turn = turns.acquire().await;
    tokio::task::yield_now().await;
    turn
}

/// RFC 9112, section 3.2: a request in HTTP/1.1 has exactly one Host. Older versions need none.
fn has_one_host<B>(request: &Request<B>) -> bool {
    let hosts = request.headers().get_all(HOST).iter().count();
    if request.version() == Version::HTTP_11 {
        hosts == 1
    } else {
        hosts <= 1
    }
}

/// A stream that records its reads and writes in an [`Activity`].
struct RecordedStream<S> {
    /// Bytes that were read from the stream before; they come first.
    unread: Vec<u8>,
    stream: S,
    activity: Arc<Activity>,
}

impl<S: AsyncRead + Unpin> AsyncRead for RecordedStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.unread.is_empty() {
            let later = this.unread.split_off(this.unread.len().min(buffer.remaining()));
            buffer.put_slice(&std::mem::replace(&mut this.unread, later));
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(cx, buffer);
        // The first byte starts the request's time limit; later bytes do not extend it.
        if buffer.filled().len() > before && this.activity.phase() == Phase::Idle {
            this.activity.enter(Phase::Request);
        }
        outcome
    }
}

impl<S> RecordedStream<S> {
    fn record_write<T>(&self, outcome: Poll<T>) -> Poll<T> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for RecordedStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write(cx, buffer);
        this.record_write(outcome)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
