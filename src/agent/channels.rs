//! What the agent's tasks share: channels of current state, and the registry of metrics.

use headgate_clock::Clock;
use headgate_controller::admin_state;
use headgate_health::{Inputs, LastChange, ProxyStatus};
use headgate_http::server::{self, BindState};
use headgate_node::{Memory, Report, Trouble};
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::Role;
use super::addresses::Listeners;
use super::scheduled_events;
use super::services;
use crate::config::Settings;

/// The channels of current state that the tasks share. One writer each, handed to its task.
pub(super) struct Channels {
    pub(super) reports: watch::Sender<Report>,
    pub(super) proxy: watch::Sender<ProxyStatus>,
    pub(super) stopping: watch::Sender<bool>,
    pub(super) azure: scheduled_events::Channels,
    pub(super) trouble: watch::Sender<Option<Trouble>>,
    pub(super) last_change: watch::Sender<Option<LastChange>>,
    pub(super) health_bound: watch::Sender<BindState>,
    pub(super) operations_bound: watch::Sender<BindState>,
    pub(super) close_operations: watch::Sender<bool>,
    pub(super) services: services::Channels,
}

impl Channels {
    pub(super) fn new(settings: &Settings, memory: Option<Memory>, clock: &Clock) -> Self {
        let report = Report::initial(memory, &settings.signals.health, clock.now());
        Self {
            reports: watch::Sender::new(report),
            proxy: watch::Sender::new(ProxyStatus::new(settings.proxy.health_timeout)),
            stopping: watch::Sender::new(false),
            azure: scheduled_events::Channels::new(&settings.azure, clock),
            trouble: watch::Sender::new(None),
            last_change: watch::Sender::new(None),
            health_bound: watch::Sender::new(BindState::Waiting),
            operations_bound: watch::Sender::new(BindState::Waiting),
            close_operations: watch::Sender::new(false),
            services: services::Channels::new(settings, clock),
        }
    }

    pub(super) fn inputs(&self) -> Inputs {
        Inputs {
            node: self.reports.subscribe(),
            proxy: self.proxy.subscribe(),
            stopping: self.stopping.subscribe(),
            notices: self.azure.notices.subscribe(),
        }
    }

    pub(super) fn listeners(&self, role: Role) -> Listeners {
        Listeners {
            healthz: role.answers_probes().then(|| self.health_bound.subscribe()),
            metrics: self.operations_bound.subscribe(),
        }
    }
}

/// Every room's metrics, in one registry.
pub(super) struct Metrics {
    pub(super) registry: Registry,
    pub(super) listeners: server::Metrics,
    pub(super) node: headgate_node::Metrics,
    pub(super) health: headgate_health::Metrics,
    pub(super) services: headgate_health::services::Metrics,
    pub(super) spot: headgate_spot::Metrics,
    pub(super) azure: headgate_azure::Metrics,
    pub(super) leader: headgate_leader::LeaderMetrics,
    pub(super) lock: headgate_leader::LockMetrics,
    pub(super) admin_state: admin_state::Metrics,
}

impl Metrics {
    pub(super) fn register(settings: &Settings, role: Role, channels: &Channels, clock: &Clock) -> Self {
        let mut registry = Registry::default();
        // What a process does not do it does not count either.
        let mut unread = Registry::default();
        headgate_telemetry::register_build(&mut registry);
        headgate_telemetry::register_process(&mut registry);
        let (reports, last_change) = (channels.reports.subscribe(), channels.last_change.subscribe());
        let listeners = server::Metrics::register(&mut registry);
        for listener in ["metrics", "probe"] {
            listeners.announce(listener);
        }
        if role.answers_probes() {
            listeners.announce("healthz");
            listeners.announce_proxy_headers("healthz");
        }
        let node = headgate_node::Metrics::register(&mut registry, reports, settings.signals.health.clone());
        let leader =
            headgate_leader::LeaderMetrics::register(if role.may_lead() { &mut registry } else { &mut unread });
        let azure = headgate_azure::Metrics::register(if role.may_lead() { &mut registry } else { &mut unread });
        let leads = if role.may_lead() { &mut registry } else { &mut unread };
        let (lock, admin_state) = (
            headgate_leader::LockMetrics::register(leads),
            admin_state::Metrics::register(leads),
        );
        let answers = if role.answers_probes() {
            &mut registry
        } else {
            &mut unread
        };
        Self {
            listeners,
            node,
            leader,
            lock,
            admin_state,
            azure,
            spot: headgate_spot::Metrics::register(answers, channels.azure.seen.subscribe(), clock.clone()),
            health: headgate_health::Metrics::register(answers, channels.inputs(), last_change, clock.clone()),
            services: channels.services.metrics(answers),
            registry,
        }
    }
}
