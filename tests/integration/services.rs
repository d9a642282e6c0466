//! Per-Service health: kube-proxy's own tests of it by name (specification: upstream
//! `pkg/proxy/healthcheck/healthcheck_test.go`) and what they leave out, in paused time over in-memory
//! sockets; then stories on the real API server with the real EndpointSlice controller.
//!
//! One difference in how the steps read: kube-proxy opens a port with a count of 0 and sets the counts
//! right afterwards. Here both are one step, so a port opens with its count.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use headgate_agent::health::ProxyStatus;
use headgate_agent::health::{
    services::Metrics, services::NodePortServer, services::PortStates, services::ServiceDrains, services::ServiceIndex,
    services::ServiceRoutes, services::ServiceTable, services::Sockets,
};
use headgate_core::clock::Clock;
use headgate_core::node::NodeReport;
use headgate_core::service::{EndpointSliceObject, ServiceObject};
use headgate_http::server::ServeError;
use headgate_test_kubernetes::series_value;
use http_body_util::BodyExt as _;
use hyper::{Method, Request};
use kube::runtime::watcher::Event;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::conformance::inputs;
use crate::in_memory_listener::InMemoryListener;

mod cluster;
mod hostile;
mod off;
mod ports;
mod upstream;

/// Sockets in memory, as upstream's fake listener.
#[derive(Clone, Default)]
struct FakeSockets(Arc<SyncMutex<FakeSocketsState>>);

#[derive(Default)]
struct FakeSocketsState {
    open: BTreeMap<SocketAddr, mpsc::UnboundedSender<DuplexStream>>,
    taken: BTreeSet<SocketAddr>,
    attempts: usize,
}

impl Sockets for FakeSockets {
    type Listener = InMemoryListener;

    fn bind(&self, address: SocketAddr) -> io::Result<InMemoryListener> {
        let mut inside = self.inside();
        inside.attempts += 1;
        if inside.taken.contains(&address) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "it is in use"));
        }
        let (hand, handed) = mpsc::unbounded_channel();
        inside.open.insert(address, hand);
        Ok(InMemoryListener(Mutex::new(handed)))
    }
}

impl FakeSockets {
    fn inside(&self) -> MutexGuard<'_, FakeSocketsState> {
        self.0.lock().unwrap()
    }

    fn open(&self) -> Vec<String> {
        let inside = self.inside();
        let open = inside.open.iter().filter(|(_, hand)| !hand.is_closed());
        open.map(|(address, _)| address.to_string()).collect()
    }

    fn taken(&self, address: &str, taken: bool) {
        let mut inside = self.inside();
        let address = address.parse().unwrap();
        if taken {
            inside.taken.insert(address);
        } else {
            inside.taken.remove(&address);
        }
    }

    fn connect(&self, address: &str) -> DuplexStream {
        let (ours, theirs) = duplex(64 * 1024);
        self.inside().open[&address.parse().unwrap()].send(theirs).unwrap();
        ours
    }
}

/// Answers about Services; the test controls the events of both watches, the proxy's health and the sockets.
struct Server {
    index: ServiceIndex,
    known: Vec<ServiceObject>,
    sockets: FakeSockets,
    tables: watch::Sender<Option<Arc<ServiceTable>>>,
    proxy: watch::Sender<ProxyStatus>,
    ports: watch::Receiver<PortStates>,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
    path: Router,
    registry: Registry,
    node: watch::Sender<NodeReport>,
}

/// Splits `namespace/name`.
fn parts(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap()
}

