//! kube-proxy's own health tests, by name, against our answers (specification: upstream
//! `pkg/proxy/healthcheck/healthcheck_test.go`), each step with its counters, in paused time.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use headgate_agent::health::{LastChange, ProxyPart, ProxyStatus, VerdictInputs};
use headgate_core::clock::Clock;
use headgate_core::node::{Node, NodeReport, SignalRules, Taint};
use headgate_core::service::IpFamily;
use headgate_core::telemetry::{MetricsFormat, encode_metrics};
use http_body_util::BodyExt as _;
use hyper::{Method, Request};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::watch;
use tower::ServiceExt as _;

const V4: ProxyPart = ProxyPart::Family(IpFamily::IPv4);
const V6: ProxyPart = ProxyPart::Family(IpFamily::IPv6);
const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The health port's routes; the test controls all their inputs.
struct Server {
    router: Router,
    registry: Registry,
    clock: Clock,
    node: watch::Sender<NodeReport>,
    proxy: watch::Sender<ProxyStatus>,
    path: &'static str,
    counts: [u64; 2],
}

/// What a verdict follows from, and its senders.
pub(crate) fn inputs(clock: &Clock) -> (watch::Sender<NodeReport>, watch::Sender<ProxyStatus>, VerdictInputs) {
    let node = watch::Sender::new(NodeReport::initial(None, &SignalRules::default(), clock.now()));
    let proxy = watch::Sender::new(ProxyStatus::new(Duration::from_secs(10)));
    let inputs = VerdictInputs {
        node: node.subscribe(),
        proxy: proxy.subscribe(),
        notices: watch::Sender::default().subscribe(),
    };
    (node, proxy, inputs)
}

impl Server {
    fn new(path: &'static str) -> Self {
        let clock = Clock::anchored("2026-01-02T03:04:05Z".parse().unwrap());
        let (node, proxy, inputs) = inputs(&clock);
        let mut registry = Registry::default();
        let (_, last_change) = watch::channel(None::<LastChange>);
        let metrics =
            headgate_agent::health::Metrics::register(&mut registry, inputs.clone(), last_change, clock.clone());
        let router = headgate_agent::health::router(inputs, metrics, clock.clone());
        Self {
            router,
            registry,
            clock,
            node,
            proxy,
            path,
            counts: [0, 0],
        }
    }

    fn updated(&self, parts: &[ProxyPart]) {
        let now = self.clock.now().wall;
        self.proxy
            .send_modify(|status| parts.iter().for_each(|part| status.mark_updated(*part, now)));
    }

    fn queued(&self, parts: &[ProxyPart]) {
        let now = self.clock.now();
        self.proxy
            .send_modify(|status| parts.iter().for_each(|part| status.mark_pending(*part, now)));
    }

    fn sees_node(&self, taints: &[&str], deleting: bool) {
        let node = Node {
            uid: "u".to_owned(),
            is_deleting: deleting,
            taints: taints.iter().map(|key| Taint::new(key, "NoSchedule")).collect(),
            ..Node::default()
        };
        let rules = SignalRules::new([TAINT], &headgate_core::node::SignalMatcher::BUILT_IN);
        let report = self
            .node
            .borrow()
            .with_node(node.with_signals(&rules), self.clock.now());
        self.node.send_replace(report);
    }

    async fn request(&self, method: Method, path: &str) -> (u16, Vec<(String, String)>, Vec<u8>) {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let headers = response.headers().iter();
        let headers = headers
            .map(|(n, v)| (n.to_string(), v.to_str().unwrap().to_owned()))
            .collect();
        (
            response.status().as_u16(),
            headers,
            response.into_body().collect().await.unwrap().to_bytes().to_vec(),
        )
    }

    /// One request: its code, the body's fields, the exact headers, and the running totals of both codes.
    async fn expect(&mut self, code: u16, families: &[(&str, bool)], eligible: Option<bool>) -> Value {
        let (got, headers, body) = self.request(Method::GET, self.path).await;
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(got, code, "{body}");
        self.counts[usize::from(code == 503)] += 1;
        for name in ["content-type", "x-content-type-options"] {
            let values: Vec<_> = headers
                .iter()
                .filter(|(n, _)| n == name)
                .map(|(_, v)| v.as_str())
                .collect();
            assert_eq!(
                values,
                [if name == "content-type" {
                    "application/json"
                } else {
                    "nosniff"
                }]
            );
        }
        let now = self.clock.now().wall.to_string();
        assert_eq!(body["currentTime"], now.as_str());
        if code == 200 {
            assert_eq!(body["lastUpdated"], now.as_str());
        } else {
            assert_ne!(body["lastUpdated"], now.as_str());
        }
        assert_eq!(body.get("nodeEligible"), eligible.map(Value::Bool).as_ref(), "{body}");
        let status = body
            .get("status")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        let got: Vec<_> = status
            .iter()
            .map(|(family, s)| (family.as_str(), s["healthy"].as_bool().unwrap()))
            .collect();
        assert_eq!(got, families, "{body}");
        assert_eq!(
            body["healthy"],
            Value::Bool(families.iter().all(|(_, healthy)| *healthy)),
            "{body}"
        );
        self.assert_counts();
        body
    }

    fn assert_counts(&self) {
        let text = encode_metrics(&self.registry, MetricsFormat::OpenMetrics).unwrap();
        for (code, count) in [("200", self.counts[0]), ("503", self.counts[1])] {
            let name = self.path.trim_start_matches('/');
            let line = format!("proxy_{name}_total{{code=\"{code}\"}} {count}");
            assert!(text.lines().any(|l| l == line), "no {line} in {text}");
        }
    }
}

