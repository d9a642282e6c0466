//! The spans of calls to ARM that a collector on a socket receives.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use bytes::Bytes;
use futures::FutureExt as _;
use headgate_azure::AdminState;
use headgate_http::otlp::TraceExporter;
use headgate_http::proxies::Proxies;
use hyper_util::client::proxy::matcher::Matcher;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::instrument::WithSubscriber as _;
use tracing_subscriber::layer::SubscriberExt as _;

use super::{TestBed, load_balancer, permit, pool_id};

/// The requests that the collector received.
type Received = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

async fn take(State(received): State<Received>, body: Bytes) -> StatusCode {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    received.lock().unwrap().push(request);
    StatusCode::OK
}

async fn collector() -> (SocketAddr, Received, JoinHandle<()>) {
    let received = Received::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/v1/traces", post(take));
    let router = router.with_state(Arc::clone(&received));
    let serving = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper_util::service::TowerToHyperService::new(router.clone());
            let io = hyper_util::rt::TokioIo::new(stream);
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
        }
    });
    (address, received, serving)
}

fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let text = |value: &Option<_>| match value {
        Some(Attribute::StringValue(text)) => text.clone(),
        Some(Attribute::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pairs = span.attributes.iter().map(|pair| {
        let value = pair.value.as_ref().map(|value| &value.value);
        (pair.key.as_str(), value.map(text).unwrap_or_default())
    });
    pairs.collect()
}

/// Checks some attributes of a span, and returns all.
fn assert_attributes<'a>(span: &'a Span, expected: &[(&str, &str)]) -> BTreeMap<&'a str, String> {
    let found = attributes(span);
    for (key, value) in expected {
        assert_eq!(found.get(*key).map(String::as_str), Some(*value), "{key} of {found:?}");
    }
    found
}

fn soon() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_mins(1)
}

#[tokio::test]
async fn calls_and_attempts_are_spans_without_secrets() {
    let (address, received, serving) = collector().await;
    let url = format!("http://{address}/v1/traces");
    let traces = TraceExporter::start(&url, "node-1", Proxies::from_env(), Handle::current()).unwrap();
    let subscriber = tracing_subscriber::registry().with(traces.layer());
    let bed = TestBed::new(&[load_balancer("lb", 3)]).await;
    let arm = bed
        .arm
        .with_request_labels("loadbalancer_adminstate", "admin_state_controller");
    let answer = bed.control("GET", "token", &json!(null));
    let token = answer["token"].as_str().unwrap();
    async {
        tracing::info!(secret = "in a log", "an event is no span");
        bed.answer("GET", "/pool$", 1, &json!({"status": 503}));
        let mut pool = arm.get_pool(&pool_id("pool"), soon()).await.unwrap();
        arm.get_pool(&pool_id("none"), soon()).await.unwrap_err();
        pool.set_admin_state(0, AdminState::Down);
        let operation = arm.put_pool(pool.encode().unwrap(), permit(), soon()).await.unwrap();
        arm.poll_until_done(&operation, soon()).await.unwrap();
        arm.get_pool(&pool.id, soon()).await.unwrap();
    }
    .with_subscriber(subscriber)
    .await;
    traces.shutdown().await;
    serving.abort();

    let received = received.lock().unwrap();
    let shown = format!("{received:?}");
    let first = &token[..40];
    for secret in [
        "in a log",
        "Bearer",
        "api-version",
        first,
        "client_secret",
        "\"secret\"",
    ] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
    }
    let resource = received[0].resource_spans[0].resource.as_ref().unwrap();
    let of = |key: &str| {
        let pair = resource.attributes.iter().find(|pair| pair.key == key)?;
        Some(format!("{:?}", pair.value))
    };
    assert!(of("service.name").unwrap().contains("headgate") && of("k8s.node.name").unwrap().contains("node-1"));
    let resources = received.iter().flat_map(|request| &request.resource_spans);
    let scopes = resources.flat_map(|resource| &resource.scope_spans);
    let spans: Vec<&Span> = scopes.flat_map(|scope| &scope.spans).collect();
    let calls: Vec<&&Span> = spans.iter().filter(|span| span.parent_span_id.is_empty()).collect();
    let found = |name: &str| -> Vec<&&&Span> {
        let name = format!("loadbalancer_adminstate_{name}");
        calls.iter().filter(|call| call.name == name).collect()
    };
    let [first, missing, read_back] = found("get_backend_pool")[..] else {
        panic!("three reads: {calls:#?}")
    };
    assert_eq!(found("update_backend_pool").len(), 1);
    assert!(!found("get_operation").is_empty());

    let path =
        "/subscriptions/sub/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/pool";
    let of_first = [
        ("http.request.method", "GET"),
        ("url.path", path),
        ("server.address", "127.0.0.1"),
        ("http.response.status_code", "200"),
        ("headgate.tries", "2"),
        ("headgate.rate_limited_ms", "0"),
    ];
    assert!(!assert_attributes(first, &of_first).contains_key("error.type"));
    let of_missing = [
        ("http.response.status_code", "404"),
        ("error.type", "NotFound"),
        ("headgate.error_class", "stale"),
        ("headgate.tries", "1"),
    ];
    assert_attributes(missing, &of_missing);
    let code = |span: &Span| span.status.as_ref().map_or(0, |status| status.code);
    assert_eq!((code(missing), code(read_back)), (2, 0), "2 is an error");
    let tries = spans.iter().filter(|span| span.parent_span_id == first.span_id);
    let found = tries.map(|span| {
        assert!(span.name == "try" && span.trace_id == first.trace_id);
        attributes(span)["http.response.status_code"].clone()
    });
    assert_eq!(found.collect::<Vec<_>>(), ["503", "200"]);
}

#[tokio::test]
async fn missing_or_silent_collector_does_not_block() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for address in [gone, silent.local_addr().unwrap()] {
        let url = format!("http://{address}/v1/traces");
        let traces = TraceExporter::start(&url, "n", Proxies::from_env(), Handle::current()).unwrap();
        let subscriber = tracing_subscriber::registry().with(traces.layer());
        // Nothing is sent meanwhile: this thread runs the client, too.
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..10_000 {
                drop(tracing::info_span!(target: "headgate::arm", "span").entered());
            }
        });
        traces.shutdown().await;
    }
    // Of the many batches the end waits for one that is not answered, and perhaps has begun another.
    let mut connections = Vec::new();
    while let Some(Ok(connection)) = silent.accept().now_or_never() {
        connections.push(connection);
    }
    assert!((1..=2).contains(&connections.len()), "{connections:?}");
}

#[tokio::test]
async fn spans_reach_a_collector_through_a_proxy() {
    // What is sent to a proxy is what a server would get, with the whole URL.
    let (address, received, serving) = collector().await;
    let proxies = Proxies::from(Matcher::builder().http(format!("http://{address}")).build());
    let url = "http://collector.invalid:4318/v1/traces";
    let traces = TraceExporter::start(url, "node-1", proxies, Handle::current()).unwrap();
    let subscriber = tracing_subscriber::registry().with(traces.layer());
    let send = async { drop(tracing::info_span!(target: "headgate", "sent").entered()) };
    send.with_subscriber(subscriber).await;
    traces.shutdown().await;
    serving.abort();
    assert_eq!(received.lock().unwrap().len(), 1);
}
