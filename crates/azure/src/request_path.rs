//! The path of one request, from [`RequestPath::send`] to the socket. Read this file from top to bottom to follow a PUT.
//!
//! Each step runs the next one: [`RequestPath::send`] retries; then come the throttle gate, the token, and one attempt, which checks the
//! permit right before it is sent; the last step is [`Transport`]. Everything below the retries runs again for each attempt. A response
//! passes up unchanged, whatever its status; only a missing response is an error. The rules themselves are elsewhere: delays in `retry`,
//! gates in `throttle`, tokens in `token_cache`, spans and counters in `call`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, StatusCode};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::Instrument as _;

use crate::Secret;
use crate::body_stream::BodyParser;
use crate::call::Call;
use crate::error::{ArmError, TokenError};
use crate::retry::RetryPolicy;
use crate::throttle::{RequestKind, ThrottleGates};
use crate::token_cache::TokenCache;
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

/// A request to ARM, with what its path needs besides HTTP.
pub(crate) struct ArmRequest {
    pub(crate) http: Request<Bytes>,
    /// Selects the throttle gates.
    pub(crate) subscription: Arc<str>,
    /// The caller waits no longer, retries included.
    pub(crate) deadline: Instant,
    /// Present for writes only.
    pub(crate) permit: Option<WritePermit>,
    /// Whether each attempt also waits for the limit of lookups.
    pub(crate) is_lookup: bool,
    /// Parses the body of a successful response while it arrives; `None` if the whole body is awaited.
    pub(crate) parser: Option<BodyParser>,
    /// Where spans and counters of this request are collected.
    pub(crate) call: Arc<Call>,
}

impl ArmRequest {
    fn kind(&self) -> RequestKind {
        match self.permit {
            Some(_) => RequestKind::Write,
            None => RequestKind::Read,
        }
    }
}

type ResponseResult = Result<BufferedResponse, ArmError>;

/// The path of every request to ARM.
pub(crate) struct RequestPath {
    pub(crate) transport: Transport,
    pub(crate) policy: RetryPolicy,
    pub(crate) gates: ThrottleGates,
    pub(crate) tokens: Arc<TokenCache>,
    pub(crate) attempt_timeout: Duration,
}

impl RequestPath {
    /// Sends a request and waits for its response.
    pub(crate) async fn send(&self, request: &ArmRequest) -> ResponseResult {
        let is_write = request.permit.is_some();
        let attempt = || self.throttled(request);
        retried(&self.policy, &request.http, is_write, request.deadline, attempt).await
    }

    /// Waits for the client-side rate limit, and refuses the request while ARM's `Retry-After` of an earlier 429 lasts.
    async fn throttled(&self, request: &ArmRequest) -> ResponseResult {
        if request.is_lookup {
            self.enter(request, RequestKind::Lookup).await?;
        }
        self.enter(request, request.kind()).await?;
        let response = self.authorized(request).await?;
        self.gates
            .record_response(&request.subscription, request.kind(), &response);
        Ok(response)
    }

    async fn enter(&self, request: &ArmRequest, kind: RequestKind) -> Result<(), ArmError> {
        let (subscription, now) = (&request.subscription, Instant::now());
        // No setting has the limit of lookups.
        let record_delay = |delay| {
            if kind != RequestKind::Lookup {
                request.call.record_rate_limited(delay);
            }
        };
        let send_at = self.gates.enter(subscription, kind, now, request.deadline);
        let send_at = send_at.inspect_err(|error| {
            if matches!(error, ArmError::RateLimited) {
                record_delay(Duration::ZERO);
            }
        })?;
        if send_at > now {
            record_delay(send_at - now);
            sleep_until(send_at).await;
            // A 429 may have closed the gate meanwhile.
            self.gates.check_open(subscription, kind, Instant::now())?;
        }
        Ok(())
    }

    pub(crate) async fn token(&self, deadline: Instant) -> Result<Secret, ArmError> {
        let token = timeout_at(deadline, self.tokens.token()).await;
        Ok(token.map_err(|_| TokenError::Connection("the token endpoint before the deadline".to_owned()))??)
    }

