//! A fake IMDS with injected faults, which records its requests.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use headgate_http::server::{self, Limits};
use headgate_test_kubernetes::{eventually, met};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// How the fake answers.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// 200 with this body.
    None(String),
    /// Another status.
    Status(u16, String),
    /// 200 with this body, later.
    Slow(Duration, String),
    /// Never answers.
    Hang,
}

/// A request that the fake received.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) line: String,
    pub(crate) metadata: Option<String>,
    pub(crate) conditional: bool,
    pub(crate) at: Instant,
}

#[derive(Clone)]
struct Shared {
    fault: Arc<Mutex<Fault>>,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
}

/// A running fake IMDS; it ends with the test.
pub(crate) struct Imds {
    pub(crate) address: SocketAddr,
    shared: Shared,
}

impl Imds {
    /// Starts a fake that lists no events.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Shared {
            fault: Arc::new(Mutex::new(Fault::None(document(1, &[])))),
            asked: Arc::default(),
        };
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let metrics = server::Metrics::register(&mut Registry::default());
        tokio::spawn(async move {
            let never_stopped = CancellationToken::new();
            server::serve("imds", listener, router, Limits::OPERATIONS, &metrics, never_stopped).await
        });
        Self { address, shared }
    }

    /// Sets how further requests are answered.
    pub(crate) fn set(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap() = fault;
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Waits for this number of further requests.
    pub(crate) async fn asked(&self, times: usize) {
        let before = self.requests().len();
        eventually(Duration::from_secs(20), "more questions", async || {
            let now = self.requests().len();
            met(now >= before + times, now)
        })
        .await;
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let headers: &HeaderMap = request.headers();
    shared.asked.lock().unwrap().push(RecordedRequest {
        line: format!("{} {}", request.method(), request.uri()),
        metadata: headers.get("metadata").map(|value| value.to_str().unwrap().to_owned()),
        conditional: headers.keys().any(|name| name.as_str().starts_with("if-")),
        at: Instant::now(),
    });
    let fault = shared.fault.lock().unwrap().clone();
    match fault {
        // An etag; clients must not send it back.
        Fault::None(body) => ([("etag", "\"1\"")], body).into_response(),
        Fault::Status(status, body) => (StatusCode::from_u16(status).unwrap(), body).into_response(),
        Fault::Slow(delay, body) => {
            sleep(delay).await;
            body.into_response()
        }
        Fault::Hang => std::future::pending().await,
    }
}

/// An event in Azure's format; without a time it has started.
pub(crate) fn event(id: &str, kind: &str, not_before: &str, resources: &[&str]) -> Value {
    let status = if not_before.is_empty() { "Started" } else { "Scheduled" };
    json!({"EventId": id, "EventStatus": status, "EventType": kind, "ResourceType": "VirtualMachine",
        "Resources": resources, "NotBefore": not_before, "Description": "", "EventSource": "Platform", "DurationInSeconds": -1})
}

/// A document in Azure's format.
pub(crate) fn document(incarnation: i64, events: &[Value]) -> String {
    json!({"DocumentIncarnation": incarnation, "Events": events}).to_string()
}
