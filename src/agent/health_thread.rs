//! The thread that answers `/healthz` and `/livez`. It has its own runtime with the health listener, with the
//! Services' node ports if these are opened, and with nothing else.
//!
//! The port opens at once if there is a remembered state of this boot; otherwise after the first sync with the API server and the first
//! answer of kube-proxy, or after 5 s as eligible. If the thread also answers about Services, it waits within the same 5 s until they are
//! listed, and their other nodes read if this one has signals, so that a roll of headgate neither fails a Service nor takes back a 503.
//! Where another process still answers on the port, which it would share, it waits for the first sync and the lists for as long as that
//! one does. No failure elsewhere closes the port.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use futures::future::OptionFuture;
use headgate_agent::health::ProxyStatus;
use headgate_agent::health::services::ServiceRoutes;
use headgate_core::node::NodeReport;
use headgate_http::server::{self, Binder, Limits, Metrics};
use tokio::runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::{interval, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::service_health::HealthThreadExtras;
use super::{AgentError, serve_port};

/// Time to wait for the first sync before the port opens as eligible (docs/dev/decisions.md 3).
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A health thread without a heartbeat for this time is stuck.
pub(super) const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);

/// The time of the health thread's last heartbeat, for the process's own `/livez`.
#[derive(Debug)]
pub(super) struct Heartbeat {
    origin: Instant,
    last_millis: AtomicU64,
}

impl Heartbeat {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            origin: Instant::now(),
            last_millis: AtomicU64::new(0),
        })
    }

    fn beat(&self) {
        let millis = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_millis.store(millis, Ordering::Relaxed);
    }

    /// Time since the last heartbeat.
    pub(super) fn age(&self) -> Duration {
        self.origin
            .elapsed()
            .saturating_sub(Duration::from_millis(self.last_millis.load(Ordering::Relaxed)))
    }
}

/// What the health thread serves.
pub(super) struct HealthServer {
    pub(super) binder: Binder,
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) extras: HealthThreadExtras,
    pub(super) metrics: Metrics,
    pub(super) reports: watch::Receiver<NodeReport>,
    /// Where the first answer of kube-proxy is waited for.
    pub(super) kube_proxy: Option<watch::Receiver<ProxyStatus>>,
    pub(super) heartbeat: Arc<Heartbeat>,
}

/// The running thread. It stops when this is dropped.
pub(super) struct HealthThread {
    thread: Option<thread::JoinHandle<()>>,
    /// `None` once it was received.
    outcome: Option<oneshot::Receiver<Result<(), AgentError>>>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

impl HealthThread {
    /// Starts the thread with its own runtime.
    pub(super) fn start(server: HealthServer) -> Result<Self, AgentError> {
        let failed = |error: std::io::Error| AgentError::HealthThread(error.to_string());
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (done, outcome) = oneshot::channel();
        let stop = CancellationToken::new();
        let stop_server = stop.clone();
        let thread = thread::Builder::new()
            .name("health".to_owned())
            .spawn(move || {
                let result = runtime.block_on(server.run(stop_server));
                // Without a receiver the outcome is of no interest any more.
                let _ = done.send(result);
            })
            .map_err(failed)?;
        Ok(Self {
            thread: Some(thread),
            outcome: Some(outcome),
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        })
    }

    /// Waits for the thread to end. The next call returns at once, without an error.
    pub(super) async fn ended(&mut self) -> Result<(), AgentError> {
        let Some(outcome) = &mut self.outcome else {
            return Ok(());
        };
        let ended = outcome.await;
        self.outcome = None;
        ended.unwrap_or_else(|_| Err(AgentError::HealthThread("it panicked".to_owned())))
    }

