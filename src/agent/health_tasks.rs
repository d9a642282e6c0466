//! What runs if the process answers for its node: the health thread, the tasks that feed the verdict, and the events
//! about the health port.

use std::net::SocketAddr;
use std::sync::Arc;

use headgate_agent::connections::{ConnectionMetrics, ConnectionsTask, ConnectionsView, CountExchange, end_condition};
use headgate_agent::health::services::WatchReporters;
use headgate_agent::health::{LastChange, ProbesMarker, ProxyStatus, VerdictInputs};
use headgate_agent::own_node::{DeletionDelayMetrics, DeletionDelayTask, delay_deletion};
use headgate_core::clock::Clock;
use headgate_core::node::{MARKER_TTL, NodeReport};
use headgate_http::server::{self, BindState, Binder, Limits};
use headgate_kubernetes::expire_marker;
use headgate_kubernetes::{EventKind, EventSink, FieldIntents, NodeField, NodeIntents, NodeWriteMetrics, NodeWriter};
use kube::Client;
use tokio::sync::watch;

use super::health_thread::{HealthServer, HealthThread, Heartbeat};
use super::policies::Policies;
use super::service_health::StartOptions;
use super::tasks::Tasks;
use super::{AgentError, own_node, scheduled_events, service_health};
use crate::config::{MarkerWriter, Settings};

/// What the thread and the tasks are started with.
pub(super) struct HealthTasks<'a> {
    pub(super) settings: &'a Settings,
    pub(super) client: &'a Client,
    pub(super) node_name: &'a str,
    pub(super) events: &'a EventSink,
    pub(super) policies: Policies,
    pub(super) inputs: VerdictInputs,
    pub(super) clock: Clock,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) listeners: server::Metrics,
    pub(super) health: headgate_agent::health::Metrics,
    pub(super) services: headgate_agent::health::services::Metrics,
    pub(super) service_reporters: WatchReporters,
    pub(super) spot: headgate_agent::spot::Metrics,
    pub(super) connections: ConnectionMetrics,
    pub(super) deletion_delay: DeletionDelayMetrics,
    pub(super) node_writes: NodeWriteMetrics,
}

/// The channels that the tasks write to.
pub(super) struct HealthPublishers {
    pub(super) services: service_health::Channels,
    pub(super) exchange: Option<CountExchange>,
    pub(super) connections: watch::Sender<ConnectionsView>,
    pub(super) azure: scheduled_events::Channels,
    pub(super) proxy: watch::Sender<ProxyStatus>,
    pub(super) last_change: watch::Sender<Option<LastChange>>,
    pub(super) bound: watch::Sender<BindState>,
}

