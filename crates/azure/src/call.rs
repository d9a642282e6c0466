//! Spans and counters of one call to ARM.
//!
//! A call is one request of a caller, with its waits and retries; an attempt is one HTTP exchange of it. Each has a span
//! with the target [`SPAN_TARGET`] and the level DEBUG: logs omit them by default, exporters select them, and without
//! either they cost next to nothing. Spans hold no secret: the path without its query, no header, no body.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hyper::{Method, StatusCode, Uri};
use tokio::time::Instant;
use tracing::Span;
use tracing::field::Empty;

use crate::error::{ArmError, ErrorBody, ErrorClass, is_rate_limited};
use crate::metrics::{RequestMetrics, code_label};
use crate::transport::BufferedResponse;

/// The target of all spans of this crate.
const SPAN_TARGET: &str = "headgate::arm";

/// One call: how many attempts it has made and how long the client-side rate limit delayed it.
#[derive(Debug)]
pub(crate) struct Call {
    metrics: RequestMetrics,
    attempts: AtomicU32,
    rate_limited_millis: AtomicU64,
}

impl Call {
    pub(crate) fn new(metrics: RequestMetrics) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            attempts: AtomicU32::default(),
            rate_limited_millis: AtomicU64::default(),
        })
    }

    /// Counts a delay by the client-side rate limit.
    pub(crate) fn record_rate_limited(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.rate_limited_millis.fetch_add(millis, Ordering::Relaxed);
        self.metrics.record_rate_limited();
    }

    /// The span of the whole call.
    pub(crate) fn span(&self, method: &Method, uri: &Uri) -> Span {
        tracing::debug_span!(
            target: SPAN_TARGET,
            "arm",
            otel.name = self.metrics.request(),
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

    /// Completes the span of the call.
    pub(crate) fn finish(&self, span: &Span, outcome: &Result<BufferedResponse, ArmError>) {
        if span.is_disabled() {
            return;
        }
        span.record("headgate.tries", self.attempts.load(Ordering::Relaxed));
        span.record(
            "headgate.rate_limited_ms",
            self.rate_limited_millis.load(Ordering::Relaxed),
        );
        let status = match outcome {
            Ok(response) => Some(response.status()),
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

    /// Starts the span and the timer of the next attempt.
    pub(crate) fn start_attempt(self: Arc<Self>) -> Attempt {
        let earlier = self.attempts.fetch_add(1, Ordering::Relaxed);
        let span = tracing::debug_span!(
            target: SPAN_TARGET,
            "try",
            otel.kind = "client",
            otel.status_code = Empty,
            http.request.resend_count = earlier,
            http.response.status_code = Empty,
            error.type = Empty,
        );
        Attempt {
            call: self,
            span,
            started: Instant::now(),
        }
    }
}

/// One attempt that has not ended.
pub(crate) struct Attempt {
    call: Arc<Call>,
    span: Span,
    started: Instant,
}

impl Attempt {
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Completes the span and counts the attempt.
    pub(crate) fn finish(self, outcome: &Result<BufferedResponse, ArmError>) {
        let duration = self.started.elapsed();
        let code = match outcome {
            Ok(response) => {
                let status = response.status();
                self.span.record("http.response.status_code", status.as_u16());
                (!status.is_success()).then(|| {
                    let error = ErrorBody::parse(response.body());
                    if status == StatusCode::TOO_MANY_REQUESTS {
                        self.call.metrics.record_too_many_requests(is_rate_limited(&error));
                    }
                    code_label(&error.code, status.as_u16())
                })
            }
            Err(error) => Some(error.code().to_owned()),
        };
        if let Some(code) = &code {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", code.as_str());
        }
        self.call.metrics.record_attempt(duration, code.as_deref());
    }
}
