//! Service health in the agent: which parts of it run, on which runtime, and its part of `/statusz`. With
//! `serviceHealthChecks: Disabled` nothing runs, and no Service is watched.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use headgate_agent::health::ServiceAnswers;
use headgate_agent::health::VerdictInputs;
use headgate_agent::health::services::{
    self, DrainReader, DrainReads, KeptServicesView, Metrics, NodePortServer, PortStates, ServiceDrains, ServiceRoutes,
    ServiceTable, SystemSockets, WatchReporters, WatchedResource,
};
use headgate_core::clock::Moment;
use headgate_core::telemetry::MetricTable;
use headgate_http::server::{self, ServeError};
use headgate_kubernetes::{EventSink, WatchFailure};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Process;
use super::tasks::Tasks;
use crate::agent_status::{FailedPort, KeptServiceStatus, ServicesStatus};
use crate::config::{ServiceHealth, Settings};

/// The channels of service health.
pub(super) struct Channels {
    mode: ServiceHealth,
    tables: watch::Sender<Option<Arc<ServiceTable>>>,
    ports: watch::Sender<PortStates>,
    answers: ServiceAnswers,
    reads: watch::Sender<Option<Arc<DrainReads>>>,
}

/// A server that runs on the health thread until the token is cancelled.
pub(super) type StoppableServer =
    Box<dyn FnOnce(CancellationToken, server::Metrics) -> BoxFuture<'static, Result<(), ServeError>> + Send>;

/// What the health thread serves beside `/healthz` and `/livez`.
#[derive(Default)]
pub(super) struct HealthThreadExtras {
    /// What the health port answers about Services: with 503 until there is a table.
    pub(super) routes: Option<ServiceRoutes>,
    /// The server of the Services' node ports.
    pub(super) node_ports: Option<StoppableServer>,
}

impl Channels {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            mode: settings.service_health,
            tables: watch::Sender::new(None),
            ports: watch::Sender::default(),
            answers: ServiceAnswers::default(),
            reads: watch::Sender::new(None),
        }
    }

    fn drains(&self, inputs: VerdictInputs) -> ServiceDrains {
        ServiceDrains {
            inputs,
            reads: self.reads.subscribe(),
        }
    }

    /// The Services whose probes this process answers; `None` if it answers none.
    pub(super) fn kept_services(&self, inputs: VerdictInputs) -> Option<KeptServicesView> {
        (self.mode != ServiceHealth::Disabled).then(|| KeptServicesView {
            drains: self.drains(inputs),
            tables: self.tables.subscribe(),
            answers: self.answers.clone(),
            ports: (self.mode == ServiceHealth::NodePorts).then(|| self.ports.subscribe()),
        })
    }

    pub(super) fn register_metrics<'a>(&self, registry: impl Into<MetricTable<'a>>) -> Metrics {
        let by_service = (self.mode != ServiceHealth::Disabled).then(|| self.answers.clone());
        Metrics::register(registry, self.tables.subscribe(), self.ports.subscribe(), by_service)
    }

    /// What `/statusz` and `/readyz` read; `None` if service health is off.
    pub(super) fn view(&self, reporters: &WatchReporters, inputs: VerdictInputs) -> Option<ServiceHealthView> {
        let kept = self.kept_services(inputs)?;
        Some(ServiceHealthView {
            mode: self.mode,
            kept,
            failures: reporters.failures(),
            ports: self.ports.subscribe(),
        })
    }

    /// Starts the tasks on the agent's runtime; returns what the health thread serves.
    pub(super) fn start(
        self,
        tasks: &mut Tasks,
        process: Process,
        events: &EventSink,
        inputs: VerdictInputs,
        metrics: Metrics,
        reporters: WatchReporters,
    ) -> HealthThreadExtras {
        let Process {
            settings,
            client,
            node_name,
            clock,
            ..
        } = process;
        let routes = ServiceRoutes {
            tables: self.tables.subscribe(),
            drains: self.drains(inputs.clone()),
            metrics,
            clock: clock.clone(),
        };
        // The task also forgets the answers about Services that are gone.
        let reader = DrainReader {
            client: client.clone(),
            node_name: node_name.clone(),
            rules: settings.signals.health(),
            relies_on_signalled: !settings.has_azure_leader(),
            inputs,
            tables: self.tables.subscribe(),
            answers: self.answers,
            reads: self.reads,
            clock,
        };
        let extras = match self.mode {
            ServiceHealth::Disabled => return HealthThreadExtras::default(),
            ServiceHealth::Path => HealthThreadExtras {
                routes: Some(routes),
                node_ports: None,
            },
            ServiceHealth::NodePorts => {
                let states = self.ports.subscribe();
                tasks.spawn_endless(
                    "service-port-events",
                    services::publish_port_failures(states, events.clone(), node_name.clone()),
                );
                tasks.announce("service-ports");
                let server = NodePortServer {
                    routes,
                    sockets: SystemSockets,
                    own_ports: [settings.healthz_bind_address, settings.metrics_bind_address]
                        .map(|address| address.port())
                        .into(),
                    state: self.ports,
                };
                HealthThreadExtras {
                    routes: None,
                    node_ports: Some(Box::new(move |stop, listeners| server.run(stop, listeners).boxed())),
                }
            }
        };
        tasks.spawn_endless("service-drain", reader.run());
        tasks.spawn_endless(
            "service-watch",
            services::watch_services(client, node_name, self.tables, reporters),
        );
        extras
    }
}

/// What `/statusz` and `/readyz` read of service health.
#[derive(Clone)]
pub(super) struct ServiceHealthView {
    mode: ServiceHealth,
    kept: KeptServicesView,
    failures: BTreeMap<WatchedResource, watch::Receiver<Option<WatchFailure>>>,
    ports: watch::Receiver<PortStates>,
}

impl ServiceHealthView {
    /// Whether this process can replace another: it has listed the Services and tried to open their ports.
    pub(super) fn ready(&self) -> Result<(), String> {
        if self.kept.tables.borrow().is_none() {
            return Err("Services and EndpointSlices not listed yet".to_owned());
        }
        if self.mode == ServiceHealth::NodePorts && !self.ports.borrow().tried {
            return Err("node ports not opened yet".to_owned());
        }
        Ok(())
    }

    /// The Services to which load balancers keep sending although the node has signals.
    pub(super) fn kept(&self, now: Moment) -> Vec<KeptServiceStatus> {
        let kept = self.kept.kept(now).into_iter();
        kept.map(|(service, because)| KeptServiceStatus {
            service: service.to_string(),
            why: because.to_string(),
        })
        .collect()
    }

    pub(super) fn status(&self) -> ServicesStatus {
        let ports = self.ports.borrow();
        let failed = ports.failed.iter().map(|(key, failure)| FailedPort {
            service: key.service.to_string(),
            family: format!("{:?}", key.family),
            port: failure.port,
            error: failure.error.clone(),
        });
        let watch_errors = self.failures.iter().filter_map(|(resource, failure)| {
            Some((resource.as_str().to_owned(), failure.borrow().as_ref()?.error.clone()))
        });
        ServicesStatus {
            mode: self.mode.as_str().to_owned(),
            services: self.kept.tables.borrow().as_ref().map(|table| table.iter().count()),
            open_ports: (self.mode == ServiceHealth::NodePorts).then_some(ports.open.len()),
            failed_ports: failed.collect(),
            watch_errors: watch_errors.collect(),
        }
    }
}

impl fmt::Display for ServicesStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "services   {}: ", self.mode)?;
        match self.services {
            None => write!(f, "not listed yet, answered with 503")?,
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
