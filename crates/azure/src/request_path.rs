//! The path of one request, from [`RequestPath::send`] to the socket. Read this file from top to bottom to follow a PUT.
//!
//! [`RequestPath::to_arm`] lists the middleware, outermost first. Each [`Middleware`] handles a request and runs [`Next`],
//! the rest of the path; the last step is [`Transport`]. Everything below [`Retry`] runs again for each attempt, so each
//! attempt passes the throttle gate and checks the permit right before it is sent. A response passes up unchanged,
//! whatever its status; only a missing response is an error. The rules themselves are elsewhere: delays in `retry`, gates
//! in `throttle`, tokens in `token_cache`, spans and counters in `call`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::Instrument as _;

use crate::Secret;
use crate::body_stream::BodyParser;
use crate::call::Call;
use crate::error::{ArmError, TokenError};
use crate::identity::TokenSource;
use crate::retry::RetryPolicy;
use crate::throttle::{GateClosed, RequestKind, ThrottleGates};
use crate::transport::{BufferedResponse, Transport, TransportError};

/// Decides right before each attempt of a write whether it may be sent.
#[derive(Clone)]
pub struct WritePermit(Arc<dyn Fn() -> bool + Send + Sync>);

impl WritePermit {
    /// A permit that is valid while `is_valid` returns true.
    pub fn new(is_valid: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_valid))
    }

    fn is_valid(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for WritePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WritePermit({})", self.is_valid())
    }
}

/// A request to ARM or to a token endpoint, with what the middleware needs besides HTTP.
#[derive(Clone)]
pub(crate) struct ArmRequest {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Selects the throttle gates; empty for a token request, which passes none.
    pub(crate) subscription: Arc<str>,
    /// The caller waits no longer, retries included.
    pub(crate) deadline: Instant,
    /// Present for writes only.
    pub(crate) permit: Option<WritePermit>,
    /// Parses the body of a successful response while it arrives; `None` if the whole body is awaited.
    pub(crate) parser: Option<BodyParser>,
    /// Where spans and counters of this request are collected.
    pub(crate) call: Arc<Call>,
}

impl fmt::Debug for ArmRequest {
    /// Omits headers, query and body, which hold tokens, signatures and secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ArmRequest({} {})", self.method, self.uri.path())
    }
}

impl ArmRequest {
    fn kind(&self) -> RequestKind {
        match self.permit {
            Some(_) => RequestKind::Write,
            None => RequestKind::Read,
        }
    }

    fn into_http(self) -> Request<Bytes> {
        let mut request = Request::new(self.body);
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        request
    }
}

type ResponseResult = Result<BufferedResponse, ArmError>;

/// One layer of the path.
trait Middleware: Send + Sync {
    fn handle<'a>(&'a self, request: ArmRequest, next: Next<'a>) -> BoxFuture<'a, ResponseResult>;
}

/// The rest of the path below a middleware.
#[derive(Clone, Copy)]
struct Next<'a> {
    middleware: &'a [Box<dyn Middleware>],
    transport: &'a Transport,
}

impl<'a> Next<'a> {
    fn run(self, request: ArmRequest) -> BoxFuture<'a, ResponseResult> {
        match self.middleware.split_first() {
            Some((first, rest)) => first.handle(
                request,
                Next {
                    middleware: rest,
                    ..self
                },
            ),
            None => async move {
                let parser = request.parser.clone();
                let request = request.into_http();
                let sent = match parser {
                    Some(parser) => self.transport.send_streamed(request, parser).await,
                    None => self.transport.send(request).await,
                };
                sent.map_err(|error| match error {
                    TransportError::Connection(why) => ArmError::Connection(why),
                    TransportError::StreamTooLarge(_) => ArmError::TooLarge(error.to_string()),
                    TransportError::TooLarge(_) | TransportError::Malformed(_) => {
                        ArmError::InvalidResponse(error.to_string())
                    }
                })
            }
            .boxed(),
        }
    }
}