async fn step(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

const GOOD: &[(&str, bool)] = &[("IPv4", true), ("IPv6", true)];
const BAD4: &[(&str, bool)] = &[("IPv4", false), ("IPv6", true)];
const BAD6: &[(&str, bool)] = &[("IPv4", true), ("IPv6", false)];
const BAD: &[(&str, bool)] = &[("IPv4", false), ("IPv6", false)];

/// Upstream's shared sequence, with a health timeout of 10 s.
async fn shared_sequence(server: &mut Server, eligible: Option<bool>) {
    server.expect(200, &[], eligible).await;
    server.updated(&[V4, V6]);
    server.expect(200, GOOD, eligible).await;
    step(25).await;
    let body = server.expect(200, GOOD, eligible).await;
    assert_eq!(
        body["status"]["IPv4"]["lastUpdated"], "2026-01-02T03:04:05Z",
        "never replaced by now"
    );
    for (queued, families) in [(&[V4][..], BAD4), (&[V6], BAD6), (&[V4, V6], BAD)] {
        let last = server.clock.now().wall;
        server.queued(queued);
        step(25).await;
        let body = server.expect(503, families, eligible).await;
        assert!(body["lastUpdated"].as_str().unwrap() <= last.to_string().as_str());
        server.updated(&[V4, V6]);
        step(5).await;
        server.expect(200, GOOD, eligible).await;
    }
    server.queued(&[V6]);
    step(25).await;
    server.expect(503, BAD6, eligible).await;
    server.updated(&[V4]);
    let updated = server.clock.now().wall.to_string();
    step(1).await;
    let body = server.expect(503, BAD6, eligible).await;
    assert_eq!(body["lastUpdated"], updated.as_str(), "the newest update of any family");
    server.updated(&[V6]);
    server.expect(200, GOOD, eligible).await;
    server.queued(&[V4, V6]);
    step(25).await;
    server.expect(503, BAD, eligible).await;
    server.updated(&[V4, V6]);
    step(1).await;
    server.expect(200, GOOD, eligible).await;
}

#[tokio::test(start_paused = true)]
async fn test_healthz_server() {
    let mut server = Server::new("/healthz");
    server.sees_node(&[], false);
    shared_sequence(&mut server, Some(true)).await;
    for (taints, deleting, good) in [
        (&["other"][..], false, true),
        (&[TAINT], false, false),
        (&["other"], false, true),
        (&[], true, false),
    ] {
        step(1).await;
        server.sees_node(taints, deleting);
        let body = server.expect(if good { 200 } else { 503 }, GOOD, Some(good)).await;
        assert_eq!(body["healthy"], true, "a healthy proxy on a node that goes away");
    }
    assert_eq!(server.counts, [10, 8], "upstream's totals");
}

#[tokio::test(start_paused = true)]
async fn test_livez_server() {
    let mut server = Server::new("/livez");
    shared_sequence(&mut server, None).await;
    for (taints, deleting) in [
        (&["other"][..], false),
        (&[TAINT], false),
        (&["other"], false),
        (&[], true),
    ] {
        step(1).await;
        server.sees_node(taints, deleting);
        server.expect(200, GOOD, None).await;
    }
    assert_eq!(server.counts, [12, 6]);
}

/// Not tested upstream: methods, queries and other paths, over the routes.
#[tokio::test(start_paused = true)]
async fn every_method_gets_the_same_answer_and_other_paths_are_not_found() {
    let mut server = Server::new("/healthz");
    let (_, _, want) = server.request(Method::GET, "/healthz").await;
    for method in [
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
        Method::PATCH,
        Method::TRACE,
    ] {
        let (code, _, body) = server.request(method.clone(), "/healthz?verbose=1&x").await;
        assert_eq!((code, &body), (200, &want), "{method}");
    }
    let (code, headers, body) = server.request(Method::HEAD, "/healthz").await;
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map(|(_, value)| value.as_str());
    assert_eq!(
        (code, length, body.len()),
        (200, Some(want.len().to_string().as_str()), 0)
    );
    server.counts = [8, 0];
    server.assert_counts();
    for path in [
        "/",
        "/healthz/",
        "/HEALTHZ",
        "/metrics",
        "//healthz",
        "/a/../healthz",
        "/livez/x",
    ] {
        let (code, headers, body) = server.request(Method::GET, path).await;
        assert_eq!((code, body.as_slice()), (404, &b"404 page not found\n"[..]), "{path}");
        assert!(headers.contains(&("content-type".into(), "text/plain; charset=utf-8".into())));
        assert!(headers.contains(&("x-content-type-options".into(), "nosniff".into())));
    }
    server.assert_counts();
}

/// Not tested upstream: many concurrent requests while all inputs change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_are_all_counted() {
    let mut server = Server::new("/healthz");
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let router = server.router.clone();
            tokio::spawn(async move {
                let mut bad = 0;
                for _ in 0..200 {
                    let request = Request::get("/healthz").body(Body::empty()).unwrap();
                    bad += u64::from(router.clone().oneshot(request).await.unwrap().status() == 503);
                }
                bad
            })
        })
        .collect();
    for round in 0..100 {
        server.sees_node(if round % 2 == 0 { &[TAINT] } else { &[] }, false);
        server.updated(&[V4]);
        tokio::task::yield_now().await;
    }
    let mut bad = 0;
    for client in clients {
        bad += client.await.unwrap();
    }
    server.counts = [8 * 200 - bad, bad];
    server.assert_counts();
}