impl HealthTasks<'_> {
    /// Starts the thread and the tasks; returns the thread.
    pub(super) fn start(mut self, tasks: &mut Tasks, publishers: HealthPublishers) -> Result<HealthThread, AgentError> {
        let intents = NodeIntents::default();
        let marker = intents.field(NodeField::Marker);
        self.spawn_marker(tasks, &publishers.services, marker);
        let (exchange, view) = (publishers.exchange, publishers.connections);
        self.spawn_connections(tasks, exchange, view, intents.field(NodeField::Connections));
        let Self {
            settings,
            client,
            node_name,
            events,
            policies,
            inputs,
            clock,
            services,
            ..
        } = self;
        let reports = inputs.node.clone();
        tasks.announce("health-thread");
        let writer = NodeWriter::new(client.clone(), self.node_writes, clock.clone());
        tasks.spawn_endless("node-writer", policies.before(writer.run(intents.clone())));
        let delay = DeletionDelayTask {
            node_name: node_name.to_owned(),
            timeout: settings.cluster_autoscaler_delay,
            reports: reports.clone(),
            intents: intents.field(NodeField::DeletionDelay),
            events: events.clone(),
            metrics: self.deletion_delay,
            clock: clock.clone(),
        };
        tasks.spawn_endless("deletion-delay", delay_deletion(delay));
        let extras = publishers.services.start(
            tasks,
            StartOptions {
                settings,
                client,
                node_name,
                events,
                inputs: inputs.clone(),
                metrics: services,
                reporters: self.service_reporters,
                clock: clock.clone(),
            },
        );
        let bound = publishers.bound.subscribe();
        let thread = HealthThread::start(HealthServer {
            binder: Binder {
                name: "healthz",
                address: settings.healthz_bind_address,
                hard_fail: settings.bind_address_hard_fail,
                state: publishers.bound,
            },
            router: headgate_agent::health::router(inputs.clone(), self.health, clock.clone()),
            limits: Limits {
                proxy_protocol: settings.proxy_protocol,
                ..Limits::HEALTH
            },
            extras,
            metrics: self.listeners,
            reports: reports.clone(),
            heartbeat: self.heartbeat,
        })?;
        publishers.azure.start(
            tasks,
            scheduled_events::StartOptions {
                node_name,
                reports: &reports,
                intents: intents.field(NodeField::DrainingTaint),
                events,
                metrics: self.spot,
            },
        );
        let (directory, name) = (settings.state_dir.clone(), node_name.to_owned());
        let store = headgate_agent::own_node::store_reports(reports.clone(), directory, name, clock.clone());
        tasks.spawn_endless("remembered-state", store);
        let poll =
            headgate_agent::health::poll_kube_proxy(settings.kube_proxy.clone(), publishers.proxy, clock.clone());
        tasks.spawn_endless("kube-proxy-poll", poll);
        tasks.spawn_endless(
            "verdict-changes",
            headgate_agent::health::publish_verdict_changes(inputs, publishers.last_change, clock),
        );
        let failures = publish_bind_failures(bound, events.clone(), reports, settings.healthz_bind_address);
        tasks.spawn_endless("bind-events", failures);
        Ok(thread)
    }

    /// Counts connections through `exchange`, or ends what an agent that counted has left.
    fn spawn_connections(
        &self,
        tasks: &mut Tasks,
        exchange: Option<CountExchange>,
        view: watch::Sender<ConnectionsView>,
        intents: FieldIntents,
    ) {
        let (name, reports) = (self.node_name.to_owned(), self.inputs.node.clone());
        let has_marker = self.settings.out_of_load_balancers.writer() != MarkerWriter::None;
        let intents = has_marker.then_some(intents);
        let Some(exchange) = exchange else {
            if let Some(intents) = intents {
                tasks.spawn_endless("connections", end_condition(name, reports, intents));
            }
            return;
        };
        let (services, clock) = (self.services.clone(), self.clock.clone());
        let task = ConnectionsTask {
            client: self.client.clone(),
            node_name: name,
            inputs: self.inputs.clone(),
            excluded: self.settings.excluded_sources.clone(),
            exchange,
            view,
            intents,
            metrics: self.connections.clone(),
            events: self.events.clone(),
            clock: clock.clone(),
            reporter: Box::new(move || services.service_watch_reporter(&clock)),
        };
        tasks.spawn_endless("connections", task.run());
    }

    fn spawn_marker(&mut self, tasks: &mut Tasks, services: &service_health::Channels, intents: FieldIntents) {
        let name = self.node_name.to_owned();
        match self.settings.out_of_load_balancers.writer() {
            MarkerWriter::None => {}
            MarkerWriter::Leader => {
                let reports = self.inputs.node.clone();
                let expire = expire_marker(name, MARKER_TTL, reports, intents, self.clock.clone());
                tasks.spawn_endless("marker", expire);
            }
            MarkerWriter::Probes(required) => {
                let marker = ProbesMarker {
                    node_name: name,
                    required,
                    inputs: self.inputs.clone(),
                    metrics: self.health.clone(),
                    services: services.kept_services(self.inputs.clone()),
                    clock: self.clock.clone(),
                };
                tasks.spawn_endless("marker", marker.run(intents));
            }
        }
    }
}

/// The event about a health port that is not bound.
pub(super) const BIND_FAILED: EventKind = EventKind::warning("FailedToStartHealthServer", "Listen");

/// Writes an event when the health port cannot be bound, once for each error, until the task is aborted.
async fn publish_bind_failures(
    mut states: watch::Receiver<BindState>,
    events: EventSink,
    reports: watch::Receiver<NodeReport>,
    address: SocketAddr,
) {
    loop {
        let state = states.borrow_and_update().clone();
        if let BindState::Failed(error) = state {
            let note = format!("headgate cannot serve /healthz on {address}: {error}; it tries again every 5 s");
            events.record(own_node(&events, &reports), BIND_FAILED, note);
        }
        if states.changed().await.is_err() {
            // The listener is gone: the agent stops, and aborts this task.
            return std::future::pending().await;
        }
    }
}

#[cfg(test)]
mod tests;
