//! The observations of a node: the status of its agent, from `/statusz`, and the Node object and the `NodeMaintenance`s of the node,
//! from the API server.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use headgate_http::client::PlainClient;
use headgate_kubernetes::Decoded;
use headgate_node::{MarkerFact, NodeHold, Signal, SignalRules, SlimNode};
use hyper::{StatusCode, Uri};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use serde::Deserialize;

use super::agent_access::{AgentAccess, fetch_agent};
use super::maintenances::{MaintenanceRow, list_maintenances};
use crate::api_error::api_error_text;

/// Time for the agent's answer, which comes from memory.
const AGENT_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for the API server's answer.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// More than any `/statusz`.
pub(super) const MAX_STATUS_BYTES: usize = 1024 * 1024;
/// The label that excludes a node from every load balancer that cloud controllers manage.
pub(super) const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Why there is no explanation.
#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    /// The API server does not have the Node.
    #[error("there is no Node {name:?}; `kubectl get nodes` lists them")]
    NoSuchNode {
        /// The name in the request.
        name: String,
    },
    /// Neither the API server nor the agent answered.
    #[error("neither the API server ({api}) nor the agent ({agent}) answered")]
    NoAnswer {
        /// The error of the API server.
        api: String,
        /// The error of the agent.
        agent: String,
    },
}

/// The fields of an agent's `/statusz` that are read. Unknown fields, of other versions, are ignored.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// The version of the agent's program.
    pub version: String,
    /// The state of the Node as the agent has it.
    pub node: AgentNode,
    /// The present answer of `/healthz`.
    pub healthz: PathStatus,
    /// The present answer of `/livez`.
    pub livez: PathStatus,
    /// The health of kube-proxy as the agent has it.
    pub proxy: KubeProxyStatus,
    /// The agent's listeners, each with its address or with the reason why it has none.
    #[serde(default)]
    pub listeners: BTreeMap<String, String>,
}

impl AgentStatus {
    /// Gets the status of the agent of the node `name` from its `/statusz`.
    ///
    /// # Errors
    /// A text that names the address and what is wrong.
    pub async fn fetch(uri: Uri, name: &str) -> Result<Self, String> {
        let client = PlainClient::plain(AGENT_TIMEOUT, MAX_STATUS_BYTES);
        let address = uri.to_string();
        let (status, body) = client
            .get(uri, &[("Accept", "application/json")])
            .await
            .map_err(|error| format!("{address}: {error}"))?;
        if status != StatusCode::OK {
            return Err(format!("{address} answers {status}"));
        }
        Self::parse(&body, &address, name)
    }

    /// Reads the answer of the agent at `place`, which must be that of the node `name`.
    pub(super) fn parse(body: &[u8], place: &str, name: &str) -> Result<Self, String> {
        let agent: Self = serde_json::from_slice(body)
            .map_err(|error| format!("{place} does not answer with an agent's status: {error}"))?;
        if agent.node.name != name {
            return Err(format!("{place} is the agent of {:?}", agent.node.name));
        }
        Ok(agent)
    }

    /// Why the health port does not answer; `None` if it does.
    #[must_use]
    pub fn health_port_error(&self) -> Option<&str> {
        let state = self.listeners.get("healthz")?;
        // A closing listener still answers, or the next process on the port does.
        let is_served = state.parse::<SocketAddr>().is_ok() || state == "closing";
        (!is_served).then_some(state)
    }
}

/// The state of a Node as its agent has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AgentNode {
    /// The name of the agent's Node.
    pub name: String,
    /// Where the agent has the state of the Node from: `watch`, `remembered` or `none`.
    pub source: String,
    /// The signals of the node that the agent observed.
    pub signals: Vec<SignalStatus>,
    /// The leader's hold, while it keeps the node in service although it has signals.
    #[serde(default)]
    pub hold: Option<HoldStatus>,
    /// The current failure of the watch of the Node.
    #[serde(default)]
    pub watch_error: Option<WatchErrorStatus>,
}

/// The leader's hold on a node.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct HoldStatus {
    /// The pools, as `LOAD_BALANCER/POOL`.
    pub pools: Vec<String>,
}

/// A failure of an agent's watch.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct WatchErrorStatus {
    /// The text of the error.
    pub error: String,
    /// The time of the first error.
    pub since: Option<Timestamp>,
}

/// A signal of the node.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct SignalStatus {
    /// The signal's name, such as its taint key.
    pub signal: String,
    /// The signal's start, if it is known.
    pub since: Option<Timestamp>,
}

impl SignalStatus {
    pub(super) fn parse(&self) -> Signal {
        let Ok(signal) = self.signal.parse();
        signal
    }
}

