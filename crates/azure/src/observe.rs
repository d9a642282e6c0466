//! A call to ARM as it is seen: a span for all of it, one for each try, and what is counted.
//!
//! A call is what somebody asked for, with its waiting and its tries; a try is one request over the wire. Spans have
//! the target [`SPAN_TARGET`] and the level DEBUG, so that logs do not have them unless asked to and exporters can choose
//! them; to nobody they cost next to nothing. Nothing secret is in them: the path without its query, no header, no body.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hyper::{Method, StatusCode, Uri};
use tokio::time::Instant;
use tower::ServiceExt as _;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use super::error::{ArmError, ErrorBody, ErrorClass};
use super::metrics::{Requests, code_label};
use super::stack::{Around, Below, Call};
use super::transport::Answer;

/// The target of the spans.
pub const SPAN_TARGET: &str = "headgate::arm";

/// One call, as far as it has come.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// None for what is no request to ARM.
    requests: Option<Requests>,
    tries: AtomicU32,
    held_up_millis: AtomicU64,
}

impl Seen {
    /// A call that begins.
    pub(super) fn new(requests: Requests) -> Arc<Self> {
        Arc::new(Self {
            requests: Some(requests),
            ..Self::default()
        })
    }

    /// Our own rate limit has it wait so long.
    pub(super) fn held_up(&self, wait: Duration) {
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.held_up_millis.fetch_add(millis, Ordering::Relaxed);
        if let Some(requests) = &self.requests {
            requests.ratelimited();
        }
    }

    /// The span of all of it.
    pub(super) fn span(&self, method: &Method, uri: &Uri) -> Span {
        tracing::debug_span!(
            target: SPAN_TARGET,
            "arm",
            otel.name = self.requests.as_ref().map_or("arm", Requests::request),
            otel.kind = "client",
            otel.status_code = Empty,
            http.request.method = method.as_str(),
            url.path = uri.path(),
            server.address = uri.host(),
            http.response.status_code = Empty,
            error.type = Empty,
            headgate.error_class = Empty,
            headgate.tries = Empty,
            headgate.rate_limited_ms = Empty,
        )
    }

    /// It has ended.
    pub(super) fn ended(&self, span: &Span, outcome: &Result<BufferedResponse, ArmError>) {
        if span.is_disabled() {
            return;
        }
        span.record("headgate.tries", self.tries.load(Ordering::Relaxed));
        span.record("headgate.rate_limited_ms", self.held_up_millis.load(Ordering::Relaxed));
        let status = match outcome {
            Ok(answer) => Some(answer.status()),
            Err(error) => error.status(),
        };
        if let Some(status) = status {
            span.record("http.response.status_code", status.as_u16());
        }
        if let Err(error) = outcome {
            span.record("otel.status_code", "ERROR");
            span.record("error.type", error.code());
            let class = match error.class() {
                ErrorClass::Stale => "stale",
                ErrorClass::Retriable => "retriable",
                ErrorClass::Terminal => "terminal",
            };
            span.record("headgate.error_class", class);
        }
    }
}

/// Times and counts each try.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observe;

impl Around for Observe {
    async fn around<S: Below>(self, call: Call, below: S) -> Result<BufferedResponse, ArmError> {
        let seen = Arc::clone(&call.seen);
        let number = seen.tries.fetch_add(1, Ordering::Relaxed) + 1;
        let span = tracing::debug_span!(
            target: SPAN_TARGET,
            "try",
            otel.kind = "client",
            otel.status_code = Empty,
            http.request.resend_count = number - 1,
            http.response.status_code = Empty,
            error.type = Empty,
        );
        let began = Instant::now();
        let outcome = below.oneshot(call).instrument(span.clone()).await;
        let took = began.elapsed();
        let code = match &outcome {
            Ok(answer) => {
                let status = answer.status();
                span.record("http.response.status_code", status.as_u16());
                (!status.is_success()).then(|| code_label(&ErrorBody::parse(answer.body()).code, status.as_u16()))
            }
            Err(error) => Some(error.code().to_owned()),
        };
        if let Some(code) = &code {
            span.record("otel.status_code", "ERROR");
            span.record("error.type", code.as_str());
        }
        if let Some(requests) = &seen.requests {
            requests.answered(took, code.as_deref());
            if matches!(&outcome, Ok(answer) if answer.status() == StatusCode::TOO_MANY_REQUESTS) {
                requests.throttled();
            }
        }
        outcome
    }
}
