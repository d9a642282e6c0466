//! `/statusz`: the state of the agent at one moment, and its text for operators. `agent_status` has the types, which the commands
//! read as JSON, and `statusz_page` the page for browsers.

use std::collections::BTreeMap;
use std::fmt;

use headgate_controller::local_pools::QueuedUpdate;
use headgate_core::node::Source;
use headgate_http::server::BindState;
use jiff::Timestamp;

use super::operations::Operations;
use super::service_health::ServiceHealthView;
use crate::agent_status::{
    AgentStatus, ConnectionsStatus, HoldStatus, KubeProxyStatus, LeadershipStatus, NodeStatus, PathStatus,
    SignalStatus, WatchErrorStatus,
};

impl AgentStatus {
    /// The state that these parts of the process have now.
    pub(super) fn of(operations: &Operations) -> Self {
        let now = operations.process.clock.now();
        let verdict = operations.inputs.verdict(now);
        let report = operations.inputs.node.borrow().clone();
        let last_change = *operations.last_change.borrow();
        let starts: BTreeMap<String, Timestamp> = (operations.inputs.notices.borrow().iter())
            .chain(report.signals())
            .map(|(signal, since)| (signal.to_string(), *since))
            .collect();
        let signals = verdict.signals.iter().map(|signal| SignalStatus {
            signal: signal.clone(),
            since: starts.get(signal).copied(),
        });
        let failure = operations.watch_failure.borrow().clone();
        let listener = |state: &BindState| match state {
            BindState::Bound(address) => address.to_string(),
            BindState::Waiting => "not bound yet".to_owned(),
            BindState::Failed(error) => format!("cannot be bound: {error}"),
            BindState::Closing => "closing".to_owned(),
        };
        let answers_probes = operations.process.role.answers_probes();
        let path = |is_ok: bool, since| {
            answers_probes.then_some(PathStatus {
                code: if is_ok { 200 } else { 503 },
                since,
            })
        };
        let term = operations.cluster.leader.current_term();
        let listeners = &operations.listeners;
        let health = listeners
            .healthz
            .as_ref()
            .map(|state| ("healthz", listener(&state.borrow())));
        Self {
            version: headgate_core::telemetry::VERSION.to_owned(),
            started_at: operations.started_at,
            current_time: now.wall,
            leader: LeadershipStatus {
                role: operations.process.role.as_str().to_owned(),
                stands: operations.process.is_candidate(),
                term: term.map(|(number, _)| number),
                since: term.map(|(_, since)| since),
            },
            node: NodeStatus {
                name: operations.process.node_name.clone(),
                uid: report.node.as_ref().map(|node| node.uid.clone()),
                object: report.object_state.as_str().to_owned(),
                source: report.source,
                signals: signals.collect(),
                hold: report.hold.filter(|_| verdict.is_held).map(|observed| HoldStatus {
                    pools: observed.hold.pools,
                    renewed_at: observed.hold.renewed_at,
                }),
                watch_error: failure.map(|failure| WatchErrorStatus {
                    reason: failure.reason.as_str().to_owned(),
                    error: failure.error,
                    since: failure.since,
                }),
            },
            healthz: path(verdict.is_healthz_ok(), last_change.map(|change| change.healthz)),
            livez: path(verdict.is_livez_ok(), last_change.map(|change| change.livez)),
            proxy: answers_probes.then(|| KubeProxyStatus {
                server: (operations.process.settings.kube_proxy.healthz_authority.as_ref())
                    .map(|authority| format!("http://{authority}")),
                healthy: verdict.proxy.healthy,
                last_updated: verdict.proxy.last_updated,
                families: verdict
                    .proxy
                    .families
                    .iter()
                    .map(|(family, health)| (*family, health.healthy))
                    .collect(),
            }),
            services: operations.services.as_ref().map(ServiceHealthView::status),
            kept_services: operations
                .services
                .as_ref()
                .map(|view| view.kept(verdict.at))
                .unwrap_or_default(),
            scheduled_events: operations
                .scheduled_events
                .as_ref()
                .map(|snapshots| snapshots.borrow().clone()),
            connections: (operations.connections.as_ref()).map(|view| ConnectionsStatus::of(&view.borrow())),
            local_pools: operations.cluster.queue.borrow().clone(),
            listeners: health
                .into_iter()
                .chain([("metrics", listener(&listeners.metrics.borrow()))])
                .map(|(name, state)| (name.to_owned(), state))
                .collect(),
            tasks: operations.tasks.borrow().clone(),
        }
    }
}