/// The present answer of one path.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct PathStatus {
    /// The status code, 200 or 503.
    pub code: u16,
    /// The time of the last change.
    pub since: Option<Timestamp>,
}

/// The health of kube-proxy as an agent has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KubeProxyStatus {
    /// The address that the agent polls, if it polls one.
    pub server: Option<String>,
    /// Whether kube-proxy is healthy, or its health unknown.
    pub healthy: bool,
    /// The time of the newest update, if kube-proxy was ever reached.
    pub last_updated: Option<Timestamp>,
}

/// What is read of the Node object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeObject {
    /// The signals by the given rules. Only a deletion has a start.
    pub signals: Vec<SignalStatus>,
    /// The keys of all taints.
    pub taints: Vec<String>,
    /// Whether the node is cordoned, which is no signal.
    pub cordoned: bool,
    /// Whether the node has the label that excludes it from load balancers.
    pub excluded: bool,
    /// The node's first internal address, where its agent is queried.
    pub address: Option<IpAddr>,
    /// The condition `headgate.dev/OutOfLoadBalancers`, if the Node has it.
    pub marker: Option<MarkerFact>,
    /// The hold that the leader has recorded on the Node; agents may ignore it.
    pub hold: Option<NodeHold>,
}

/// The observations, each with the reason if it is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observations {
    /// The status of the agent.
    pub agent: Result<AgentStatus, String>,
    /// The Node object, or why it was not read.
    pub api: Result<NodeObject, String>,
    /// The `NodeMaintenance`s of the node with its row alone, or why they were not listed.
    pub maintenances: Result<Vec<MaintenanceRow>, String>,
}

impl Observations {
    pub(super) async fn query(
        client: &Client,
        name: &str,
        access: &AgentAccess,
        statusz: Option<Uri>,
        rules: &SignalRules,
    ) -> Result<Self, WhyError> {
        let request = Api::<Decoded<Node>>::all(client.clone());
        let node = async { request.get_opt(name).await?.map(Decoded::into_object).transpose() };
        let api = match tokio::time::timeout(API_SERVER_TIMEOUT, node).await {
            Err(_) => Err(format!("no answer within {} s", API_SERVER_TIMEOUT.as_secs())),
            Ok(Err(error)) => Err(api_error_text(&error)),
            Ok(Ok(None)) => return Err(WhyError::NoSuchNode { name: name.to_owned() }),
            Ok(Ok(Some(node))) => Ok(NodeObject::new(&node, rules)),
        };
        let address = api.as_ref().ok().and_then(|node| node.address);
        let agent = if let Some(uri) = statusz {
            AgentStatus::fetch(uri, name).await
        } else {
            let direct = address.and_then(|address| statusz_uri(address, access.port));
            fetch_agent(client, access, name, direct).await
        };
        match (&agent, &api) {
            (Err(agent), Err(api)) => Err(WhyError::NoAnswer {
                api: api.clone(),
                agent: agent.clone(),
            }),
            (_, Err(error)) => {
                let maintenances = Err(error.clone());
                Ok(Self {
                    agent,
                    api,
                    maintenances,
                })
            }
            (_, Ok(_)) => {
                let names = [name.to_owned()];
                let maintenances = list_maintenances(client).await.map(|mut rows| {
                    rows.retain_mut(|row| row.retain_nodes(&names));
                    rows
                });
                Ok(Self {
                    agent,
                    api,
                    maintenances,
                })
            }
        }
    }
}

impl NodeObject {
    fn new(node: &Node, rules: &SignalRules) -> Self {
        let slim = serde_json::to_value(node).and_then(serde_json::from_value::<SlimNode>);
        let facts = slim.map(|slim| slim.facts(rules)).unwrap_or_default();
        let marker = facts.marker.clone();
        let hold = NodeHold::from_annotations(&facts.annotations, &facts.uid);
        let deleted_at = node.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let signals = rules.detect(&facts).into_keys().map(|signal| SignalStatus {
            since: deleted_at.filter(|_| signal == Signal::Deletion),
            signal: signal.to_string(),
        });
        let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        Self {
            marker,
            signals: signals.collect(),
            taints: taints.into_iter().flatten().map(|taint| taint.key.clone()).collect(),
            cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false),
            excluded: node
                .metadata
                .labels
                .as_ref()
                .is_some_and(|labels| labels.contains_key(EXCLUDE_LABEL)),
            address: addresses
                .into_iter()
                .flatten()
                .filter(|address| address.type_ == "InternalIP")
                .find_map(|address| address.address.parse().ok()),
            hold,
        }
    }
}

/// The address of `/statusz` of the agent at `address`.
#[must_use]
pub fn statusz_uri(address: IpAddr, port: u16) -> Option<Uri> {
    format!("http://{}/statusz", SocketAddr::from((address, port)))
        .parse()
        .ok()
}
