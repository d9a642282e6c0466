//! What runs if the process answers for its node: the health thread, the tasks that feed the verdict, and the events
//! about the health port.

use std::net::SocketAddr;
use std::sync::Arc;

use headgate_agent::connections::{ConnectionsTask, ConnectionsView, CountExchange, end_condition};
use headgate_agent::health::services::WatchReporters;
use headgate_agent::health::{ProbesMarker, VerdictInputs};
use headgate_agent::own_node::{DeletionDelayTask, delay_deletion, store_reports};
use headgate_core::node::{MARKER_TTL, NodeReport};
use headgate_http::server::{BindState, Binder, Limits};
use headgate_kubernetes::expire_marker;
use headgate_kubernetes::{EventKind, EventSink, FieldIntents, NodeField, NodeIntents, NodeWriter};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::channels::{Channels, Metrics};
use super::health_thread::{HealthServer, HealthThread, Heartbeat};
use super::policies::Policies;
use super::tasks::Tasks;
use super::{AgentError, Process, own_node, service_health};
use crate::config::MarkerWriter;

/// What the thread and the tasks are started with.
pub(super) struct HealthTasks {
    pub(super) process: Process,
    pub(super) events: EventSink,
    pub(super) policies: Policies,
    pub(super) inputs: VerdictInputs,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) metrics: Metrics,
    pub(super) service_reporters: WatchReporters,
}

impl HealthTasks {
    /// Starts the thread and the tasks; returns the thread.
    pub(super) fn start(self, tasks: &mut Tasks, channels: Channels) -> Result<HealthThread, AgentError> {
        let intents = NodeIntents::default();
        let marker = intents.field(NodeField::Marker);
        self.spawn_marker(tasks, &channels.services, marker);
        let (exchange, view) = (channels.exchange, channels.connections);
        self.spawn_connections(tasks, exchange, view, intents.field(NodeField::Connections));
        let Self {
            process,
            events,
            policies,
            inputs,
            metrics,
            ..
        } = self;
        let Process {
            settings,
            client,
            node_name,
            clock,
            ..
        } = process.clone();
        let reports = inputs.node.clone();
        tasks.announce("health-thread");
        let writer = NodeWriter::new(client, metrics.node_writes, clock.clone());
        tasks.spawn_endless("node-writer", policies.before(writer.run(intents.clone())));
        let delay = DeletionDelayTask {
            node_name: node_name.clone(),
            timeout: settings.deletion_delay(),
            reports: reports.clone(),
            intents: intents.field(NodeField::DeletionDelay),
            events: events.clone(),
            metrics: metrics.deletion_delay,
            clock: clock.clone(),
        };
        tasks.spawn_endless("deletion-delay", delay_deletion(delay));
        let extras = channels.services.start(
            tasks,
            process.clone(),
            &events,
            inputs.clone(),
            metrics.services,
            self.service_reporters,
        );
        let bound = channels.health_bound.subscribe();
        let thread = HealthThread::start(HealthServer {
            binder: Binder {
                name: "healthz",
                address: settings.healthz_bind_address,
                hard_fail: settings.bind_address_hard_fail,
                state: channels.health_bound,
                log_runtime: Handle::try_current().ok(),
            },
            router: headgate_agent::health::router(inputs.clone(), metrics.health, clock.clone()),
            limits: Limits {
                proxy_protocol: settings.proxy_protocol,
                ..Limits::HEALTH
            },
            extras,
            metrics: metrics.listeners,
            reports: reports.clone(),
            kube_proxy: channels.awaits_kube_proxy.then(|| channels.proxy.subscribe()),
            heartbeat: self.heartbeat,
        })?;
        let taint = intents.field(NodeField::DrainingTaint);
        let channel = channels.azure;
        channel.start(tasks, process, reports.clone(), taint, events.clone(), metrics.spot);
        let directory = settings.state_dir.clone();
        let proxy = channels.proxy.subscribe();
        let store = store_reports(
            reports.clone(),
            proxy,
            channels.boot,
            directory,
            node_name,
            clock.clone(),
        );
        tasks.spawn_endless("remembered-state", store);
        let poll = headgate_agent::health::poll_kube_proxy(settings.kube_proxy.clone(), channels.proxy, clock.clone());
        tasks.spawn_endless("kube-proxy-poll", poll);
        tasks.spawn_endless(
            "verdict-changes",
            headgate_agent::health::publish_verdict_changes(inputs, channels.last_change, clock),
        );
        let failures = publish_bind_failures(bound, events, reports, settings.healthz_bind_address);
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
        let (name, reports) = (self.process.node_name.clone(), self.inputs.node.clone());
        let has_marker = self.process.settings.out_of_load_balancers.writer() != MarkerWriter::None;
        let intents = has_marker.then_some(intents);
        let Some(exchange) = exchange else {
            if let Some(intents) = intents {
                tasks.spawn_endless("connections", end_condition(name, reports, intents));
            }
            return;
        };
        let (services, clock) = (self.metrics.services.clone(), self.process.clock.clone());
        let task = ConnectionsTask {
            client: self.process.client.clone(),
            node_name: name,
            inputs: self.inputs.clone(),
            excluded: self.process.settings.excluded_sources.clone(),
            exchange,
            view,
            intents,
            metrics: self.metrics.connections.clone(),
            events: self.events.clone(),
            clock: clock.clone(),
            reporter: Box::new(move || services.service_watch_reporter(&clock)),
        };
        tasks.spawn_endless("connections", task.run());
    }

    fn spawn_marker(&self, tasks: &mut Tasks, services: &service_health::Channels, intents: FieldIntents) {
        let name = self.process.node_name.clone();
        match self.process.settings.out_of_load_balancers.writer() {
            MarkerWriter::None => {}
            MarkerWriter::Leader => {
                let reports = self.inputs.node.clone();
                let expire = expire_marker(name, MARKER_TTL, reports, intents, self.process.clock.clone());
                tasks.spawn_endless("marker", expire);
            }
            MarkerWriter::Probes(required) => {
                let marker = ProbesMarker {
                    node_name: name,
                    required,
                    inputs: self.inputs.clone(),
                    metrics: self.metrics.health.clone(),
                    services: services.kept_services(self.inputs.clone()),
                    clock: self.process.clock.clone(),
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