fn service(key: &str, port: u16, addresses: &[&str]) -> ServiceObject {
    let (namespace, name) = parts(key);
    let service = json!({"metadata": {"namespace": namespace, "name": name, "uid": format!("uid of {key}")},
        "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port, "clusterIPs": addresses}});
    serde_json::from_value(service).unwrap()
}

/// EndpointSlices with `count` ready endpoints on this node, and others that do not count.
fn slices(key: &str, kind: &str, count: u8) -> Vec<EndpointSliceObject> {
    let (namespace, name) = parts(key);
    let address = |number: u8| {
        if kind == "IPv6" {
            format!("fd01::{number:x}")
        } else {
            format!("10.1.0.{number}")
        }
    };
    let endpoint = |number, node: &str, ready: bool| json!({"addresses": [address(number)], "nodeName": node, "conditions": {"ready": ready}});
    // Every address is in two slices, as with two named target ports.
    let slice = |part: &str| {
        let mut endpoints: Vec<Value> = (1..=count).map(|number| endpoint(number, "here", true)).collect();
        endpoints.extend([endpoint(201, "there", true), endpoint(202, "here", false)]);
        let slice = json!({"metadata": {"namespace": namespace, "name": format!("{name}-{kind}-{part}"), "labels": {"kubernetes.io/service-name": name}},
            "addressType": kind, "endpoints": endpoints, "ports": [{"name": part, "port": 80}]});
        serde_json::from_value(slice).unwrap()
    };
    vec![slice("x"), slice("y")]
}

impl Server {
    fn new() -> Self {
        let clock = Clock::anchored("2026-01-02T03:04:05Z".parse().unwrap());
        let (node, proxy, inputs) = inputs(&clock);
        node.send_modify(|report| *report = report.without_node());
        let tables = watch::Sender::new(None);
        let state = watch::Sender::default();
        let ports = state.subscribe();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, tables.subscribe(), ports.clone(), None);
        let listeners = headgate_http::server::Metrics::register(&mut registry);
        let routes = ServiceRoutes {
            tables: tables.subscribe(),
            drains: ServiceDrains {
                inputs,
                reads: watch::Sender::new(None).subscribe(),
            },
            metrics,
            clock,
        };
        let sockets = FakeSockets::default();
        let path = routes.clone().path_router();
        let node_ports = NodePortServer {
            routes,
            sockets: sockets.clone(),
            own_ports: vec![10456, 10457],
            state,
        };
        let stop = CancellationToken::new();
        Self {
            index: ServiceIndex::new("here".to_owned()),
            known: Vec::new(),
            sockets,
            tables,
            proxy,
            ports,
            serving: tokio::spawn(node_ports.run(stop.clone(), listeners)),
            stop,
            path,
            registry,
            node,
        }
    }

    /// Lists no Services and no EndpointSlices.
    async fn synced() -> Self {
        let mut server = Self::new();
        server.sync_endpoints(&[]).await;
        server.sync_services(&[]).await;
        server
    }

    async fn settled(&mut self) {
        if let Some(table) = self.index.table() {
            self.tables.send_replace(Some(Arc::new(table)));
        }
        // In paused time, a sleep ends after all tasks are idle and all closed sockets are gone.
        sleep(Duration::from_secs(1)).await;
    }

    /// Upstream's `SyncServices`: replaces all Services.
    async fn sync_services(&mut self, services: &[(&str, u16)]) {
        let services = services.iter().map(|(key, port)| service(key, *port, &["10.0.0.1"]));
        self.list_services(services.collect()).await;
    }

    async fn list_services(&mut self, services: Vec<ServiceObject>) {
        self.known.clone_from(&services);
        self.index.apply_service(Event::Init);
        for service in services {
            self.index.apply_service(Event::InitApply(service));
        }
        self.index.apply_service(Event::InitDone);
        self.settled().await;
    }

    /// Upstream's `SyncEndpoints`: replaces all counts.
    async fn sync_endpoints(&mut self, counts: &[(&str, u8)]) {
        let slices = counts.iter().flat_map(|(key, count)| slices(key, "IPv4", *count));
        self.list_slices(slices.collect()).await;
    }

    async fn list_slices(&mut self, slices: Vec<EndpointSliceObject>) {
        self.index.apply_slice(Event::Init);
        for slice in slices {
            self.index.apply_slice(Event::InitApply(slice));
        }
        self.index.apply_slice(Event::InitDone);
        self.settled().await;
    }

    fn services(&self) -> usize {
        self.tables.borrow().as_ref().map_or(0, |table| table.iter().count())
    }

    fn counted(&self, line: &str) -> u64 {
        series_value(&self.registry, line)
    }

    fn answered(&self) -> [u64; 2] {
        ["200", "503"].map(|code| self.counted(&format!("headgate_service_healthz_total{{code=\"{code}\"}}")))
    }

    /// One request to a Service's port: status, fields and exact headers, and that it was counted.
    async fn expect(&self, key: &str, address: &str, endpoints: u32, proxy_healthy: bool) {
        let good = endpoints > 0 && proxy_healthy;
        let mut counts = self.answered();
        let mut connection = self.sockets.connect(address);
        let answer = ask(&mut connection, "GET /any/path?at=all").await;
        assert_answer(&answer, key, endpoints, proxy_healthy);
        counts[usize::from(!good)] += 1;
        assert_eq!(self.answered(), counts);
    }

    async fn at_path(&self, method: Method, path: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = self.path.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

fn body(key: &str, endpoints: u32, proxy_healthy: bool) -> String {
    let (namespace, name) = parts(key);
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\t\"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": {proxy_healthy}\n}}"
    )
}

/// The whole response with its headers, except `Date`.
fn assert_answer(answer: &str, key: &str, endpoints: u32, proxy_healthy: bool) {
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(text, body(key, endpoints, proxy_healthy), "{answer}");
    let status = if endpoints > 0 && proxy_healthy {
        "HTTP/1.1 200 OK"
    } else {
        "HTTP/1.1 503 Service Unavailable"
    };
    let (weight, length) = (
        format!("X-Load-Balancing-Endpoint-Weight: {endpoints}"),
        format!("Content-Length: {}", text.len()),
    );
    let mut lines: Vec<_> = head
        .lines()
        .filter(|line| !line.starts_with("Date: ") && *line != "Connection: close")
        .collect();
    assert_eq!(lines.remove(0), status);
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            &length,
            "Content-Type: application/json",
            "X-Content-Type-Options: nosniff",
            &weight
        ]
    );
}

/// Sends one request on an open connection; returns the whole response.
async fn ask(connection: &mut DuplexStream, line: &str) -> String {
    let request = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    sleep(Duration::from_millis(10)).await;
    let mut bytes = vec![0; 4096];
    let length = connection.read(&mut bytes).await.unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}
