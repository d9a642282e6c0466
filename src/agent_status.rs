//! The state of a process as `/statusz` has it: the agent serializes it, and the commands read it.
//!
//! Invariant: a command reads what an agent of another version wrote, so unknown fields are ignored, and what no command reads
//! is not deserialized.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use headgate_agent::connections::{ConnectionCount, ConnectionsView};
use headgate_agent::spot::EventsSnapshot;
use headgate_controller::local_pools::QueuedUpdate;
use headgate_core::node::{Signal, Source};
use headgate_core::service::IpFamily;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The state of a process at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentStatus {
    /// The version of its program.
    pub version: String,
    #[serde(default)]
    pub(crate) started_at: Timestamp,
    #[serde(default)]
    pub(crate) current_time: Timestamp,
    #[serde(default)]
    pub(crate) leader: LeadershipStatus,
    /// The state of the Node as the process has it.
    pub node: NodeStatus,
    /// The present answer of `/healthz`, if the process serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthz: Option<PathStatus>,
    /// The present answer of `/livez`, if the process serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub livez: Option<PathStatus>,
    /// The health of kube-proxy, if the process serves probes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<KubeProxyStatus>,
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub(crate) services: Option<ServicesStatus>,
    /// The Services to which load balancers keep sending although the node has signals.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub kept_services: Vec<KeptServiceStatus>,
    /// The connections that pass through the node, if they are counted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connections: Option<ConnectionsStatus>,
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub(crate) scheduled_events: Option<EventsSnapshot>,
    /// The leader's queue of updates of Local Services' pools.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub local_pools: Vec<QueuedUpdate>,
    /// Its listeners, each with its address or with the reason why it has none.
    #[serde(default)]
    pub listeners: BTreeMap<String, String>,
    #[serde(skip_deserializing)]
    pub(crate) tasks: Vec<TaskStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeadershipStatus {
    pub(crate) role: String,
    /// Whether this instance stands for election.
    pub(crate) stands: bool,
    /// The number of the term in which it leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) term: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
}

/// The state of a Node as its agent has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeStatus {
    /// The name of the agent's Node.
    pub name: String,
    pub(crate) uid: Option<String>,
    #[serde(default)]
    pub(crate) object: String,
    /// Where the agent has the state of the Node from.
    pub source: Source,
    /// The signals of the node that the agent observed.
    pub signals: Vec<SignalStatus>,
    /// The leader's hold, while it keeps the node in service although it has signals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldStatus>,
    /// The current failure of the watch of the Node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch_error: Option<WatchErrorStatus>,
}

/// The leader's hold on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HoldStatus {
    /// The pools, as `LOAD_BALANCER/POOL`.
    pub pools: BTreeSet<String>,
    #[serde(default)]
    pub(crate) renewed_at: Timestamp,
}

/// A signal of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SignalStatus {
    /// The signal's name, such as its taint key.
    pub signal: String,
    /// The signal's start, if it is known.
    pub since: Option<Timestamp>,
}

impl SignalStatus {
    pub(crate) fn parse(&self) -> Signal {
        let Ok(signal) = self.signal.parse();
        signal
    }
}

/// A failure of an agent's watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WatchErrorStatus {
    #[serde(default)]
    pub(crate) reason: String,
    /// The text of the error.
    pub error: String,
    /// The time of the first error.
    pub since: Timestamp,
}

/// The present answer of one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PathStatus {
    /// The status code, 200 or 503.
    pub code: u16,
    /// The time of the last change.
    pub since: Option<Timestamp>,
}

/// The health of kube-proxy as an agent has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KubeProxyStatus {
    /// The address that the agent polls, if it polls one.
    pub server: Option<String>,
    /// Whether kube-proxy is healthy, or its health unknown.
    pub healthy: bool,
    pub(crate) last_updated: Option<Timestamp>,
    #[serde(default)]
    pub(crate) families: BTreeMap<IpFamily, bool>,
}

/// Service health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServicesStatus {
    pub(crate) mode: String,
    /// The number of Services with service health, once they are listed.
    pub(crate) services: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) open_ports: Option<usize>,
    pub(crate) failed_ports: Vec<FailedPort>,
    pub(crate) watch_errors: BTreeMap<String, String>,
}

