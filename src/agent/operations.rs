//! The operations port and the probe socket: metrics, the process's own liveness and readiness, and `/statusz` for
//! operators. No answer here depends on signals, so no load balancer should probe it.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use futures::stream;
use headgate_agent::connections::ConnectionsView;
use headgate_agent::health::{LastChange, VerdictInputs};
use headgate_agent::spot::EventsSnapshot;
use headgate_core::telemetry::MetricsFormat;
use headgate_http::server::BindState;
use headgate_kubernetes::WatchFailure;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::watch;

use super::addresses::Listeners;
use super::cluster_view::{ALL_NODES, ClusterView, PATH};
use super::health_thread::{HEARTBEAT_TIMEOUT, Heartbeat};
use super::service_health::ServiceHealthView;
use super::{Process, statusz_page};
use crate::agent_status::{AgentStatus, TaskStatus};

/// The most bytes of a large body that a connection copies at once.
const MAX_FRAME_BYTES: usize = 64 * 1024;

/// What the answers are computed from.
#[derive(Clone)]
pub(super) struct Operations {
    pub(super) process: Process,
    pub(super) registry: Arc<Registry>,
    pub(super) inputs: VerdictInputs,
    pub(super) last_change: watch::Receiver<Option<LastChange>>,
    /// The current failure of the own-Node watch.
    pub(super) watch_failure: watch::Receiver<Option<WatchFailure>>,
    pub(super) listeners: Listeners,
    /// The heartbeat of the health thread, if this process has one.
    pub(super) heartbeat: Option<Arc<Heartbeat>>,
    pub(super) tasks: watch::Receiver<Vec<TaskStatus>>,
    /// Service health, if it is on.
    pub(super) services: Option<ServiceHealthView>,
    /// The events of the VM, if Scheduled Events are enabled.
    pub(super) scheduled_events: Option<watch::Receiver<EventsSnapshot>>,
    /// The connections through the node, if they are counted.
    pub(super) connections: Option<watch::Receiver<ConnectionsView>>,
    /// The state of the cluster, if this instance leads.
    pub(super) cluster: ClusterView,
    pub(super) started_at: Timestamp,
}

/// The routes of the operations port and of the probe socket.
pub(super) fn router(operations: Operations) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/statusz", get(statusz))
        .route("/statusz.css", get(statusz_page::style))
        .route(PATH, get(cluster))
        .with_state(operations)
}

async fn metrics(State(operations): State<Operations>, headers: HeaderMap) -> Response {
    let format = MetricsFormat::from_accept(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    match headgate_core::telemetry::encode_metrics(&operations.registry, format) {
        Ok(text) => ([(CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the metrics cannot be encoded: {error}\n"),
        )
            .into_response(),
    }
}

/// One line of `/livez` or `/readyz`.
struct Check {
    name: &'static str,
    outcome: Result<(), String>,
}

/// The outcomes of checks in the format of the API server's `/readyz`; 503 if one failed.
fn check_response(checks: &[Check]) -> Response {
    let mut text = String::new();
    for Check { name, outcome } in checks {
        // Writing to a String cannot fail.
        let _ = match outcome {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(error) => writeln!(text, "[-]{name} failed: {error}"),
        };
    }
    let is_ok = checks.iter().all(|check| check.outcome.is_ok());
    let status = if is_ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// Fails if a restart of the process could help: if its health thread is stuck. The answer itself shows that the
/// other runtime works.
async fn livez(State(operations): State<Operations>) -> Response {
    let health_thread = operations.heartbeat.map(|heartbeat| {
        let age = heartbeat.age();
        let outcome = if age < HEARTBEAT_TIMEOUT {
            Ok(())
        } else {
            Err(format!("no heartbeat for {} s", age.as_secs()))
        };
        Check {
            name: "health-thread",
            outcome,
        }
    });
    check_response(health_thread.as_slice())
}

/// Fails until the health port is bound, if the role has one, and the state of the Node is known.
async fn readyz(State(operations): State<Operations>) -> Response {
    let health_port = operations.listeners.healthz.as_ref().map(|state| {
        let outcome = match &*state.borrow() {
            BindState::Bound(_) => Ok(()),
            BindState::Waiting => Err("not bound yet".to_owned()),
            BindState::Failed(error) => Err(format!("cannot be bound: {error}")),
            BindState::Closing => Err("closing: the process stops".to_owned()),
        };
        Check {
            name: "health-port",
            outcome,
        }
    });
    let report = operations.inputs.node.borrow();
    let outcome = if report.is_known() {
        Ok(())
    } else {
        Err("not observed yet, and there is no remembered state".to_owned())
    };
    drop(report);
    let node = Check { name: "node", outcome };
    let services = operations.services.as_ref().map(|view| Check {
        name: "services",
        outcome: view.ready(),
    });
    let all: Vec<_> = health_port.into_iter().chain([node]).chain(services).collect();
    check_response(&all)
}

async fn statusz(State(operations): State<Operations>, headers: HeaderMap) -> Response {
    let statusz = AgentStatus::of(&operations);
    let accept = headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .unwrap_or_default();
    if accept.contains("application/json") {
        Json(statusz).into_response()
    } else if statusz_page::accepts_page(accept) {
        statusz_page::response(&statusz, operations.cluster.shown(false).await.as_ref())
    } else {
        statusz.to_string().into_response()
    }
}

/// The state of the cluster as JSON; `null` from a leader without load balancers, 503 in a process that does not lead.
async fn cluster(State(operations): State<Operations>, RawQuery(query): RawQuery) -> Response {
    if operations.cluster.leads_without_load_balancers() {
        return Json(Value::Null).into_response();
    }
    let Some(shown) = operations.cluster.shown(true).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "this process does not lead\n").into_response();
    };
    match shown.json(query.as_deref() == Some(ALL_NODES)).await {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], shared_body(text)).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// A body that is copied piece by piece while it is sent: hyper copies each frame whole, and a peer may read slowly.
fn shared_body(text: Bytes) -> Body {
    let frames = stream::unfold(text, async |mut rest| {
        let frame = rest.split_to(rest.len().min(MAX_FRAME_BYTES));
        (!frame.is_empty()).then_some((Ok::<_, Infallible>(frame), rest))
    });
    Body::from_stream(frames)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn a_large_body_is_sent_in_pieces_that_share_its_memory() {
        let text = Bytes::from(vec![b'a'; MAX_FRAME_BYTES * 2 + 1]);
        let frames: Vec<_> = shared_body(text.clone()).into_data_stream().collect().await;
        let frames: Vec<Bytes> = frames.into_iter().map(Result::unwrap).collect();
        let lengths: Vec<_> = frames.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [MAX_FRAME_BYTES, MAX_FRAME_BYTES, 1]);
        assert_eq!(frames[1].as_ptr(), text[MAX_FRAME_BYTES..].as_ptr());
    }
}
