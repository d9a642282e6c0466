//! The Services' health check node ports: opened and closed as the table requires, each IP family separately.
//!
//! The first ports open when the answers are known, or 5 s after the first table. A port that cannot be opened is retried every 5 s and at
//! each change of the table. Two Services never share a port; the first one keeps it. Nor does one share the port of another listener of the
//! process. After a port is closed, connections that are still open get 503. When the process stops, all ports are handed over to the next
//! process as the health port is.

use headgate_core::publish_if_changed;
use headgate_core::service::{IpFamily, NamespacedName};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use headgate_http::server::{self, ConnectionLimit, Limits, ServeError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::index::ServiceTable;
use super::service_routes::ServiceRoutes;
use super::sockets::Sockets;

/// Time between two attempts to open a port, as for the health port.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time to wait for what the answers are computed from once the Services are listed, as for the health port.
const SYNC_TIMEOUT: Duration = Duration::from_secs(5);
/// The name of these listeners in logs and errors.
const LISTENER_NAME: &str = "service";
/// The limits of each port, which only the Service's own load balancer probes.
const PORT_LIMITS: Limits = Limits {
    max_connections: 256,
    ..Limits::HEALTH
};
/// Connections to all ports together, so that a peer that reaches thousands of ports cannot take the memory and the
/// file descriptors that the health port needs too. With this many, those of the health port, and 2,000 ports, the
/// process stays within the manifests' limit of 64 MiB.
const MAX_CONNECTIONS_OF_ALL_PORTS: usize = 512;

/// A Service's port in one IP family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortKey {
    /// The Service's namespace and name.
    pub service: Arc<NamespacedName>,
    /// The IP family of the addresses.
    pub family: IpFamily,
}

/// The ports that are open, and those that cannot be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStates {
    /// Whether each port of a table was tried once.
    pub tried: bool,
    /// The open ports with their addresses.
    pub open: BTreeMap<PortKey, SocketAddr>,
    /// The ports that cannot be opened.
    pub failed: BTreeMap<PortKey, PortFailure>,
}

/// A port that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFailure {
    /// The UID of the Service that has the port.
    pub uid: Box<str>,
    /// The port number, `spec.healthCheckNodePort` of the Service.
    pub port: u16,
    /// The address and the error of the last attempt.
    pub error: String,
}

/// Opens and serves the ports.
#[derive(Debug)]
pub struct NodePortServer<S> {
    /// What the ports answer.
    pub routes: ServiceRoutes,
    /// The machine's sockets, or a test's.
    pub sockets: S,
    /// The ports of the process's other listeners.
    pub own_ports: Vec<u16>,
    /// Receives each change of the ports.
    pub state: watch::Sender<PortStates>,
}

/// What should be open for one [`PortKey`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct TargetPort {
    uid: Box<str>,
    address: SocketAddr,
}

struct OpenPort {
    address: SocketAddr,
    stop: CancellationToken,
}

/// The open ports and their tasks.
struct OpenPorts {
    ports: BTreeMap<PortKey, OpenPort>,
    tasks: JoinSet<Result<(), ServeError>>,
    connection_limit: ConnectionLimit,
    metrics: server::Metrics,
}

/// The ports that should be open: each Service's port in each of its families, on all addresses of the family. Pure.
fn target_ports(table: &ServiceTable) -> BTreeMap<PortKey, TargetPort> {
    let with_port = table.iter().filter(|(_, served)| served.service.port != 0);
    let ports = with_port.flat_map(|(key, served)| {
        let service = &served.service;
        let families = [IpFamily::IPv4, IpFamily::IPv6]
            .into_iter()
            .filter(|family| *service.families.get(*family));
        families.map(|family| {
            let key = PortKey {
                service: Arc::clone(key),
                family,
            };
            let ip: IpAddr = match family {
                IpFamily::IPv4 => Ipv4Addr::UNSPECIFIED.into(),
                IpFamily::IPv6 => Ipv6Addr::UNSPECIFIED.into(),
            };
            let target = TargetPort {
                uid: service.uid.clone(),
                address: SocketAddr::new(ip, service.port),
            };
            (key, target)
        })
    });
    ports.collect()
}

