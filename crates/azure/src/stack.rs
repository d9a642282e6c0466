//! The layers that a request to Azure goes through, outermost first: retries, gates, identity, permission, what is
//! counted, time for one try, the wire.
//!
//! A layer is an [`Around`]: what it does before and after the service below it. Each try passes every gate and
//! asks for permission again. Answers pass as they are, whatever their status; only what is no answer is an
//! error.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::{HeaderMap, Method, Request, Uri};
use tokio::time::{Instant, timeout_at};
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt as _};

use super::error::ArmError;
use super::gate::Gates;
use super::identity::Bearer;
use super::observe::{Observe, Seen};
use super::retry::Retry;
use super::transport::{BufferedResponse, Transport, TransportError};

/// Whether a write may still be sent; asked each time, right before one is.
#[derive(Clone)]
pub struct Permit(Arc<dyn Fn() -> bool + Send + Sync>);

impl Permit {
    /// As this says.
    pub fn new(may_send: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(may_send))
    }

    /// Until the end.
    #[must_use]
    pub fn always() -> Self {
        Self::new(|| true)
    }

    pub(super) fn may_send(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({})", self.may_send())
    }
}

/// A request on its way.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Whose gates it passes.
    pub(super) subscription: Arc<str>,
    /// Nobody waits for the answer longer.
    pub(super) deadline: Instant,
    /// A write's.
    pub(super) permit: Option<Permit>,
    /// What is counted and shown of it.
    pub(super) seen: Arc<Seen>,
}

impl fmt::Debug for Call {
    /// Without headers, query and body: tokens, signatures and secrets stand there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({} {})", self.method, self.uri.path())
    }
}

impl Call {
    pub(super) fn writes(&self) -> bool {
        self.permit.is_some()
    }

    fn into_request(self) -> Request<Bytes> {
        let mut request = Request::new(self.body);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        request
    }
}

/// What a layer stands on.
pub(super) trait Below:
    Service<Call, Response = BufferedResponse, Error = ArmError, Future: Send> + Clone + Send + Sync + 'static
{
}

impl<S> Below for S where
    S: Service<Call, Response = BufferedResponse, Error = ArmError, Future: Send> + Clone + Send + Sync + 'static
{
}

/// What a layer does.
pub(super) trait Around: Clone + Send + Sync + 'static {
    fn around<S: Below>(self, call: Call, below: S) -> impl Future<Output = Result<BufferedResponse, ArmError>> + Send;
}

/// The layer of an [`Around`].
#[derive(Clone, Debug)]
pub(super) struct Wrap<A>(pub(super) A);

impl<A: Clone, S> Layer<S> for Wrap<A> {
    type Service = Layered<A, S>;

    fn layer(&self, below: S) -> Layered<A, S> {
        Layered {
            around: self.0.clone(),
            below,
        }
    }
}

/// An [`Around`] with what is below it.
#[derive(Clone, Debug)]
pub(super) struct Layered<A, S> {
    around: A,
    below: S,
}

impl<A: Around, S: Below> Service<Call> for Layered<A, S> {
    type Response = BufferedResponse;
    type Error = ArmError;
    type Future = BoxFuture<'static, Result<BufferedResponse, ArmError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ArmError>> {
        // Each call takes its own clone of what is below, and waits for that.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        self.around.clone().around(call, self.below.clone()).boxed()
    }
}

/// A write is sent only while its permit lasts.
#[derive(Clone, Copy, Debug)]
struct Permitted;

impl Around for Permitted {
    async fn around<S: Below>(self, call: Call, below: S) -> Result<BufferedResponse, ArmError> {
        if call.permit.as_ref().is_some_and(|permit| !permit.may_send()) {
            return Err(ArmError::NotPermitted);
        }
        below.oneshot(call).await
    }
}

/// One try takes no longer than this, nor than the caller's deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct TryFor(pub(super) Duration);

impl Around for TryFor {
    async fn around<S: Below>(self, call: Call, below: S) -> Result<BufferedResponse, ArmError> {
        let (mine, callers) = (Instant::now() + self.0, call.deadline);
        match timeout_at(mine.min(callers), below.oneshot(call)).await {
            Ok(outcome) => outcome,
            Err(_) if mine < callers => Err(ArmError::Connection(format!("nothing in {} s", self.0.as_secs_f64()))),
            Err(_) => Err(ArmError::DeadlineExceeded),
        }
    }
}

/// The end of the stack.
#[derive(Clone, Debug)]
pub(super) struct Wire(pub(super) Transport);

impl Service<Call> for Wire {
    type Response = BufferedResponse;
    type Error = ArmError;
    type Future = BoxFuture<'static, Result<BufferedResponse, ArmError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ArmError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let transport = self.0.clone();
        let sent = async move { transport.send(call.into_request()).await };
        sent.map(|outcome| {
            outcome.map_err(|error| match error {
                TransportError::Connection(why) => ArmError::Connection(why),
                TransportError::TooLarge => ArmError::InvalidResponse(error.to_string()),
            })
        })
        .boxed()
    }
}

/// A stack of layers.
pub(super) type Stack = BoxCloneSyncService<Call, BufferedResponse, ArmError>;

/// Every request to ARM goes through this.
pub(super) fn arm(transport: Transport, retry: Retry, gates: Gates, bearer: Bearer, one_try: Duration) -> Stack {
    let stack = ServiceBuilder::new()
        .layer(Wrap(retry))
        .layer(Wrap(gates))
        .layer(Wrap(bearer))
        .layer(Wrap(Permitted))
        .layer(Wrap(Observe))
        .layer(Wrap(TryFor(one_try)))
        .service(Wire(transport));
    Stack::new(stack)
}

/// Every request for a token goes through this.
pub(super) fn tokens(transport: Transport, retry: Retry, one_try: Duration) -> Stack {
    let stack = ServiceBuilder::new()
        .layer(Wrap(retry))
        .layer(Wrap(TryFor(one_try)))
        .service(Wire(transport));
    Stack::new(stack)
}