/// Middleware over a transport.
pub(crate) struct RequestPath {
    middleware: Vec<Box<dyn Middleware>>,
    transport: Transport,
}

impl RequestPath {
    /// The path of every request to ARM.
    pub(crate) fn to_arm(
        transport: Transport,
        policy: RetryPolicy,
        gates: ThrottleGates,
        tokens: Arc<dyn TokenSource>,
        attempt_timeout: Duration,
    ) -> Self {
        Self {
            middleware: vec![
                Box::new(Retry(policy)),
                Box::new(Throttle(gates)),
                Box::new(BearerAuth(tokens)),
                Box::new(RequirePermit),
                Box::new(ObserveAttempt),
                Box::new(AttemptTimeout(attempt_timeout)),
            ],
            transport,
        }
    }

    /// The path of every token request.
    pub(crate) fn to_token_endpoint(transport: Transport, policy: RetryPolicy, attempt_timeout: Duration) -> Self {
        Self {
            middleware: vec![Box::new(Retry(policy)), Box::new(AttemptTimeout(attempt_timeout))],
            transport,
        }
    }

    /// Sends a request and waits for its response.
    pub(crate) async fn send(&self, request: ArmRequest) -> ResponseResult {
        let next = Next {
            middleware: &self.middleware,
            transport: &self.transport,
        };
        next.run(request).await
    }
}

/// Extension of a response to a request with earlier attempts: one of those may have had its effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retried;

/// Sends a request again when the policy says so and the deadline allows it.
struct Retry(RetryPolicy);

impl Retry {
    fn mark(mut response: BufferedResponse) -> BufferedResponse {
        response.extensions_mut().insert(Retried);
        response
    }
}

impl Middleware for Retry {
    fn handle<'a>(&'a self, request: ArmRequest, next: Next<'a>) -> BoxFuture<'a, ResponseResult> {
        async move {
            let mut backoff = RetryPolicy::backoff();
            let mut is_first = true;
            let mut earlier = None;
            loop {
                let mut outcome = next.run(request.clone()).await;
                // A retry that is not sent says nothing about the attempt before, which ARM may have accepted.
                if let Err(ArmError::Throttled { .. } | ArmError::RateLimited | ArmError::Token(_)) = &outcome
                    && request.permit.is_some()
                {
                    outcome = earlier.take().unwrap_or(outcome);
                    return outcome.map(Self::mark);
                }
                if let Err(ArmError::NotPermitted { may_have_applied }) = &mut outcome {
                    // Only what has no usable answer is sent again.
                    *may_have_applied = !is_first;
                }
                let delay = self.0.delay(&outcome, backoff.next(), fastrand::f64());
                let retry_at = delay.and_then(|delay| Instant::now().checked_add(delay));
                let Some(retry_at) = retry_at.filter(|retry_at| *retry_at < request.deadline) else {
                    return if is_first { outcome } else { outcome.map(Self::mark) };
                };
                let (method, path) = (&request.method, request.uri.path());
                match &outcome {
                    Ok(response) => {
                        tracing::debug!(%method, path, status = response.status().as_u16(), retry_in = ?delay, "request failed");
                    }
                    Err(error) => tracing::debug!(%method, path, %error, retry_in = ?delay, "request failed"),
                }
                earlier = Some(outcome);
                sleep_until(retry_at).await;
                is_first = false;
            }
        }
        .boxed()
    }
}

/// Waits for the client-side rate limit, and refuses the request while ARM's `Retry-After` of an earlier 429 lasts.
struct Throttle(ThrottleGates);

