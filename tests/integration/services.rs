//! Per-Service health: kube-proxy's own tests of it by name (specification: upstream
//! `pkg/proxy/healthcheck/healthcheck_test.go`) and what they leave out, in paused time over in-memory
//! sockets; then stories on the real API server with the real EndpointSlice controller.
//!
//! One difference in how the steps read: kube-proxy opens a port with a count of 0 and sets the counts
//! right afterwards. Here both are one step, so a port opens with its count.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use headgate::clock::Clock;
use headgate::config::Cidr;
use headgate::health::services::{Index, Metrics, NodePorts, Ports, Routes, SlimService, SlimSlice, Sockets, Table};
use headgate::health::{Inputs, Part, ProxyStatus};
use headgate::node::Report;
use headgate::server::{Incoming, ServeError};
use headgate::telemetry::{Format, encode};
use http_body_util::BodyExt as _;
use hyper::{Method, Request};
use kube::runtime::watcher::Event;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower::ServiceExt as _;

mod cluster;
mod hostile;
mod off;

/// Connections that a test hands in.
struct Handed(Mutex<mpsc::UnboundedReceiver<DuplexStream>>);

impl Incoming for Handed {
    type Stream = DuplexStream;

    async fn accept(&self) -> io::Result<DuplexStream> {
        match self.0.lock().await.recv().await {
            Some(stream) => Ok(stream),
            None => std::future::pending().await,
        }
    }

    async fn steer_away(&self) -> Vec<DuplexStream> {
        Vec::new()
    }
}

/// A machine without a network: upstream's fake listener.
#[derive(Clone, Default)]
struct Machine(Arc<SyncMutex<Inside>>);

#[derive(Default)]
struct Inside {
    open: BTreeMap<SocketAddr, mpsc::UnboundedSender<DuplexStream>>,
    taken: BTreeSet<SocketAddr>,
    local: Vec<IpAddr>,
    attempts: usize,
}

impl Sockets for Machine {
    type Incoming = Handed;

    fn bind(&self, address: SocketAddr) -> io::Result<Handed> {
        let mut inside = self.inside();
        inside.attempts += 1;
        if inside.taken.contains(&address) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody has it"));
        }
        let (hand, handed) = mpsc::unbounded_channel();
        inside.open.insert(address, hand);
        Ok(Handed(Mutex::new(handed)))
    }

    fn local_addresses(&self) -> io::Result<Vec<IpAddr>> {
        Ok(self.inside().local.clone())
    }
}

impl Machine {
    fn inside(&self) -> MutexGuard<'_, Inside> {
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

/// The two watches' events, the proxy and the machine in the test's hand.
struct Server {
    index: Index,
    known: Vec<SlimService>,
    machine: Machine,
    tables: watch::Sender<Option<Arc<Table>>>,
    proxy: watch::Sender<ProxyStatus>,
    ports: watch::Receiver<Ports>,
    close: watch::Sender<bool>,
    serving: JoinHandle<Result<(), ServeError>>,
    path: Router,
    registry: Registry,
    _others: (watch::Sender<Report>, watch::Sender<bool>),
}

/// `ns/name` as its parts.
fn parts(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap()
}

fn service(key: &str, port: u16, addresses: &[&str]) -> SlimService {
    let (namespace, name) = parts(key);
    let service = json!({"metadata": {"namespace": namespace, "name": name, "uid": format!("uid of {key}")},
        "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": port, "clusterIPs": addresses}});
    serde_json::from_value(service).unwrap()
}

