//! The health port's two paths. The request is never looked at beyond its path: every method, query
//! and body gets the same answer, as from kube-proxy; other paths are not found and counted nowhere.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use headgate_clock::Clock;
use hyper::StatusCode;

use super::answer::{self, Answer};
use super::metrics::Metrics;
use super::verdict::{Inputs, Verdict};

struct Health {
    inputs: Inputs,
    metrics: Metrics,
    clock: Clock,
}

/// The routes, evaluated at each request from the inputs.
pub fn router(inputs: Inputs, metrics: Metrics, clock: Clock) -> Router {
    Router::new()
        .route("/healthz", any(healthz))
        .route("/livez", any(livez))
        .fallback(not_found)
        .with_state(Arc::new(Health { inputs, metrics, clock }))
}

async fn healthz(State(health): State<Arc<Health>>) -> Response {
    let verdict: Verdict = health.inputs.verdict(health.clock.now());
    health.metrics.healthz.count(verdict.healthz());
    json(answer::healthz(&verdict))
}

async fn livez(State(health): State<Arc<Health>>) -> Response {
    let verdict: Verdict = health.inputs.verdict(health.clock.now());
    health.metrics.livez.count(verdict.livez());
    json(answer::livez(&verdict))
}

/// Made by hand: conversions that copy every header are a part of the time an answer takes.
fn json(answer: Answer) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Go's words, headers included.
pub(super) async fn not_found() -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (StatusCode::NOT_FOUND, headers, "404 page not found\n")
}
