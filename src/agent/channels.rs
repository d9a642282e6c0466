//! What the agent's tasks share: channels with the latest state, and the registry of metrics.

use std::sync::Arc;

use headgate_agent::connections::{ConnectionMetrics, ConnectionsView, CountExchange};
use headgate_agent::health::{LastChange, ProxyStatus, VerdictInputs};
use headgate_agent::own_node::{Boot, RememberedState};
use headgate_controller::{admin_state, local_pools, preempt_events};
use headgate_core::clock::Clock;
use headgate_core::node::NodeReport;
use headgate_core::telemetry::MetricTable;
use headgate_http::server::{self, BindState};
use headgate_kubernetes::NodeWriteMetrics;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use super::Role;
use super::addresses::Listeners;
use super::scheduled_events;
use super::service_health;
use crate::config::Settings;

/// The channels with the latest state. Each has one writer, the task that gets the sender.
pub(super) struct Channels {
    pub(super) reports: watch::Sender<NodeReport>,
    pub(super) proxy: watch::Sender<ProxyStatus>,
    /// The present boot of the machine, with the address that is asked about kube-proxy.
    pub(super) boot: Boot,
    /// Whether the first answer of kube-proxy is waited for: nothing is known of this boot.
    pub(super) awaits_kube_proxy: bool,
    pub(super) azure: scheduled_events::Channels,
    pub(super) last_change: watch::Sender<Option<LastChange>>,
    pub(super) health_bound: watch::Sender<BindState>,
    pub(super) operations_bound: watch::Sender<BindState>,
    pub(super) services: service_health::Channels,
    /// The way to the process that counts connections, if they are counted.
    pub(super) exchange: Option<CountExchange>,
    pub(super) connections: watch::Sender<ConnectionsView>,
}

impl Channels {
    pub(super) fn new(settings: &Settings, remembered: Option<RememberedState>, clock: &Clock) -> Self {
        let kube_proxy = &settings.kube_proxy;
        let boot = Boot::present(kube_proxy.healthz_authority.clone());
        let known = remembered
            .as_ref()
            .map(|state| &state.boot)
            .filter(|known| known.is_same(&boot));
        let has_answered = boot.kube_proxy.is_some() && known.is_some_and(|known| known.kube_proxy == boot.kube_proxy);
        let proxy = if has_answered {
            ProxyStatus::answered_before(kube_proxy.health_timeout, clock.now())
        } else {
            ProxyStatus::new(kube_proxy.health_timeout)
        };
        let awaits_kube_proxy = boot.kube_proxy.is_some() && known.is_none();
        let report = NodeReport::initial(
            remembered.map(|state| state.known),
            &settings.signals.health(),
            clock.now(),
        );
        Self {
            reports: watch::Sender::new(report),
            proxy: watch::Sender::new(proxy),
            boot,
            awaits_kube_proxy,
            azure: scheduled_events::Channels::new(settings),
            last_change: watch::Sender::new(None),
            health_bound: watch::Sender::new(BindState::Waiting),
            operations_bound: watch::Sender::new(BindState::Waiting),
            services: service_health::Channels::new(settings),
            exchange: settings.count_connections.then(CountExchange::default),
            connections: watch::Sender::default(),
        }
    }