impl Middleware for Throttle {
    fn handle<'a>(&'a self, request: ArmRequest, next: Next<'a>) -> BoxFuture<'a, ResponseResult> {
        async move {
            let (subscription, kind) = (Arc::clone(&request.subscription), request.kind());
            let now = Instant::now();
            let send_at = self.0.enter(&subscription, kind, now, request.deadline);
            let send_at = send_at.inspect_err(|closed| {
                if *closed == GateClosed::QueueTooLong {
                    request.call.record_rate_limited(Duration::ZERO);
                }
            })?;
            if send_at > now {
                request.call.record_rate_limited(send_at - now);
                sleep_until(send_at).await;
                // A 429 may have closed the gate meanwhile.
                self.0.check_open(&subscription, kind, Instant::now())?;
            }
            let response = next.run(request).await?;
            self.0.record_response(&subscription, kind, &response);
            Ok(response)
        }
        .boxed()
    }
}

/// Adds a bearer token. Refreshes it and sends the request once more when ARM answers 401.
struct BearerAuth(Arc<dyn TokenSource>);

impl BearerAuth {
    async fn send_with(mut request: ArmRequest, token: &Secret, next: Next<'_>) -> ResponseResult {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
            .map_err(|_| TokenError::InvalidResponse("the token does not fit into a header".to_owned()))?;
        value.set_sensitive(true);
        request.headers.insert(AUTHORIZATION, value);
        next.run(request).await
    }
}

impl Middleware for BearerAuth {
    fn handle<'a>(&'a self, request: ArmRequest, next: Next<'a>) -> BoxFuture<'a, ResponseResult> {
        async move {
            let by_deadline = |token| timeout_at(request.deadline, token);
            let token = by_deadline(self.0.token())
                .await
                .map_err(|_| TokenError::Connection("the token endpoint before the deadline".to_owned()))??;
            let response = Self::send_with(request.clone(), &token, next).await?;
            if response.status() != StatusCode::UNAUTHORIZED {
                return Ok(response);
            }
            match by_deadline(self.0.refresh(&token)).await {
                Ok(Ok(refreshed)) if refreshed != token => Self::send_with(request, &refreshed, next).await,
                // The caller gets ARM's 401, which explains more than a missing token.
                Ok(Ok(_)) | Err(_) => Ok(response),
                Ok(Err(error)) => {
                    tracing::info!(%error, "token refresh failed after ARM rejected the token");
                    Ok(response)
                }
            }
        }
        .boxed()
    }
}

/// Sends a write only while its permit is valid.
struct RequirePermit;

impl Middleware for RequirePermit {
    fn handle<'a>(&'a self, request: ArmRequest, next: Next<'a>) -> BoxFuture<'a, ResponseResult> {
        if request.permit.as_ref().is_some_and(|permit| !permit.is_valid()) {
            let may_have_applied = false;
            return std::future::ready(Err(ArmError::NotPermitted { may_have_applied })).boxed();
        }
        next.run(request)
    }
}

/// Records a span and the counters of each attempt.
struct ObserveAttempt;

impl Middleware for ObserveAttempt {
    fn handle<'a>(&'a self, request: ArmRequest, next: Next<'a>) -> BoxFuture<'a, ResponseResult> {
        async move {
            let attempt = Arc::clone(&request.call).start_attempt();
            let outcome = next.run(request).instrument(attempt.span().clone()).await;
            attempt.finish(&outcome);
            outcome
        }
        .boxed()
    }
}

/// Ends an attempt after this time, or at the caller's deadline if that is earlier.
struct AttemptTimeout(Duration);

impl Middleware for AttemptTimeout {
    fn handle<'a>(&'a self, request: ArmRequest, next: Next<'a>) -> BoxFuture<'a, ResponseResult> {
        async move {
            let (timeout, deadline) = (Instant::now() + self.0, request.deadline);
            match timeout_at(timeout.min(deadline), next.run(request)).await {
                Ok(outcome) => outcome,
                Err(_) if timeout < deadline => Err(ArmError::Connection(format!(
                    "no response within {} s",
                    self.0.as_secs_f64()
                ))),
                Err(_) => Err(ArmError::DeadlineExceeded),
            }
        }
        .boxed()
    }
}
