//! The two views of a node: its agent's, from `/statusz`, and the API server's, from the Node object.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use headgate_http::fetch::Fetch;
use headgate_node::{SlimNode, signals};
use hyper::{StatusCode, Uri};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use serde::Deserialize;

/// How long the agent may take; it answers from memory.
const AGENT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the API server may take.
const API_TIMEOUT: Duration = Duration::from_secs(10);
/// More than any `/statusz`.
const MAX_STATUS_BYTES: usize = 1024 * 1024;
/// Takes a node out of every load balancer that cloud controllers manage.
pub(super) const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Why nothing can be said.
#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    /// The API server has no such Node.
    #[error("there is no Node {name:?}; `kubectl get nodes` lists them")]
    NoSuchNode {
        /// The name asked for.
        name: String,
    },
    /// Nobody answered.
    #[error("neither could be asked: the API server ({api}), the agent ({agent})")]
    Nobody {
        /// What the API server said.
        api: String,
        /// What asking the agent came to.
        agent: String,
    },
}

/// What an agent says of itself; fields of other versions are ignored.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AgentView {
    /// Its version.
    pub version: String,
    /// What it knows of its Node.
    pub node: AgentNode,
    /// What `/healthz` answers.
    pub healthz: PathView,
    /// What `/livez` answers.
    pub livez: PathView,
    /// What it knows of kube-proxy.
    pub proxy: ProxyView,
    /// Its ports, each with its address or what stands in the way.
    #[serde(default)]
    pub listeners: BTreeMap<String, String>,
}

impl AgentView {
    /// Asks the agent of the node `name` at its `/statusz`.
    ///
    /// # Errors
    /// What stands in the way, in words.
    pub async fn ask(uri: Uri, name: &str) -> Result<Self, String> {
        look_at_agent(uri, name).await
    }

    /// Why the health port does not answer, if it does not.
    #[must_use]
    pub fn health_port_trouble(&self) -> Option<&str> {
        let state = self.listeners.get("healthz")?;
        // Closing, it still answers, or the next process does.
        let answers = state.parse::<SocketAddr>().is_ok() || state == "closing";
        (!answers).then_some(state)
    }
}

/// What an agent knows of its Node.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AgentNode {
    /// The Node it speaks for.
    pub name: String,
    /// Where it knows that from.
    pub source: String,
    /// The signals in force.
    pub signals: Vec<SignalView>,
    /// Why it cannot be watched just now.
    #[serde(default)]
    pub watch_error: Option<WatchErrorView>,
}

/// Why an agent cannot watch its Node.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct WatchErrorView {
    /// What it met.
    pub error: String,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// A signal in force.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct SignalView {
    /// Its name.
    pub signal: String,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// One path's answer.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct PathView {
    /// 200 or 503.
    pub code: u16,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// What an agent knows of kube-proxy.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ProxyView {
    /// Where it is asked, if it is.
    pub server: Option<String>,
    /// Whether it is healthy or unknown.
    pub healthy: bool,
    /// Its newest update, if it was ever reached.
    pub last_updated: Option<Timestamp>,
}

/// What the Node object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiView {
    /// Signals by the taint keys given; since when is not known there, but for the deletion.
    pub signals: Vec<SignalView>,
    /// The keys of all its taints, signals or not.
    pub taints: Vec<String>,
    /// It is cordoned, which is no signal.
    pub cordoned: bool,
    /// Cloud controllers leave it out of their load balancers.
    pub excluded: bool,
    /// Where its agent is looked for.
    pub address: Option<IpAddr>,
}

/// Both views, each with what stood in its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Views {
    /// The agent's.
    pub agent: Result<AgentView, String>,
    /// The API server's.
    pub api: Result<ApiView, String>,
}

impl Views {
    pub(super) async fn look(
        client: &Client,
        name: &str,
        port: u16,
        statusz: Option<Uri>,
        taint_keys: &[String],
    ) -> Result<Self, WhyError> {
        let api = match tokio::time::timeout(API_TIMEOUT, Api::<Node>::all(client.clone()).get_opt(name)).await {
            Err(_) => Err(format!("no answer within {} s", API_TIMEOUT.as_secs())),
            Ok(Err(error)) => Err(headgate_telemetry::chain(&error)),
            Ok(Ok(None)) => return Err(WhyError::NoSuchNode { name: name.to_owned() }),
            Ok(Ok(Some(node))) => Ok(ApiView::of(&node, taint_keys)),
        };
        let address = api.as_ref().ok().and_then(|view| view.address);
        let agent = match statusz.or_else(|| statusz_uri(address?, port)) {
            Some(uri) => look_at_agent(uri, name).await,
            None => Err("its address is not known; give --statusz URL".to_owned()),
        };
        match (&agent, &api) {
            (Err(agent), Err(api)) => Err(WhyError::Nobody {
                api: api.clone(),
                agent: agent.clone(),
            }),
            _ => Ok(Self { agent, api }),
        }
    }
}

impl ApiView {
    fn of(node: &Node, taint_keys: &[String]) -> Self {
        let slim = serde_json::to_value(node).and_then(serde_json::from_value::<SlimNode>);
        let facts = slim.map(|slim| slim.facts()).unwrap_or_default();
        let deleted = node.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let signals = signals(&facts, taint_keys).into_iter().map(|signal| SignalView {
            since: deleted.filter(|_| signal == headgate_node::Signal::Deletion),
            signal: signal.to_string(),
        });
        let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        Self {
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
        }
    }
}

/// Where the agent on this address shows its status.
#[must_use]
pub fn statusz_uri(address: IpAddr, port: u16) -> Option<Uri> {
    format!("http://{}/statusz", SocketAddr::from((address, port)))
        .parse()
        .ok()
}

async fn look_at_agent(uri: Uri, name: &str) -> Result<AgentView, String> {
    let fetch = Fetch::new(AGENT_TIMEOUT, MAX_STATUS_BYTES);
    let place = uri.to_string();
    let (status, body) = fetch
        .get(uri, &[("Accept", "application/json")])
        .await
        .map_err(|error| format!("{place}: {error}"))?;
    if status != StatusCode::OK {
        return Err(format!("{place} answers {status}"));
    }
    let view: AgentView =
        serde_json::from_slice(&body).map_err(|error| format!("{place} is no agent's status: {error}"))?;
    if view.node.name != name {
        return Err(format!("{place} is the agent of {:?}", view.node.name));
    }
    Ok(view)
}