/// A past time and the present one; formats as "2026-01-02T03:04:05Z (12 s ago)".
#[derive(Clone, Copy)]
pub(super) struct Past(pub(super) Timestamp, pub(super) Timestamp);

impl Past {
    fn age_seconds(self) -> i64 {
        self.1.duration_since(self.0).as_secs().max(0)
    }
}

impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ({} s ago)", self.0, self.age_seconds())
    }
}

/// A start and the present time; formats as "since 2026-01-02T03:04:05Z (12 s)".
struct Since(Option<Timestamp>, Timestamp);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(since) = self.0 else {
            return f.write_str("unknown since when");
        };
        write!(f, "since {since:.0} ({} s)", Past(since, self.1).age_seconds())
    }
}

fn describe_source(source: Source) -> &'static str {
    match source {
        Source::Watch => "observed by the watch",
        Source::Remembered => "remembered from an earlier process",
        Source::None => "never observed",
    }
}

impl fmt::Display for AgentStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = |at| Since(at, self.current_time);
        let past = |at| Past(at, self.current_time);
        writeln!(f, "headgate {} on node {}", self.version, self.node.name)?;
        writeln!(f, "started    {}", past(self.started_at))?;
        writeln!(f)?;
        for (path, status) in [("/healthz", &self.healthz), ("/livez", &self.livez)] {
            if let Some(status) = status {
                writeln!(f, "{path:<10} {} {}", status.code, since(status.since))?;
            }
        }
        write!(f, "role       {}, ", self.leader.role)?;
        match (self.leader.term, self.leader.stands) {
            (Some(term), _) => writeln!(f, "leads in term {term} {}", since(self.leader.since))?,
            (None, true) => writeln!(f, "stands for election")?,
            (None, false) => writeln!(f, "does not stand for election")?,
        }
        let uid = self.node.uid.as_deref().unwrap_or("unknown");
        writeln!(
            f,
            "node       {}, UID {uid}, {}",
            self.node.object,
            describe_source(self.node.source)
        )?;
        if self.node.signals.is_empty() {
            writeln!(f, "signals    none")?;
        }
        for signal in &self.node.signals {
            writeln!(f, "signal     {} {}", signal.signal, since(signal.since))?;
        }
        if let Some(hold) = &self.node.hold {
            let pools: Vec<_> = hold.pools.iter().map(String::as_str).collect();
            let (pools, renewed) = (pools.join(", "), past(hold.renewed_at));
            writeln!(f, "hold       kept in service in {pools}, renewed {renewed}")?;
        }
        if let Some(error) = &self.node.watch_error {
            writeln!(
                f,
                "watch      {} {}: {}",
                error.reason,
                since(Some(error.since)),
                error.error
            )?;
        }
        let health = |healthy| if healthy { "healthy" } else { "unhealthy" };
        match self
            .proxy
            .as_ref()
            .map(|proxy| (proxy, &proxy.server, proxy.last_updated))
        {
            None => {}
            Some((_, None, _)) => writeln!(f, "kube-proxy not polled (kubeProxyHealthzUrl: Disabled)")?,
            Some((_, Some(server), None)) => writeln!(f, "kube-proxy {server} has not answered yet, ignored")?,
            Some((proxy, Some(server), Some(updated))) => {
                let state = health(proxy.healthy);
                writeln!(f, "kube-proxy {server} {state}, last update {}", past(updated))?;
                for (family, healthy) in &proxy.families {
                    writeln!(f, "           {family:?} {}", health(*healthy))?;
                }
            }
        }
        if let Some(services) = &self.services {
            write!(f, "{services}")?;
        }
        for kept in &self.kept_services {
            writeln!(f, "kept       {}: {}", kept.service, kept.why)?;
        }
        if let Some(connections) = &self.connections {
            writeln!(f, "connections {}", connections.message)?;
        }
        if let Some(snapshot) = &self.scheduled_events {
            write!(f, "{snapshot}")?;
        }
        for update in &self.local_pools {
            let QueuedUpdate {
                service, pool, retries, ..
            } = update;
            write!(
                f,
                "update     {service} in {pool} pending {}",
                since(Some(update.pending_since))
            )?;
            match update.parked_until {
                Some(until) => writeln!(f, ", {retries} retries, parked until {until:.0}")?,
                None => writeln!(f, ", {retries} retries")?,
            }
        }
        writeln!(f)?;
        for (name, state) in &self.listeners {
            writeln!(f, "listener   {name:<18} {state}")?;
        }
        for task in &self.tasks {
            writeln!(f, "task       {:<18} {}", task.name, since(Some(task.since)))?;
        }
        Ok(())
    }
}
