//! What runs where a process answers for its node: the health port, what it answers from, and who is told of it.

use std::net::SocketAddr;
use std::sync::Arc;

use headgate_clock::Clock;
use headgate_health::{Inputs, LastChange, ProxyStatus};
use headgate_http::server::{self, BindState, Binder, Limits};
use headgate_kubernetes::{NodeEventRecorder, WarningEvent};
use headgate_node::Report;
use kube::Client;
use tokio::sync::watch;

use super::health_thread::{HealthThread, Heartbeat};
use super::supervise::Tasks;
use super::{AgentError, scheduled_events, services, uid};
use crate::config::Settings;

/// What it is made of.
pub(super) struct Answering<'a> {
    pub(super) settings: &'a Settings,
    pub(super) client: &'a Client,
    pub(super) node_name: &'a str,
    pub(super) events: &'a NodeEventRecorder,
    pub(super) inputs: Inputs,
    pub(super) clock: Clock,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) listeners: server::Metrics,
    pub(super) health: headgate_health::Metrics,
    pub(super) services: headgate_health::services::Metrics,
    pub(super) spot: headgate_spot::Metrics,
}

/// Where it publishes what it learns.
pub(super) struct Outlets {
    pub(super) services: services::Channels,
    pub(super) azure: scheduled_events::Channels,
    pub(super) proxy: watch::Sender<ProxyStatus>,
    pub(super) last_change: watch::Sender<Option<LastChange>>,
    pub(super) bound: watch::Sender<BindState>,
}

impl Answering<'_> {
    /// Starts all of it; gives the thread that answers.
    pub(super) fn start(self, tasks: &mut Tasks, outlets: Outlets) -> Result<HealthThread, AgentError> {
        let Self {
            settings,
            client,
            node_name,
            events,
            inputs,
            clock,
            ..
        } = self;
        let reports = inputs.node.clone();
        tasks.list("health-thread");
        let shared = (client.clone(), node_name.to_owned(), events.clone());
        let extra = (outlets.services).start(tasks, settings, shared, inputs.clone(), self.services);
        let bound = outlets.bound.subscribe();
        let binder = Binder {
            name: "healthz",
            address: settings.healthz_bind_address,
            hard_fail: settings.bind_address_hard_fail,
            state: outlets.bound,
        };
        let thread = HealthThread::start(
            binder,
            headgate_health::router(inputs.clone(), self.health, clock.clone()),
            limits(settings),
            extra,
            self.listeners,
            reports.clone(),
            self.heartbeat,
        )?;
        (outlets.azure).start(tasks, (client, node_name), &reports, self.spot);
        let (directory, name) = (settings.state_dir.clone(), node_name.to_owned());
        let remember = headgate_node::remember(reports.clone(), directory, name, clock.clone());
        tasks.endless("remembered-state", remember);
        let poll = headgate_health::follow_kube_proxy(settings.proxy.clone(), outlets.proxy, clock.clone());
        tasks.endless("kube-proxy-poll", poll);
        tasks.endless(
            "verdict-changes",
            headgate_health::follow(inputs, outlets.last_change, clock),
        );
        let address = settings.healthz_bind_address;
        tasks.endless("bind-events", bind_events(bound, events.clone(), reports, address));
        Ok(thread)
    }
}

/// What peers of the health port are allowed.
fn limits(settings: &Settings) -> Limits {
    Limits {
        proxy_protocol: settings.proxy_protocol,
        ..Limits::HEALTH
    }
}

/// That the health port is not bound.
pub(super) fn bind_event(note: String) -> WarningEvent {
    WarningEvent {
        reason: "FailedToStartHealthServer",
        action: "Listen",
        note,
    }
}

/// Tells people with `kubectl` that the health port is not bound, once for each reason.
async fn bind_events(
    mut states: watch::Receiver<BindState>,
    events: NodeEventRecorder,
    reports: watch::Receiver<Report>,
    address: SocketAddr,
) {
    loop {
        let state = states.borrow_and_update().clone();
        if let BindState::Failed(why) = state {
            let note = format!("headgate cannot serve /healthz on {address}: {why}; it tries again every 5 s");
            events.record_warning(bind_event(note), uid(&reports)).await;
        }
        if states.changed().await.is_err() {
            // The listener is gone: the agent is stopping, and this task with it.
            return std::future::pending().await;
        }
    }
}
