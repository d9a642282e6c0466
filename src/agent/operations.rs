//! The operations port and the probe socket: metrics, the process's own liveness and readiness, and
//! `/statusz` for people. Nothing here depends on taints, and nothing a load balancer should look at.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use headgate_clock::Clock;
use headgate_health::{Inputs, LastChange};
use headgate_http::server::{self, BindState, Binder, Limits, Metrics};
use headgate_node::{Source, Trouble};
use headgate_spot::Seen;
use headgate_telemetry::Format;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::addresses::Listeners;
use super::channels::Channels;
use super::health_thread::{Heartbeat, STUCK};
use super::services::View;
use super::status::Status;
use super::supervise::TaskInfo;
use super::{AgentError, Role};
use crate::config::Settings;

/// What operations look at.
#[derive(Clone)]
pub(super) struct Operations {
    pub(super) registry: Arc<Registry>,
    pub(super) inputs: Inputs,
    pub(super) last_change: watch::Receiver<Option<LastChange>>,
    pub(super) trouble: watch::Receiver<Option<Trouble>>,
    pub(super) listeners: Listeners,
    /// Of the health thread, where there is one.
    pub(super) heartbeat: Option<Arc<Heartbeat>>,
    pub(super) tasks: watch::Receiver<Vec<TaskInfo>>,
    pub(super) node_name: String,
    pub(super) proxy_server: Option<String>,
    /// Of per-Service health, where it is on.
    pub(super) services: Option<View>,
    /// Events of the VM, where they are asked for.
    pub(super) seen: Option<watch::Receiver<Seen>>,
    pub(super) role: Role,
    /// Whether it stands for election.
    pub(super) stands: bool,
    pub(super) terms: headgate_leader::LeaderMetrics,
    pub(super) started: Timestamp,
    pub(super) clock: Clock,
}

impl Operations {
    pub(super) fn new(
        (registry, terms): (Registry, headgate_leader::LeaderMetrics),
        channels: &Channels,
        heartbeat: Option<Arc<Heartbeat>>,
        tasks: watch::Receiver<Vec<TaskInfo>>,
        (node_name, role): (String, Role),
        settings: &Settings,
        clock: Clock,
    ) -> Self {
        Self {
            registry: Arc::new(registry),
            inputs: channels.inputs(),
            last_change: channels.last_change.subscribe(),
            trouble: channels.trouble.subscribe(),
            listeners: channels.listeners(role),
            heartbeat,
            tasks,
            node_name,
            proxy_server: settings.proxy.healthz_authority.clone(),
            services: channels.services.view().filter(|_| role.answers_probes()),
            seen: channels.azure.view().filter(|_| role.answers_probes()),
            role,
            stands: role.may_lead() && settings.azure.is_said(),
            terms,
            started: clock.now().wall,
            clock,
        }
    }
}

pub(super) fn router(operations: Operations) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/statusz", get(statusz))
        .with_state(operations)
}

async fn metrics(State(operations): State<Operations>, headers: HeaderMap) -> Response {
    let format = Format::from_accept(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    match headgate_telemetry::encode(&operations.registry, format) {
        Ok(text) => ([(CONTENT_TYPE, headgate_telemetry::content_type(format))], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("metrics cannot be written: {error}\n"),
        )
            .into_response(),
    }
}

/// Each check with its outcome, in the form of the API server's own `/readyz`; 503 if one fails.
fn checks(checks: &[(&str, Result<(), String>)]) -> Response {
    let mut text = String::new();
    for (name, outcome) in checks {
        // Writing to a String cannot fail.
        let _ = match outcome {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(why) => writeln!(text, "[-]{name} failed: {why}"),
        };
    }
    let good = checks.iter().all(|(_, outcome)| outcome.is_ok());
    let status = if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// Whether restarting this process could help: only if its health thread is stuck. That this answer is
/// given at all shows the other runtime to be moving.
async fn livez(State(operations): State<Operations>) -> Response {
    let moving = operations.heartbeat.map(|heartbeat| {
        let age = heartbeat.age();
        let moving = if age < STUCK {
            Ok(())
        } else {
            Err(format!("it has not moved for {} s", age.as_secs()))
        };
        ("health-thread", moving)
    });
    checks(moving.as_slice())
}

/// Whether this process answers for its node, where it does, on the grounds of something it knows.
async fn readyz(State(operations): State<Operations>) -> Response {
    let bound = operations.listeners.healthz.as_ref().map(|state| {
        let bound = match &*state.borrow() {
            BindState::Bound(_) => Ok(()),
            BindState::Waiting => Err("not bound yet".to_owned()),
            BindState::Failed(why) => Err(format!("cannot be bound: {why}")),
            BindState::Closing => Err("closing: the process was told to stop".to_owned()),
        };
        ("health-port", bound)
    });
    let report = operations.inputs.node.borrow();
    let known = if report.synced() || report.source == Source::Remembered {
        Ok(())
    } else {
        Err("not seen yet, and nothing is remembered".to_owned())
    };
    drop(report);
    let services = operations.services.as_ref().map(|view| ("services", view.ready()));
    let all: Vec<_> = bound.into_iter().chain([("node", known)]).chain(services).collect();
    checks(&all)
}

async fn statusz(State(operations): State<Operations>, headers: HeaderMap) -> Response {
    let status = Status::of(&operations);
    let json = headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|a| a.contains("application/json"));
    if json {
        Json(status).into_response()
    } else {
        status.to_string().into_response()
    }
}

/// Binds and serves the operations port until told to close.
pub(super) async fn serve_port(
    binder: Binder,
    router: Router,
    metrics: Metrics,
    close: watch::Receiver<bool>,
) -> Result<(), AgentError> {
    let (name, mut told) = (binder.name, close.clone());
    let listener = tokio::select! {
        bound = binder.bind(&metrics) => bound.map_err(|source| AgentError::Bind { listener: name, source })?,
        () = server::told(&mut told) => return Ok(()),
    };
    Ok(server::serve(name, listener, router, Limits::OPERATIONS, &metrics, close).await?)
}