    /// Adds a bearer token. Refreshes it and sends the request once more when ARM answers 401.
    async fn authorized(&self, request: &ArmRequest) -> ResponseResult {
        let token = self.token(request.deadline).await?;
        let response = self.attempt(request, &token).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        match timeout_at(request.deadline, self.tokens.refresh(&token)).await {
            Ok(Ok(refreshed)) if refreshed != token => self.attempt(request, &refreshed).await,
            // The caller gets ARM's 401, which explains more than a missing token.
            Ok(Ok(_)) | Err(_) => Ok(response),
            Ok(Err(error)) => {
                tracing::info!(%error, "token refresh failed after ARM rejected the token");
                Ok(response)
            }
        }
    }

    /// Sends a request once, a write only while its permit is valid. Records a span and the counters.
    async fn attempt(&self, request: &ArmRequest, token: &Secret) -> ResponseResult {
        let mut http = request.http.clone();
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
            .map_err(|_| TokenError::InvalidResponse("the token does not fit into a header".to_owned()))?;
        value.set_sensitive(true);
        http.headers_mut().insert(AUTHORIZATION, value);
        if request.permit.as_ref().is_some_and(|permit| !permit.is_valid()) {
            let may_have_applied = false;
            return Err(ArmError::NotPermitted { may_have_applied });
        }
        let attempt = Arc::clone(&request.call).start_attempt();
        let sent = async {
            match request.parser.clone() {
                Some(parser) => self.transport.send_streamed(http, parser).await,
                None => self.transport.send(http).await,
            }
        };
        let timed = timed(self.attempt_timeout, request.deadline, sent);
        let outcome = timed.instrument(attempt.span().clone()).await;
        attempt.finish(&outcome);
        outcome
    }
}

/// Extension of a response to a request with earlier attempts: one of those may have had its effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retried;

fn mark(mut response: BufferedResponse) -> BufferedResponse {
    response.extensions_mut().insert(Retried);
    response
}

/// Makes another attempt when the policy says so and the deadline allows it. `request` is for logs.
pub(crate) async fn retried<F: Future<Output = ResponseResult>>(
    policy: &RetryPolicy,
    request: &Request<Bytes>,
    is_write: bool,
    deadline: Instant,
    attempt: impl Fn() -> F,
) -> ResponseResult {
    let mut backoff = RetryPolicy::backoff();
    let mut is_first = true;
    let mut earlier = None;
    loop {
        let mut outcome = attempt().await;
        // A retry that is not sent says nothing about the attempt before, which ARM may have accepted.
        if let Err(ArmError::Throttled { .. } | ArmError::RateLimited | ArmError::Token(_)) = &outcome
            && is_write
        {
            outcome = earlier.take().unwrap_or(outcome);
            return outcome.map(mark);
        }
        if let Err(ArmError::NotPermitted { may_have_applied }) = &mut outcome {
            // Only what has no usable answer is sent again.
            *may_have_applied = !is_first;
        }
        let delay = policy.delay(&outcome, backoff.next(), fastrand::f64());
        let retry_at = delay.and_then(|delay| Instant::now().checked_add(delay));
        let Some(retry_at) = retry_at.filter(|retry_at| *retry_at < deadline) else {
            return if is_first { outcome } else { outcome.map(mark) };
        };
        let (method, path) = (request.method(), request.uri().path());
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

/// Ends an attempt after this time, or at the caller's deadline if that is earlier.
pub(crate) async fn timed(
    limit: Duration,
    deadline: Instant,
    sent: impl Future<Output = Result<BufferedResponse, TransportError>>,
) -> ResponseResult {
    let timeout = Instant::now() + limit;
    match timeout_at(timeout.min(deadline), sent).await {
        Ok(outcome) => outcome.map_err(|error| match error {
            TransportError::Connection(why) => ArmError::Connection(why),
            TransportError::StreamTooLarge(_) => ArmError::TooLarge(error.to_string()),
            TransportError::TooLarge(_) | TransportError::Malformed(_) => ArmError::InvalidResponse(error.to_string()),
        }),
        Err(_) if timeout < deadline => {
            let seconds = limit.as_secs_f64();
            Err(ArmError::Connection(format!("no response within {seconds} s")))
        }
        Err(_) => Err(ArmError::DeadlineExceeded),
    }
}
