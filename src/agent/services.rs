//! Per-Service health in the agent: what of it runs, where, and what is shown of it. With `serviceHealth:
//! off` nothing does, and no Service is watched.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use axum::Router;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use headgate_clock::Clock;
use headgate_health::Inputs;
use headgate_health::{
    services, services::Metrics, services::NodePorts, services::Outlet, services::Ports, services::Resource,
    services::Routes, services::SystemSockets, services::Table,
};
use headgate_http::server::ServeError;
use headgate_kubernetes::NodeEventRecorder;
use headgate_node::Trouble;
use kube::Client;
use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::sync::watch;

use super::supervise::Tasks;
use crate::config::{ServiceHealth, Settings};

/// The channels of per-Service health.
pub(super) struct Channels {
    mode: ServiceHealth,
    clock: Clock,
    tables: watch::Sender<Option<Arc<Table>>>,
    troubles: watch::Sender<[Option<Trouble>; 2]>,
    ports: watch::Sender<Ports>,
}

/// A listener besides the health port, run until it is told to close.
pub(super) type Beside = Box<dyn FnOnce(watch::Receiver<bool>) -> BoxFuture<'static, Result<(), ServeError>> + Send>;

/// What the health thread serves besides `/healthz` and `/livez`.
#[derive(Default)]
pub(super) struct Extra {
    /// More routes of the health port, and what has to be known before they can answer.
    pub(super) path: Option<(Router, watch::Receiver<Option<Arc<Table>>>)>,
    /// The Services' own ports.
    pub(super) ports: Option<Beside>,
}

impl Channels {
    pub(super) fn new(settings: &Settings, clock: &Clock) -> Self {
        Self {
            mode: settings.service_health,
            clock: clock.clone(),
            tables: watch::Sender::new(None),
            troubles: watch::Sender::default(),
            ports: watch::Sender::default(),
        }
    }

    pub(super) fn metrics(&self, registry: &mut Registry) -> Metrics {
        Metrics::register(registry, self.tables.subscribe(), self.ports.subscribe())
    }

    /// What operations look at; nothing where it is off.
    pub(super) fn view(&self) -> Option<View> {
        (self.mode != ServiceHealth::Off).then(|| View {
            mode: self.mode,
            tables: self.tables.subscribe(),
            troubles: self.troubles.subscribe(),
            ports: self.ports.subscribe(),
        })
    }

    /// Starts what runs on the agent's runtime; gives what is to run on the health thread.
    pub(super) fn start(
        self,
        tasks: &mut Tasks,
        settings: &Settings,
        (client, node, events): (Client, String, NodeEventRecorder),
        inputs: Inputs,
        metrics: Metrics,
    ) -> Extra {
        let routes = Routes {
            tables: self.tables.subscribe(),
            inputs,
            metrics: metrics.clone(),
            clock: self.clock.clone(),
        };
        let extra = match self.mode {
            ServiceHealth::Off => return Extra::default(),
            ServiceHealth::Path => Extra {
                path: Some((routes.path_router(), self.tables.subscribe())),
                ports: None,
            },
            ServiceHealth::NodePorts => {
                let failures = self.ports.subscribe();
                tasks.endless(
                    "service-port-events",
                    services::tell_failures(failures, events, node.clone()),
                );
                tasks.list("service-ports");
                let ports = NodePorts {
                    routes,
                    selection: settings.node_port_addresses.clone(),
                    sockets: SystemSockets,
                    state: self.ports,
                };
                Extra {
                    path: None,
                    ports: Some(Box::new(move |close| ports.run(close).boxed())),
                }
            }
        };
        let outlet = Outlet {
            tables: self.tables,
            troubles: self.troubles,
        };
        tasks.endless(
            "service-watch",
            services::watch(client, node, outlet, metrics, self.clock),
        );
        extra
    }
}

/// What operations look at.
#[derive(Clone)]
pub(super) struct View {
    mode: ServiceHealth,
    tables: watch::Receiver<Option<Arc<Table>>>,
    troubles: watch::Receiver<[Option<Trouble>; 2]>,
    ports: watch::Receiver<Ports>,
}

impl View {
    /// Whether this process can take the place of another: it knows the Services, and tried their ports.
    pub(super) fn ready(&self) -> Result<(), String> {
        if self.tables.borrow().is_none() {
            return Err("Services and EndpointSlices not listed yet".to_owned());
        }
        if self.mode == ServiceHealth::NodePorts && !self.ports.borrow().tried {
            return Err("node ports not opened yet".to_owned());
        }
        Ok(())
    }

    pub(super) fn status(&self) -> ServicesStatus {
        let ports = self.ports.borrow();
        let failed = ports.failed.iter().map(|(key, failure)| FailedPort {
            service: key.service.to_string(),
            family: format!("{:?}", key.family),
            port: failure.port,
            error: failure.error.clone(),
        });
        let troubles = self.troubles.borrow();
        let errors = [Resource::Services, Resource::Slices].into_iter().zip(&*troubles);
        ServicesStatus {
            mode: self.mode.as_str(),
            services: self.tables.borrow().as_ref().map(|table| table.len()),
            open_ports: (self.mode == ServiceHealth::NodePorts).then_some(ports.open.len()),
            failed_ports: failed.collect(),
            watch_errors: errors
                .filter_map(|(resource, trouble)| Some((resource.as_str(), trouble.as_ref()?.error.clone())))
                .collect(),
        }
    }
}

/// Per-Service health on `/statusz`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServicesStatus {
    mode: &'static str,
    /// How many are answered for, once they are known.
    services: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    open_ports: Option<usize>,
    failed_ports: Vec<FailedPort>,
    watch_errors: BTreeMap<&'static str, String>,
}

#[derive(Debug, Serialize)]
struct FailedPort {
    service: String,
    family: String,
    port: u16,
    error: String,
}

impl fmt::Display for ServicesStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "services   {}: ", self.mode)?;
        match self.services {
            None => write!(f, "not listed yet, answered 503")?,
            Some(count) => write!(f, "{count}")?,
        }
        if let Some(open) = self.open_ports {
            write!(f, ", {open} ports open, {} failed", self.failed_ports.len())?;
        }
        writeln!(f)?;
        for port in &self.failed_ports {
            writeln!(
                f,
                "           {} {} {}: {}",
                port.service, port.port, port.family, port.error
            )?;
        }
        for (resource, error) in &self.watch_errors {
            writeln!(f, "           {resource} cannot be watched: {error}")?;
        }
        Ok(())
    }
}