/// The connections that pass through the node, from the counts since it has a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConnectionsStatus {
    /// The reason of the condition `headgate.dev/ConnectionsDrained`.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// The last count.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last: Option<ConnectionCount>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counted_at: Option<Timestamp>,
}

impl ConnectionsStatus {
    pub(crate) fn of(view: &ConnectionsView) -> Self {
        let condition = view.state.condition();
        let (last, counted_at) = view.last.clone().unzip();
        Self {
            reason: condition.reason.to_owned(),
            message: condition.message,
            last: last.map(|count| ConnectionCount::clone(&count)),
            counted_at,
        }
    }

    /// For the column of a table: the number, or a word.
    pub(crate) fn cell(&self) -> String {
        match (&*self.reason, &self.last) {
            ("NoSignal", _) => "-".to_owned(),
            ("NotCounted" | "NotCountedYet", _) | (_, None) => "?".to_owned(),
            (_, Some(count)) => count.total().to_string(),
        }
    }
}

/// A Service to which load balancers keep sending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptServiceStatus {
    /// As `NAMESPACE/NAME`.
    pub service: String,
    /// Why, in a phrase.
    pub why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FailedPort {
    pub(crate) service: String,
    pub(crate) family: String,
    pub(crate) port: u16,
    pub(crate) error: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct TaskStatus {
    pub(crate) name: &'static str,
    pub(crate) since: Timestamp,
}

impl AgentStatus {
    /// Why the health port does not answer; `None` if it does.
    pub(crate) fn health_port_error(&self) -> Option<&str> {
        let state = self.listeners.get("healthz")?;
        // A closing listener still answers, or the next process on the port does.
        let is_served = state.parse::<SocketAddr>().is_ok() || state == "closing";
        (!is_served).then_some(state)
    }
}

#[cfg(test)]
impl AgentStatus {
    /// A state in which every text is `text`.
    pub(crate) fn example(text: &str) -> Self {
        let (now, text) = (Timestamp::UNIX_EPOCH, text.to_owned());
        Self {
            version: "1.2.3".to_owned(),
            started_at: now,
            current_time: now,
            leader: LeadershipStatus {
                role: "all".to_owned(),
                stands: true,
                term: Some(3),
                since: Some(now),
            },
            node: NodeStatus {
                name: text.clone(),
                uid: Some(text.clone()),
                object: "present".to_owned(),
                source: Source::Watch,
                signals: vec![SignalStatus {
                    signal: text.clone(),
                    since: Some(now),
                }],
                hold: Some(HoldStatus {
                    pools: [text.clone()].into(),
                    renewed_at: now,
                }),
                watch_error: Some(WatchErrorStatus {
                    reason: "server".to_owned(),
                    error: text.clone(),
                    since: now,
                }),
            },
            healthz: Some(PathStatus { code: 503, since: None }),
            livez: Some(PathStatus { code: 200, since: None }),
            proxy: Some(KubeProxyStatus {
                server: Some(text.clone()),
                healthy: true,
                last_updated: Some(now),
                families: BTreeMap::new(),
            }),
            services: None,
            connections: Some(ConnectionsStatus {
                reason: text.clone(),
                message: text.clone(),
                last: Some(ConnectionCount {
                    not_counted: vec![text.clone()],
                    ..ConnectionCount::default()
                }),
                counted_at: Some(now),
            }),
            kept_services: vec![KeptServiceStatus {
                service: text.clone(),
                why: text.clone(),
            }],
            scheduled_events: None,
            local_pools: Vec::new(),
            listeners: [("healthz".to_owned(), text)].into(),
            tasks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_read_what_the_agent_writes() {
        let written = AgentStatus::example("node-1");
        let text = serde_json::to_string(&written).unwrap();
        assert_eq!(serde_json::from_str::<AgentStatus>(&text).unwrap(), written);
    }

    #[test]
    fn fields_of_other_versions_are_ignored() {
        let mut json = serde_json::to_value(AgentStatus::example("node-1")).unwrap();
        json["shape"] = "round".into();
        json["node"]["shape"] = "round".into();
        json["tasks"] = "many".into();
        json["services"] = "many".into();
        assert_eq!(
            serde_json::from_value::<AgentStatus>(json).unwrap(),
            AgentStatus::example("node-1")
        );
    }
}