    pub(super) fn inputs(&self) -> VerdictInputs {
        VerdictInputs {
            node: self.reports.subscribe(),
            proxy: self.proxy.subscribe(),
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

/// The metrics of all crates, in one registry.
#[derive(Clone)]
pub(super) struct Metrics {
    pub(super) registry: Arc<Registry>,
    pub(super) listeners: server::Metrics,
    pub(super) node: headgate_agent::own_node::Metrics,
    pub(super) health: headgate_agent::health::Metrics,
    pub(super) services: headgate_agent::health::services::Metrics,
    pub(super) spot: headgate_agent::spot::Metrics,
    pub(super) connections: ConnectionMetrics,
    pub(super) deletion_delay: headgate_agent::own_node::DeletionDelayMetrics,
    pub(super) azure: headgate_azure::Metrics,
    pub(super) leader: headgate_kubernetes::leader::LeaderMetrics,
    pub(super) lock: headgate_kubernetes::leader::LockMetrics,
    pub(super) admin_state: admin_state::Metrics,
    pub(super) local_pools: local_pools::Metrics,
    pub(super) preempt_events: preempt_events::Metrics,
    pub(super) node_writes: NodeWriteMetrics,
    pub(super) maintenance: headgate_maintenance::controller::Metrics,
    pub(super) notifications: headgate_agent::notify::Metrics,
}

impl Metrics {
    pub(super) fn register(settings: &Settings, role: Role, channels: &Channels, clock: &Clock) -> Self {
        let mut registry = Registry::default();
        // Metrics of work that this role does not do are registered here and never shown.
        let mut hidden = Registry::default();
        headgate_core::telemetry::register_build_info(&mut registry);
        headgate_core::telemetry::register_process_metrics(&mut registry);
        headgate_kubernetes::register_undecodable_objects(&mut registry);
        let last_change = channels.last_change.subscribe();
        let listeners = server::Metrics::register(&mut registry);
        for listener in ["metrics", "probe"] {
            listeners.init_listener(listener);
        }
        if role.answers_probes() {
            listeners.init_listener("healthz");
            listeners.init_proxy_headers("healthz");
        }
        let node = headgate_agent::own_node::Metrics::register(&mut registry);
        let node_writes = NodeWriteMetrics::register(&mut registry);
        let notifications = headgate_agent::notify::Metrics::register(&mut registry);
        let expects_leader = MetricTable::from(&mut registry).metric::<Gauge>(
            "headgate_leader_expected",
            "1 if the role and the settings of this process mean that an instance leads, this one or another, 0 otherwise",
        );
        // Agents that leave it to others say so by their role.
        expects_leader.set(i64::from(role != Role::All || settings.azure.is_configured()));
        let leads = if role.may_lead() { &mut registry } else { &mut hidden };
        let leader = headgate_kubernetes::leader::LeaderMetrics::register(&mut *leads);
        let azure = headgate_azure::Metrics::register(&mut *leads).with_own(&mut *leads);
        let (lock, admin_state, local_pools, preempt_events, maintenance) = (
            headgate_kubernetes::leader::LockMetrics::register(&mut *leads),
            admin_state::Metrics::register(&mut *leads),
            local_pools::Metrics::register(&mut *leads),
            preempt_events::Metrics::register(leads),
            headgate_maintenance::controller::Metrics::register(leads),
        );
        let answers = if role.answers_probes() {
            &mut registry
        } else {
            &mut hidden
        };
        let reports = channels.reports.subscribe();
        headgate_agent::own_node::register_gauges(&mut *answers, reports, settings.signals.health());
        Self {
            listeners,
            node,
            leader,
            lock,
            admin_state,
            local_pools,
            preempt_events,
            maintenance,
            node_writes,
            notifications,
            azure,
            deletion_delay: headgate_agent::own_node::DeletionDelayMetrics::register(
                &mut *answers,
                channels.reports.subscribe(),
            ),
            spot: headgate_agent::spot::Metrics::register(&mut *answers, channels.azure.snapshots.subscribe()),
            health: headgate_agent::health::Metrics::register(
                &mut *answers,
                channels.inputs(),
                last_change,
                clock.clone(),
            ),
            services: channels.services.register_metrics(&mut *answers),
            connections: ConnectionMetrics::register(answers, channels.connections.subscribe()),
            registry: Arc::new(registry),
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::node::Node;

    use super::*;

    /// Whether kube-proxy's first answer is waited for, and whether one is known of already, after a process that stored this boot.
    fn at_start(polls: bool, stored: Option<Boot>) -> (bool, bool) {
        let (clock, mut settings) = (Clock::System, Settings::default());
        if !polls {
            settings.kube_proxy.healthz_authority = None;
        }
        let report = NodeReport::initial(None, &settings.signals.health(), clock.now());
        let report = report.with_node(Node::default(), clock.now());
        let remembered = stored.and_then(|boot| RememberedState::from_report("n", boot, &report, clock.now()));
        let channels = Channels::new(&settings, remembered, &clock);
        (channels.awaits_kube_proxy, channels.proxy.borrow().is_known())
    }

    #[test]
    fn kube_proxy_is_awaited_in_a_new_boot_and_counts_where_it_has_answered_in_this_one() {
        let authority = Settings::default().kube_proxy.healthz_authority;
        let other = Some("127.0.0.1:1".to_owned());
        let before = Boot {
            id: "another".to_owned(),
            kube_proxy: authority.clone(),
        };
        for (stored, expected) in [
            (None, (true, false)),
            (Some(before), (true, false)),
            (Some(Boot::default()), (true, false)),
            (Some(Boot::present(None)), (false, false)),
            (Some(Boot::present(other)), (false, false)),
            (Some(Boot::present(authority)), (false, true)),
        ] {
            assert_eq!(at_start(true, stored.clone()), expected, "{stored:?}");
            assert_eq!(at_start(false, stored.clone()), (false, false), "{stored:?}");
        }
    }
}
