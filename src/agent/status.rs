//! `/statusz`: everything the agent knows and does, for people, and the same as JSON for tools.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;

use super::operations::Operations;
use super::services::{ServicesStatus, View};
use crate::health::Family;
use crate::server::BindState;
use crate::spot::Seen;
use crate::telemetry;

/// The agent's state at one moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    version: &'static str,
    started_at: Timestamp,
    current_time: Timestamp,
    node: NodeStatus,
    healthz: PathStatus,
    livez: PathStatus,
    proxy: ProxyStatusView,
    #[serde(skip_serializing_if = "Option::is_none")]
    services: Option<ServicesStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduled_events: Option<Seen>,
    listeners: BTreeMap<&'static str, String>,
    tasks: Vec<TaskStatus>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    name: String,
    uid: Option<String>,
    object: &'static str,
    source: &'static str,
    signals: Vec<SignalStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    watch_error: Option<WatchError>,
}

#[derive(Debug, Serialize)]
struct SignalStatus {
    signal: String,
    since: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
struct WatchError {
    reason: &'static str,
    error: String,
    since: Timestamp,
}

#[derive(Debug, Serialize)]
struct PathStatus {
    code: u16,
    since: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyStatusView {
    server: Option<String>,
    healthy: bool,
    last_updated: Option<Timestamp>,
    families: BTreeMap<Family, bool>,
}

#[derive(Debug, Serialize)]
struct TaskStatus {
    name: &'static str,
    since: Timestamp,
}

impl Status {
    pub(super) fn of(operations: &Operations) -> Self {
        let now = operations.clock.now();
        let verdict = operations.inputs.verdict(now);
        let report = operations.inputs.node.borrow().clone();
        let last_change = *operations.last_change.borrow();
        let code = |good: bool| if good { 200 } else { 503 };
        let mut since = operations.inputs.notices.borrow().clone();
        since.extend(
            report
                .signals
                .iter()
                .map(|(signal, since)| (signal.to_string(), *since)),
        );
        let signals = verdict.signals.iter().map(|signal| SignalStatus {
            signal: signal.clone(),
            since: since.get(signal).copied(),
        });
        let trouble = operations.trouble.borrow().clone();
        let listener = |state: &BindState| match state {
            BindState::Bound(address) => address.to_string(),
            BindState::Waiting => "not bound yet".to_owned(),
            BindState::Failed(why) => format!("cannot be bound: {why}"),
            BindState::Closing => "closing".to_owned(),
        };
        let [health, metrics] = &operations.bound;
        Self {
            version: telemetry::VERSION,
            started_at: operations.started,
            current_time: now.wall,
            node: NodeStatus {
                name: operations.node_name.clone(),
                uid: report.facts.as_ref().map(|facts| facts.uid.clone()),
                object: report.presence.as_str(),
                source: report.source.as_str(),
                signals: signals.collect(),
                watch_error: trouble.map(|t| WatchError {
                    reason: t.reason,
                    error: t.error,
                    since: t.since,
                }),
            },
            healthz: PathStatus {
                code: code(verdict.healthz()),
                since: last_change.map(|change| change.healthz),
            },
            livez: PathStatus {
                code: code(verdict.livez()),
                since: last_change.map(|change| change.livez),
            },
            proxy: ProxyStatusView {
                server: operations
                    .proxy_server
                    .as_ref()
                    .map(|authority| format!("http://{authority}")),
                healthy: verdict.proxy.healthy,
                last_updated: verdict.proxy.last_updated,
                families: verdict
                    .proxy
                    .families
                    .iter()
                    .map(|(family, (_, healthy))| (*family, *healthy))
                    .collect(),
            },
            services: operations.services.as_ref().map(View::status),
            scheduled_events: operations.seen.as_ref().map(|seen| seen.borrow().clone()),
            listeners: [
                ("healthz", listener(&health.borrow())),
                ("metrics", listener(&metrics.borrow())),
            ]
            .into(),
            tasks: operations
                .tasks
                .borrow()
                .iter()
                .map(|&(name, since)| TaskStatus { name, since })
                .collect(),
        }
    }
}

/// A time of the past, to the second, and the present.
#[derive(Clone, Copy)]
struct Past(Timestamp, Timestamp);

impl Past {
    fn age(self) -> i64 {
        self.1.duration_since(self.0).as_secs().max(0)
    }
}

/// When something happened, with how long ago that is.
impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ({} s ago)", self.0, self.age())
    }
}

/// Since when something lasts, with how long that is.
struct Since(Option<Timestamp>, Timestamp);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(since) = self.0 else {
            return f.write_str("unknown since when");
        };
        write!(f, "since {since:.0} ({} s)", Past(since, self.1).age())
    }
}

/// Where the Node's state is known from, in words.
fn known_from(source: &str) -> &str {
    match source {
        "watch" => "seen by the watch",
        "remembered" => "remembered from an earlier process",
        _ => "never seen",
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = |at| Since(at, self.current_time);
        let past = |at| Past(at, self.current_time);
        writeln!(f, "headgate {} on node {}", self.version, self.node.name)?;
        writeln!(f, "started    {}", past(self.started_at))?;
        writeln!(f)?;
        writeln!(f, "/healthz   {} {}", self.healthz.code, since(self.healthz.since))?;
        writeln!(f, "/livez     {} {}", self.livez.code, since(self.livez.since))?;
        let uid = self.node.uid.as_deref().unwrap_or("unknown");
        writeln!(
            f,
            "node       {}, UID {uid}, {}",
            self.node.object,
            known_from(self.node.source)
        )?;
        if self.node.signals.is_empty() {
            writeln!(f, "signals    none")?;
        }
        for signal in &self.node.signals {
            writeln!(f, "signal     {} {}", signal.signal, since(signal.since))?;
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
        match (&self.proxy.server, self.proxy.last_updated) {
            (None, _) => writeln!(f, "kube-proxy not asked (proxy.healthzUrl: off)")?,
            (Some(server), None) => writeln!(f, "kube-proxy {server} has not answered yet; ignored")?,
            (Some(server), Some(updated)) => {
                let state = if self.proxy.healthy { "healthy" } else { "unhealthy" };
                writeln!(f, "kube-proxy {server} {state}, last update {}", past(updated))?;
                for (family, healthy) in &self.proxy.families {
                    writeln!(
                        f,
                        "           {family:?} {}",
                        if *healthy { "healthy" } else { "unhealthy" }
                    )?;
                }
            }
        }
        if let Some(services) = &self.services {
            write!(f, "{services}")?;
        }
        if let Some(seen) = &self.scheduled_events {
            write!(f, "{seen}")?;
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
