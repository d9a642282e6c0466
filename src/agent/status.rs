//! `/statusz`: everything the agent knows and does, for people, and the same as JSON for tools.

use std::collections::BTreeMap;
use std::fmt;

use headgate_health::Family;
use headgate_http::server::BindState;
use headgate_spot::Seen;
use jiff::Timestamp;
use serde::Serialize;

use super::operations::Operations;
use super::services::{ServicesStatus, View};

/// The agent's state at one moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    version: &'static str,
    started_at: Timestamp,
    current_time: Timestamp,
    leader: LeaderStatus,
    node: NodeStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    healthz: Option<PathStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    livez: Option<PathStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy: Option<ProxyStatusView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    services: Option<ServicesStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduled_events: Option<Seen>,
    listeners: BTreeMap<&'static str, String>,
    tasks: Vec<TaskStatus>,
}

#[derive(Debug, Serialize)]
struct LeaderStatus {
    role: &'static str,
    /// Whether this instance stands for election.
    stands: bool,
    /// The term that it leads in.
    #[serde(skip_serializing_if = "Option::is_none")]
    term: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
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
        let answers = operations.role.answers_probes();
        let path = |good: bool, since| {
            answers.then_some(PathStatus {
                code: if good { 200 } else { 503 },
                since,
            })
        };
        let term = operations.terms.current_term();
        let listeners = &operations.listeners;
        let health = listeners
            .healthz
            .as_ref()
            .map(|state| ("healthz", listener(&state.borrow())));
        Self {
            version: headgate_telemetry::VERSION,
            started_at: operations.started,
            current_time: now.wall,
            leader: LeaderStatus {
                role: operations.role.as_str(),
                stands: operations.stands,
                term: term.map(|term| term.number),
                since: term.map(|term| term.since),
            },
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
            healthz: path(verdict.healthz(), last_change.map(|change| change.healthz)),
            livez: path(verdict.livez(), last_change.map(|change| change.livez)),
            proxy: answers.then(|| ProxyStatusView {
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
            }),
            services: operations.services.as_ref().map(View::status),
            scheduled_events: operations.seen.as_ref().map(|seen| seen.borrow().clone()),
            listeners: health
                .into_iter()
                .chain([("metrics", listener(&listeners.metrics.borrow()))])
                .collect(),
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
        let word = |healthy| if healthy { "healthy" } else { "unhealthy" };
        match self
            .proxy
            .as_ref()
            .map(|proxy| (proxy, &proxy.server, proxy.last_updated))
        {
            None => {}
            Some((_, None, _)) => writeln!(f, "kube-proxy not asked (proxy.healthzUrl: off)")?,
            Some((_, Some(server), None)) => writeln!(f, "kube-proxy {server} has not answered yet; ignored")?,
            Some((proxy, Some(server), Some(updated))) => {
                let state = word(proxy.healthy);
                writeln!(f, "kube-proxy {server} {state}, last update {}", past(updated))?;
                for (family, healthy) in &proxy.families {
                    writeln!(f, "           {family:?} {}", word(*healthy))?;
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