    /// Hands the port over, closes it, and joins the thread.
    pub(super) async fn stop(&mut self) -> Result<(), AgentError> {
        self.stop.cancel();
        let outcome = self.ended().await;
        if let Some(thread) = self.thread.take() {
            // The outcome was sent, so the thread is about to return.
            let _ = thread.join();
        }
        outcome
    }
}

impl HealthServer {
    async fn run(self, stop: CancellationToken) -> Result<(), AgentError> {
        let Self {
            binder,
            router,
            limits,
            extras,
            metrics,
            reports,
            kube_proxy,
            heartbeat,
        } = self;
        let node_ports = extras.node_ports.map(|serve| serve(stop.clone(), metrics.clone()));
        let router = match extras.routes.clone() {
            Some(routes) => router.merge(routes.path_router()),
            None => router,
        };
        let replaced = server::other_process_ended(binder.address, limits.proxy_protocol);
        let synced = wait_for_sync(reports, extras.routes, kube_proxy, replaced, binder.log_runtime.clone());
        let health_port = async {
            tokio::select! {
                () = synced => serve_port(binder, router, limits, &metrics, stop.clone()).await,
                () = stop.cancelled() => Ok(()),
            }
        };
        let all = async {
            let node_ports = async { Ok(OptionFuture::from(node_ports).await.transpose().map(drop)?) };
            tokio::try_join!(health_port, node_ports).map(drop)
        };
        tokio::select! {
            served = all => served,
            () = beat(&heartbeat) => Ok(()),
        }
    }
}

async fn beat(heartbeat: &Heartbeat) {
    let mut beats = interval(HEARTBEAT_INTERVAL);
    loop {
        beats.tick().await;
        heartbeat.beat();
    }
}

/// Waits until the inputs of the answers are known, for [`SYNC_TIMEOUT`] at most. While another process answers on the port, until
/// `replaced` ends, it waits for longer for what `/readyz` asks for: a roll ends no process before that.
async fn wait_for_sync(
    reports: watch::Receiver<NodeReport>,
    routes: Option<ServiceRoutes>,
    kube_proxy: Option<watch::Receiver<ProxyStatus>>,
    replaced: impl Future<Output = ()>,
    log_runtime: Option<runtime::Handle>,
) {
    let log = |write: fn()| server::log_on(log_runtime.as_ref(), write);
    let tables = routes.as_ref().map(|routes| routes.tables.clone());
    // A sender that was dropped leaves an error: the process stops.
    let listed = async || {
        let _ = reports.clone().wait_for(NodeReport::is_known).await;
        if let Some(mut tables) = tables.clone() {
            let _ = tables.wait_for(Option::is_some).await;
        }
    };
    let known = async || match &routes {
        Some(routes) => routes.known().await,
        None => listed().await,
    };
    let first = async {
        known().await;
        if let Some(mut proxy) = kube_proxy {
            let _ = proxy.wait_for(ProxyStatus::is_known).await;
        }
    };
    if timeout(SYNC_TIMEOUT, first).await.is_ok() {
        return;
    }
    let ready = async {
        listed().await;
        let _ = timeout(SYNC_TIMEOUT, known()).await;
    };
    tokio::select! {
        () = ready => {}
        () = replaced => {}
    }
    if !reports.borrow().is_known() {
        log(|| tracing::warn!("state of the Node unknown and no remembered state found, it counts as eligible"));
    }
    if tables.is_some_and(|tables| tables.borrow().is_none()) {
        log(|| tracing::warn!("Services and EndpointSlices not listed in time; requests about them get 503"));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;
    use std::sync::mpsc;

    use headgate_agent::health::VerdictInputs;
    use headgate_agent::health::services::{Metrics as ServiceMetrics, PortStates, ServiceDrains, ServiceIndex};
    use headgate_core::clock::Clock;
    use headgate_core::node::{Node, SignalSettings, Taint};
    use headgate_http::server::BindState;
    use headgate_test_kubernetes::blocked_logs;
    use kube::runtime::watcher::Event;
    use prometheus_client::registry::Registry;
    use serde_json::{from_value, json};
    use tokio::time::sleep;

    use super::*;

    /// How long the health port of a Node with these taints waits while no other node was read. Its Service is listed after some time, and
    /// another process answers for some.
    async fn waited(taints: Vec<Taint>, listed_after: Duration, answered_for: Duration) -> Duration {
        let (clock, rules) = (Clock::System, SignalSettings::default().health());
        let node = Node {
            uid: "u".into(),
            taints,
            ..Node::default()
        };
        let report = NodeReport::initial(None, &rules, clock.now());
        let reports = watch::Sender::new(report.with_node(node.with_signals(&rules), clock.now()));
        let mut index = ServiceIndex::new("n".to_owned());
        let service = json!({"metadata": {"namespace": "a", "name": "b", "uid": "u"}, "spec": {"type": "LoadBalancer",
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 30_000, "clusterIPs": ["10.0.0.1"]}});
        let slice = json!({"metadata": {"namespace": "a", "name": "b", "labels": {"kubernetes.io/service-name": "b"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": "n"}], "ports": [{"name": "", "port": 80}]});
        for event in [
            Event::Init,
            Event::InitApply(from_value(service).unwrap()),
            Event::InitDone,
        ] {
            index.apply_service(event);
        }
        for event in [
            Event::Init,
            Event::InitApply(from_value(slice).unwrap()),
            Event::InitDone,
        ] {
            index.apply_slice(event);
        }
        let tables = watch::Sender::new(None);
        let ports = watch::Sender::new(PortStates::default());
        let routes = ServiceRoutes {
            metrics: ServiceMetrics::register(&mut Registry::default(), tables.subscribe(), ports.subscribe(), None),
            tables: tables.subscribe(),
            drains: ServiceDrains {
                inputs: VerdictInputs {
                    node: reports.subscribe(),
                    proxy: watch::Sender::new(ProxyStatus::new(Duration::from_mins(1))).subscribe(),
                    notices: watch::Sender::new(BTreeMap::new()).subscribe(),
                },
                reads: watch::Sender::new(None).subscribe(),
            },
            clock,
        };
        let begun = tokio::time::Instant::now();
        let list = async {
            sleep(listed_after).await;
            tables.send_replace(index.table().map(Arc::new));
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = wait_for_sync(reports.subscribe(), Some(routes), None, sleep(answered_for), None) => {}
            () = list => {}
        }
        begun.elapsed()
    }

    /// A server without routes, which waits for nothing but these reports.
    fn health_server(binder: Binder, reports: watch::Receiver<NodeReport>) -> HealthServer {
        HealthServer {
            binder,
            router: Router::new(),
            limits: Limits::HEALTH,
            extras: HealthThreadExtras::default(),
            metrics: Metrics::default(),
            reports,
            kube_proxy: None,
            heartbeat: Heartbeat::new(),
        }
    }

    #[test]
    fn the_port_opens_although_nobody_reads_the_log() {
        let (clock, rules) = (Clock::System, SignalSettings::default().health());
        let main = runtime::Runtime::new().unwrap();
        let reports = watch::Sender::new(NodeReport::initial(None, &rules, clock.now()).without_node());
        let state = watch::Sender::new(BindState::Waiting);
        let states = state.subscribe();
        let binder = Binder {
            name: "healthz",
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            hard_fail: false,
            state,
            log_runtime: Some(main.handle().clone()),
        };
        let server = health_server(binder, reports.subscribe());
        let (subscriber, _blocked) = blocked_logs();
        let stop = CancellationToken::new();
        let (stopped, (done, is_done)) = (stop.clone(), mpsc::channel());
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tracing::subscriber::with_default(subscriber, || runtime.block_on(server.run(stopped))).unwrap();
            done.send(())
        });
        thread::spawn(move || {
            while states.borrow().address().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
            stop.cancel();
        });
        is_done.recv_timeout(2 * SYNC_TIMEOUT).unwrap();
    }

    #[tokio::test]
    async fn a_thread_that_has_failed_can_be_stopped() {
        let (clock, rules) = (Clock::System, SignalSettings::default().health());
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let reports = watch::Sender::new(NodeReport::initial(None, &rules, clock.now()).without_node());
        let binder = Binder {
            name: "healthz",
            address: taken.local_addr().unwrap(),
            hard_fail: true,
            state: watch::Sender::new(BindState::Waiting),
            log_runtime: None,
        };
        let mut thread = HealthThread::start(health_server(binder, reports.subscribe())).unwrap();
        assert!(matches!(thread.ended().await, Err(AgentError::Bind { .. })));
        thread.stop().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_port_waits_for_the_answers_but_alone_not_for_long() {
        let taint = || vec![Taint::new("headgate.dev/maintenance", "NoSchedule")];
        let (at_once, for_long) = (Duration::ZERO, Duration::from_secs(30));
        for (taints, listed_after, answered_for, expected) in [
            (Vec::new(), at_once, at_once, 0),
            (Vec::new(), for_long, at_once, 5),
            // Half of the probes would get 503 for every Service.
            (Vec::new(), for_long, 2 * for_long, 30),
            (Vec::new(), 2 * for_long, for_long, 30),
            (taint(), at_once, at_once, 5),
            (taint(), at_once, for_long, 10),
            (taint(), for_long, 2 * for_long, 35),
        ] {
            let waited = waited(taints.clone(), listed_after, answered_for).await;
            let is_expected = waited.abs_diff(Duration::from_secs(expected)) < Duration::from_secs(1);
            assert!(is_expected, "{taints:?} {listed_after:?} {answered_for:?}: {waited:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_port_waits_for_kube_proxys_first_answer_but_not_for_long() {
        let (clock, rules) = (Clock::System, SignalSettings::default().health());
        let missing = NodeReport::initial(None, &rules, clock.now()).without_node();
        let (reports, timeout) = (watch::Sender::new(missing), Duration::from_mins(1));
        for (answers_after, expected) in [(0, 0), (3, 3), (60, 5)] {
            let proxy = watch::Sender::new(ProxyStatus::new(timeout));
            let answer = async {
                sleep(Duration::from_secs(answers_after)).await;
                proxy.send_replace(ProxyStatus::answered_before(timeout, clock.now()));
                std::future::pending::<()>().await;
            };
            let begun = tokio::time::Instant::now();
            tokio::select! {
                () = wait_for_sync(reports.subscribe(), None, Some(proxy.subscribe()), async {}, None) => {}
                () = answer => {}
            }
            assert_eq!(begun.elapsed().as_secs(), expected, "{answers_after}");
        }
    }
}