impl<S: Sockets> NodePortServer<S> {
    /// Opens, serves and closes ports until `stop` is cancelled, then hands all of them over. `listeners` are the metrics of the process's
    /// listeners.
    ///
    /// # Errors
    /// When serving a connection panicked.
    pub async fn run(self, stop: CancellationToken, listeners: server::Metrics) -> Result<(), ServeError> {
        let mut tables = self.routes.tables.clone();
        let mut open = OpenPorts {
            ports: BTreeMap::new(),
            tasks: JoinSet::new(),
            connection_limit: ConnectionLimit::new(MAX_CONNECTIONS_OF_ALL_PORTS),
            metrics: listeners.of_many_listeners(),
        };
        let known = async {
            // The error of a sender that was dropped is for the loop.
            let _ = tables.wait_for(Option::is_some).await;
            let _ = timeout(SYNC_TIMEOUT, self.routes.known()).await;
        };
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = known => {}
        }
        loop {
            let table = tables.borrow_and_update().clone();
            if let Some(table) = table {
                self.reconcile(&table, &mut open);
            }
            let needs_retry = !self.state.borrow().failed.is_empty();
            tokio::select! {
                () = stop.cancelled() => break,
                changed = tables.changed() => if changed.is_err() {
                    // The sender of the table was dropped: the process stops.
                    stop.cancelled().await;
                    break;
                },
                Some(ended) = open.tasks.join_next() => flatten_outcome(ended)?,
                () = sleep(RETRY_INTERVAL), if needs_retry => {}
            }
        }
        for port in open.ports.into_values() {
            port.stop.cancel();
        }
        while let Some(ended) = open.tasks.join_next().await {
            flatten_outcome(ended)?;
        }
        Ok(())
    }

    /// Closes the ports that should not be open, and opens those that should.
    fn reconcile(&self, table: &ServiceTable, open: &mut OpenPorts) {
        let targets = target_ports(table);
        open.ports.retain(|key, port| {
            let is_target = targets.get(key).is_some_and(|target| target.address == port.address);
            if !is_target {
                // The table no longer has the port, so open connections get 503.
                port.stop.cancel();
            }
            is_target
        });
        let mut used: BTreeMap<SocketAddr, Arc<NamespacedName>> = BTreeMap::new();
        for (key, port) in &open.ports {
            used.insert(port.address, Arc::clone(&key.service));
        }
        let mut failed = BTreeMap::new();
        for (key, TargetPort { uid, address }) in targets {
            if open.ports.contains_key(&key) {
                continue;
            }
            match self.bind(address, &used) {
                Ok(listener) => {
                    used.insert(address, Arc::clone(&key.service));
                    let stop = CancellationToken::new();
                    let (service, family) = (Arc::clone(&key.service), key.family);
                    let router = self.routes.clone().port_router(service, family, address.port());
                    let (limit, metrics, stopped) = (open.connection_limit.clone(), open.metrics.clone(), stop.clone());
                    open.tasks.spawn(async move {
                        let serve = server::serve_with_limit;
                        serve(&limit, LISTENER_NAME, listener, router, PORT_LIMITS, &metrics, stopped).await
                    });
                    open.ports.insert(key, OpenPort { address, stop });
                }
                Err(error) => {
                    self.routes.metrics.bind_failures.inc();
                    let port = address.port();
                    failed.insert(key, PortFailure { uid, port, error });
                }
            }
        }
        self.publish(&open.ports, failed);
    }

    fn bind(
        &self,
        address: SocketAddr,
        used: &BTreeMap<SocketAddr, Arc<NamespacedName>>,
    ) -> Result<S::Listener, String> {
        if let Some(service) = used.get(&address) {
            // The system call would succeed, since sockets of one process may share a port.
            return Err(format!("{address} is open for Service {service}"));
        }
        if self.own_ports.contains(&address.port()) {
            return Err(format!("{address} is headgate's own port"));
        }
        let bound = self.sockets.bind(address);
        bound.map_err(|error| format!("{address} cannot be bound: {error}"))
    }

    fn publish(&self, open: &BTreeMap<PortKey, OpenPort>, failed: BTreeMap<PortKey, PortFailure>) {
        let ports = PortStates {
            tried: true,
            open: open.iter().map(|(key, port)| (key.clone(), port.address)).collect(),
            failed,
        };
        publish_if_changed(&self.state, ports);
    }
}

fn flatten_outcome(ended: Result<Result<(), ServeError>, tokio::task::JoinError>) -> Result<(), ServeError> {
    match ended {
        Ok(outcome) => outcome,
        Err(source) => Err(ServeError::Panicked {
            listener: LISTENER_NAME,
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc;
    use std::thread;

    use headgate_core::clock::Clock;
    use headgate_test_kubernetes::blocked_logs;
    use prometheus_client::registry::Registry;
    use tokio::net::TcpListener;
    use tokio::runtime;

    use super::super::super::fixtures::{self, Channels, initial};
    use super::super::metrics::Metrics;
    use super::*;

    struct NoSockets;

    impl Sockets for NoSockets {
        type Listener = TcpListener;

        fn bind(&self, _: SocketAddr) -> io::Result<TcpListener> {
            Err(io::ErrorKind::AddrInUse.into())
        }
    }

    #[test]
    fn a_port_that_cannot_be_opened_waits_for_no_line_of_the_log() {
        let channels = Channels::default();
        channels.node.send_replace(initial().without_node());
        channels.tables.send_replace(Some(fixtures::table(&[("web", 1)])));
        let state = watch::Sender::new(PortStates::default());
        let states = state.subscribe();
        let server = NodePortServer {
            routes: ServiceRoutes {
                metrics: Metrics::register(
                    &mut Registry::default(),
                    channels.tables.subscribe(),
                    states.clone(),
                    None,
                ),
                tables: channels.tables.subscribe(),
                drains: channels.drains(),
                clock: Clock::System,
            },
            sockets: NoSockets,
            own_ports: Vec::new(),
            state,
        };
        let (subscriber, _blocked) = blocked_logs();
        let stop = CancellationToken::new();
        let (stopped, (done, is_done)) = (stop.clone(), mpsc::channel());
        thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            tracing::subscriber::with_default(subscriber, || {
                runtime.block_on(server.run(stopped, server::Metrics::default()))
            })
            .unwrap();
            done.send(())
        });
        thread::spawn(move || {
            while states.borrow().failed.is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
            stop.cancel();
        });
        is_done.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