/// EndpointSlices with `count` ready endpoints on this node, and others that do not count.
fn slices(key: &str, kind: &str, count: u8) -> Vec<SlimSlice> {
    let (namespace, name) = parts(key);
    let address = |number: u8| {
        if kind == "IPv6" {
            format!("fd01::{number:x}")
        } else {
            format!("10.1.0.{number}")
        }
    };
    let endpoint = |number, node: &str, ready: bool| json!({"addresses": [address(number)], "nodeName": node, "conditions": {"ready": ready}});
    // Every address stands in two slices, as with two named target ports.
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
    fn new(selection: &[&str], local: &[&str]) -> Self {
        let clock = Clock::anchored("2026-01-02T03:04:05Z".parse().unwrap());
        let node = watch::Sender::new(Report::initial(None, &[], clock.now()));
        let proxy = watch::Sender::new(ProxyStatus::new(Duration::from_secs(10)));
        let stopping = watch::Sender::new(false);
        let inputs = Inputs {
            node: node.subscribe(),
            proxy: proxy.subscribe(),
            stopping: stopping.subscribe(),
            notices: watch::Sender::default().subscribe(),
        };
        let tables = watch::Sender::new(None);
        let state = watch::Sender::default();
        let ports = state.subscribe();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, tables.subscribe(), ports.clone());
        let routes = Routes {
            tables: tables.subscribe(),
            inputs,
            metrics,
            clock,
        };
        let machine = Machine::default();
        machine.inside().local = local.iter().map(|ip| ip.parse().unwrap()).collect();
        let path = routes.clone().path_router();
        let node_ports = NodePorts {
            routes,
            selection: selection.iter().map(|range| range.parse::<Cidr>().unwrap()).collect(),
            sockets: machine.clone(),
            state,
        };
        let (close, closing) = watch::channel(false);
        Self {
            index: Index::new("here".to_owned()),
            known: Vec::new(),
            machine,
            tables,
            proxy,
            ports,
            close,
            serving: tokio::spawn(node_ports.run(closing)),
            path,
            registry,
            _others: (node, stopping),
        }
    }

    /// Both kinds are listed, and empty.
    async fn synced(selection: &[&str], local: &[&str]) -> Self {
        let mut server = Self::new(selection, local);
        server.sync_endpoints(&[]).await;
        server.sync_services(&[]).await;
        server
    }

    async fn settled(&mut self) {
        if let Some(table) = self.index.table() {
            self.tables.send_replace(Some(Arc::new(table)));
        }
        // Virtual time: all that can be done is done, and what is closed is closed.
        sleep(Duration::from_secs(1)).await;
    }

    /// Upstream's `SyncServices`: exactly these Services are there.
    async fn sync_services(&mut self, services: &[(&str, u16)]) {
        let services = services.iter().map(|(key, port)| service(key, *port, &["10.0.0.1"]));
        self.list_services(services.collect()).await;
    }

    async fn list_services(&mut self, services: Vec<SlimService>) {
        self.known.clone_from(&services);
        self.index.service(Event::Init);
        for service in services {
            self.index.service(Event::InitApply(service));
        }
        self.index.service(Event::InitDone);
        self.settled().await;
    }

    /// Upstream's `SyncEndpoints`: exactly these counts are there.
    async fn sync_endpoints(&mut self, counts: &[(&str, u8)]) {
        let slices = counts.iter().flat_map(|(key, count)| slices(key, "IPv4", *count));
        self.list_slices(slices.collect()).await;
    }

    async fn list_slices(&mut self, slices: Vec<SlimSlice>) {
        self.index.slice(Event::Init);
        for slice in slices {
            self.index.slice(Event::InitApply(slice));
        }
        self.index.slice(Event::InitDone);
        self.settled().await;
    }

    fn services(&self) -> usize {
        self.tables.borrow().as_ref().map_or(0, |table| table.len())
    }

    fn counted(&self, line: &str) -> u64 {
        let text = encode(&self.registry, Format::OpenMetrics).unwrap();
        let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {line} in {text}")).parse().unwrap()
    }

    fn answered(&self) -> [u64; 2] {
        ["200", "503"].map(|code| self.counted(&format!("headgate_service_healthz_total{{code=\"{code}\"}}")))
    }

    /// One request to a Service's port: status, fields and exact headers, and that it was counted.
    async fn expect(&self, key: &str, address: &str, endpoints: u32, proxy_healthy: bool) {
        let good = endpoints > 0 && proxy_healthy;
        let mut counts = self.answered();
        let mut connection = self.machine.connect(address);
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

/// The whole answer, headers included, save for its date.
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

/// One request on an open connection, and its whole answer.
async fn ask(connection: &mut DuplexStream, line: &str) -> String {
    let request = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    sleep(Duration::from_millis(10)).await;
    let mut bytes = vec![0; 4096];
    let length = connection.read(&mut bytes).await.unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn test_server() {
    let mut server = Server::new(&[], &[]);
    server.sync_services(&[]).await;
    assert_eq!(server.services(), 0);
    server.sync_endpoints(&[]).await;
    assert_eq!(server.services(), 0);
    server.sync_endpoints(&[("a/b", 93)]).await;
    assert_eq!((server.services(), server.machine.open().len()), (0, 0), "unknown");

    server.sync_endpoints(&[]).await;
    server.sync_services(&[("a/b", 9376)]).await;
    assert_eq!(
        (server.services(), server.machine.open()),
        (1, vec!["0.0.0.0:9376".to_owned()])
    );
    server.expect("a/b", "0.0.0.0:9376", 0, true).await;
    for count in [18, 0, 11] {
        server.sync_endpoints(&[("a/b", count)]).await;
        server.expect("a/b", "0.0.0.0:9376", u32::from(count), true).await;
    }
    server.sync_endpoints(&[]).await;
    server.expect("a/b", "0.0.0.0:9376", 0, true).await;
    server.sync_endpoints(&[("a/b", 18)]).await;
    server.sync_services(&[]).await;
    assert_eq!((server.services(), server.machine.open().len()), (0, 0));

    server.sync_endpoints(&[]).await;
    server
        .sync_services(&[("a/b", 9376), ("c/d", 12909), ("e/f", 11113)])
        .await;
    assert_eq!((server.services(), server.machine.open().len()), (3, 3));
    for (key, address) in [
        ("a/b", "0.0.0.0:9376"),
        ("c/d", "0.0.0.0:12909"),
        ("e/f", "0.0.0.0:11113"),
    ] {
        server.expect(key, address, 0, true).await;
    }
    server.sync_endpoints(&[("a/b", 9), ("c/d", 3), ("e/f", 7)]).await;
    for (key, address, count) in [
        ("a/b", "0.0.0.0:9376", 9),
        ("c/d", "0.0.0.0:12909", 3),
        ("e/f", "0.0.0.0:11113", 7),
    ] {
        server.expect(key, address, count, true).await;
    }
    let before = server.machine.inside().attempts;
    server
        .sync_services(&[("c/d", 12909), ("e/f", 11114), ("g/h", 11878)])
        .await;
    assert_eq!(server.services(), 3);
    assert_eq!(
        server.machine.open(),
        ["0.0.0.0:11114", "0.0.0.0:11878", "0.0.0.0:12909"]
    );
    assert_eq!(
        server.machine.inside().attempts,
        before + 2,
        "what is open is left alone"
    );
    server.expect("c/d", "0.0.0.0:12909", 3, true).await;
    // Upstream: 0 until the counts come, right afterwards.
    server.expect("e/f", "0.0.0.0:11114", 7, true).await;
    server.expect("g/h", "0.0.0.0:11878", 0, true).await;
    server
        .sync_endpoints(&[("a/b", 9), ("c/d", 3), ("e/f", 7), ("g/h", 6)])
        .await;
    assert_eq!(server.services(), 3);
    for (key, address, count) in [
        ("c/d", "0.0.0.0:12909", 3),
        ("e/f", "0.0.0.0:11114", 7),
        ("g/h", "0.0.0.0:11878", 6),
    ] {
        server.expect(key, address, count, true).await;
    }
    server.sync_endpoints(&[("e/f", 7), ("g/h", 6)]).await;
    let counts = [
        ("c/d", "0.0.0.0:12909", 0),
        ("e/f", "0.0.0.0:11114", 7),
        ("g/h", "0.0.0.0:11878", 6),
    ];
    for healthy in [true, false, true] {
        if healthy {
            server
                .proxy
                .send_modify(|status| status.updated(Part::Whole, "2026-01-02T03:04:05Z".parse().unwrap()));
        } else {
            server.proxy.send_modify(|status| status.failing(Part::Whole, None));
        }
        for (key, address, count) in counts {
            server.expect(key, address, count, healthy).await;
        }
    }
    assert_eq!(server.counted("headgate_service_health_services"), 3);
    assert_eq!(server.counted("headgate_service_ports{state=\"open\"}"), 3);
    server.close.send_replace(true);
    server.serving.await.unwrap().unwrap();
    assert_eq!(server.machine.open().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn test_server_with_selective_listening_address() {
    let mut server = Server::new(&["127.0.0.0/8"], &["127.0.0.1", "192.0.2.7", "::1", "2001:db8::7"]);
    server.sync_services(&[]).await;
    server.sync_endpoints(&[]).await;
    server.sync_endpoints(&[("a/b", 93)]).await;
    assert_eq!((server.services(), server.machine.open().len()), (0, 0));
    server.sync_endpoints(&[]).await;
    server.sync_services(&[("a/b", 9376)]).await;
    assert_eq!(
        (server.services(), server.machine.open()),
        (1, vec!["127.0.0.1:9376".to_owned()])
    );
    server.expect("a/b", "127.0.0.1:9376", 0, true).await;
}

/// Upstream resolves the addresses once, and listens on all where none is found.
#[tokio::test(start_paused = true)]
async fn a_selected_address_may_come_and_go() {
    let mut server = Server::synced(&["192.0.2.0/24", "2001:db8::/32"], &["127.0.0.1", "::1"]).await;
    server
        .list_services(vec![service("a/b", 9376, &["10.0.0.1", "fd00::1"])])
        .await;
    assert_eq!(server.machine.open().len(), 0, "none is not all");
    let local = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    for (addresses, open) in [
        (local(&["192.0.2.7"]), vec!["192.0.2.7:9376"]),
        (
            local(&["192.0.2.7", "192.0.2.8", "2001:db8::7", "fe80::1"]),
            vec!["192.0.2.7:9376", "192.0.2.8:9376", "[2001:db8::7]:9376"],
        ),
        (local(&["192.0.2.8"]), vec!["192.0.2.8:9376"]),
    ] {
        server.machine.inside().local = addresses;
        sleep(Duration::from_secs(7)).await;
        assert_eq!(server.machine.open(), open);
    }
}

/// Upstream never tests it (nor did two families work there until after 1.35).
#[tokio::test(start_paused = true)]
async fn each_family_has_its_own_socket_and_count() {
    let mut server = Server::synced(&[], &[]).await;
    let dual = service("a/b", 9376, &["10.0.0.1", "fd00::1"]);
    server
        .list_services(vec![dual, service("c/d", 9377, &["fd00::2"])])
        .await;
    assert_eq!(server.machine.open(), ["0.0.0.0:9376", "[::]:9376", "[::]:9377"]);
    let both = |v4, v6| {
        [
            slices("a/b", "IPv4", v4),
            slices("a/b", "IPv6", v6),
            slices("c/d", "IPv4", 4),
        ]
        .concat()
    };
    for (v4, v6, any) in [(2, 0, 2), (2, 3, 3), (0, 1, 1), (0, 0, 0)] {
        server.list_slices(both(v4, v6)).await;
        server.expect("a/b", "0.0.0.0:9376", v4.into(), true).await;
        server.expect("a/b", "[::]:9376", v6.into(), true).await;
        server.expect("c/d", "[::]:9377", 0, true).await;
        let (status, text) = server.at_path(Method::GET, "/healthz/services/a/b").await;
        assert_eq!(
            (status, text),
            (if any > 0 { 200 } else { 503 }, body("a/b", any, true))
        );
    }
    // One family fails alone, and a Service that loses a family closes its port.
    server.machine.taken("[::]:9376", true);
    server.list_services(vec![service("a/b", 9376, &["10.0.0.1"])]).await;
    assert_eq!(server.machine.open(), ["0.0.0.0:9376"]);
    server
        .list_services(vec![service("a/b", 9376, &["10.0.0.1", "fd00::1"])])
        .await;
    assert_eq!(server.machine.open(), ["0.0.0.0:9376"]);
    assert_eq!(server.ports.borrow().failed.len(), 1);
}

/// In kube-proxy a request to a server whose Service is gone gets an empty 200.
#[tokio::test(start_paused = true)]
async fn an_open_connection_to_a_service_just_removed_gets_503() {
    let mut server = Server::synced(&[], &[]).await;
    server.sync_endpoints(&[("a/b", 2), ("c/d", 1)]).await;
    server.sync_services(&[("a/b", 9376), ("c/d", 9377)]).await;
    let mut removed = server.machine.connect("0.0.0.0:9376");
    let mut moved = server.machine.connect("0.0.0.0:9377");
    for connection in [&mut removed, &mut moved] {
        assert!(ask(connection, "GET /").await.starts_with("HTTP/1.1 200"));
    }
    server.sync_services(&[("c/d", 9378)]).await;
    for (connection, key) in [(&mut removed, "a/b"), (&mut moved, "c/d")] {
        let answer = ask(connection, "GET /").await;
        assert_answer(&answer, key, 0, true);
        assert!(answer.contains("Connection: close"), "{answer}");
    }
    server.expect("c/d", "0.0.0.0:9378", 1, true).await;
}

/// Upstream never tests it: an event once a reason is told elsewhere; here, when it is tried again.
#[tokio::test(start_paused = true)]
async fn a_port_that_cannot_be_opened_is_tried_every_5_s_and_at_each_change() {
    let mut server = Server::synced(&[], &[]).await;
    server.machine.taken("0.0.0.0:9376", true);
    server.sync_endpoints(&[("a/b", 2)]).await;
    server.sync_services(&[("a/b", 9376)]).await;
    let attempts = |server: &Server| server.machine.inside().attempts;
    assert_eq!(attempts(&server), 1);
    let failed = server.ports.borrow().failed.clone();
    let (key, failure) = failed.first_key_value().unwrap();
    assert_eq!(
        (key.service.to_string(), &*failure.uid, failure.port),
        ("a/b".to_owned(), "uid of a/b", 9376)
    );
    assert_eq!(failure.error, "0.0.0.0:9376 cannot be bound: somebody has it");
    assert_eq!(server.counted("headgate_service_ports{state=\"failed\"}"), 1);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(attempts(&server), 3);
    server.sync_services(&[("a/b", 9376), ("c/d", 9377)]).await;
    assert_eq!(attempts(&server), 5, "at a change");
    assert_eq!(server.counted("headgate_service_port_bind_failures_total"), 4);
    server.machine.taken("0.0.0.0:9376", false);
    sleep(Duration::from_secs(5)).await;
    server.expect("a/b", "0.0.0.0:9376", 2, true).await;
    assert!(server.ports.borrow().failed.is_empty());
    sleep(Duration::from_mins(10)).await;
    assert_eq!(attempts(&server), 6, "then no more");
}

/// Upstream never tests it.
#[tokio::test(start_paused = true)]
async fn two_services_on_one_port() {
    let mut server = Server::synced(&[], &[]).await;
    server.sync_endpoints(&[("z/first", 1), ("a/second", 2)]).await;
    server.sync_services(&[("z/first", 9376)]).await;
    server.sync_services(&[("z/first", 9376), ("a/second", 9376)]).await;
    server.expect("z/first", "0.0.0.0:9376", 1, true).await;
    let error = server.ports.borrow().failed.values().next().unwrap().error.clone();
    assert_eq!(error, "0.0.0.0:9376 is open for Service z/first");
    server.sync_services(&[("a/second", 9376)]).await;
    server.expect("a/second", "0.0.0.0:9376", 2, true).await;
}

#[tokio::test(start_paused = true)]
async fn every_method_and_path_of_a_port_gets_the_same_answer() {
    let mut server = Server::synced(&[], &[]).await;
    server.sync_endpoints(&[("a/b", 2)]).await;
    server.sync_services(&[("a/b", 9376)]).await;
    for line in [
        "GET /",
        "POST /healthz",
        "DELETE /a/../b//c",
        "OPTIONS *",
        "PUT /%ff",
        "GET http://elsewhere/x",
    ] {
        let answer = ask(&mut server.machine.connect("0.0.0.0:9376"), line).await;
        assert_answer(&answer, "a/b", 2, true);
    }
    let answer = ask(&mut server.machine.connect("0.0.0.0:9376"), "HEAD /").await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
    assert_eq!(server.answered(), [7, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_path_knows_the_services_that_need_it_and_no_others() {
    let mut server = Server::new(&[], &[]);
    let unknown = server.at_path(Method::GET, "/healthz/services/a/b").await;
    assert_eq!(unknown, (503, body("a/b", 0, true)), "nothing is listed yet");
    assert!(!server.ports.borrow().tried, "and no port is opened");
    server.sync_endpoints(&[("a/b", 2), ("c/d", 1)]).await;
    server.sync_services(&[("a/b", 9376), ("c/d", 0)]).await;
    for method in [Method::GET, Method::POST, Method::OPTIONS] {
        let answer = server.at_path(method, "/healthz/services/a/b?x=1").await;
        assert_eq!(answer, (200, body("a/b", 2, true)));
    }
    assert_eq!(
        server.at_path(Method::GET, "/healthz/services/c/d").await.0,
        200,
        "it needs no port"
    );
    assert_eq!(server.machine.open(), ["0.0.0.0:9376"]);
    let counts = server.answered();
    for path in [
        "/healthz/services/a/c",
        "/healthz/services/b/b",
        "/healthz/services/a%2Fb/c",
        "/healthz/services/a/%ff",
        "/healthz/services/A/b",
    ] {
        assert_eq!(
            server.at_path(Method::GET, path).await,
            (404, "404 page not found\n".to_owned()),
            "{path}"
        );
    }
    assert_eq!(server.answered(), counts, "not found is counted nowhere");
    server.sync_services(&[]).await;
    assert_eq!(server.at_path(Method::GET, "/healthz/services/a/b").await.0, 404);
}
