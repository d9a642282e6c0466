//! The two paths of the health port. Only the path of a request counts: every method, query and body gets the same
//! answer, as from kube-proxy. Other paths get 404 and are not counted.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use headgate_core::clock::Clock;
use hyper::StatusCode;

use super::answer::{self, Answer};
use super::metrics::Metrics;
use super::verdict::{Verdict, VerdictInputs};

struct HealthState {
    inputs: VerdictInputs,
    metrics: Metrics,
    clock: Clock,
}

/// The routes of the health port. Each request evaluates the inputs.
pub fn router(inputs: VerdictInputs, metrics: Metrics, clock: Clock) -> Router {
    Router::new()
        .route("/healthz", any(healthz))
        .route("/livez", any(livez))
        .fallback(not_found)
        .with_state(Arc::new(HealthState { inputs, metrics, clock }))
}

async fn healthz(State(health): State<Arc<HealthState>>) -> Response {
    let verdict: Verdict = health.inputs.verdict(health.clock.now());
    health.metrics.healthz.increment(verdict.is_healthz_ok());
    json_response(answer::healthz_answer(&verdict))
}

async fn livez(State(health): State<Arc<HealthState>>) -> Response {
    let verdict: Verdict = health.inputs.verdict(health.clock.now());
    health.metrics.livez.increment(verdict.is_livez_ok());
    json_response(answer::livez_answer(&verdict))
}

/// Builds the response without axum's conversions, which copy every header and take a measurable part of an answer's
/// time.
fn json_response(answer: Answer) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The response of Go's `http.NotFound`, headers included.
pub(super) async fn not_found() -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (StatusCode::NOT_FOUND, headers, "404 page not found\n")
}
