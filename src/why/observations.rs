//! The observations of a node: the status of its agent, from `/statusz`, and the Node object and the `NodeMaintenance`s of the node,
//! from the API server.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::anyhow;
use headgate_core::node::{EXCLUDE_LABEL, MarkerFact, NodeHold, NodeObject, NodeReader, Signal, SignalRules};
use headgate_kubernetes::Decoded;
use hyper::Uri;
use kube::{Api, Client};
use serde::Serialize;

use super::agent_access::{AgentAccess, fetch_agent, fetch_agent_at, statusz_uri};
use super::maintenances::{MaintenanceRow, maintenance_rows};
use crate::agent_status::{AgentStatus, SignalStatus};
use crate::api_error::within;
use crate::failure::{Failure, no_such_node};

/// Time for the API server's answer.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// What is read of the Node object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObservedNode {
    /// The signals by the given rules. Only a deletion has a start.
    #[serde(skip)]
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
    #[serde(skip)]
    pub marker: Option<MarkerFact>,
    /// The hold that the leader has recorded on the Node; agents may ignore it.
    #[serde(skip)]
    pub hold: Option<NodeHold>,
}

/// The observations, each with the reason if it is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observations {
    /// The status of the agent.
    pub agent: Result<AgentStatus, String>,
    /// The Node object, or why it was not read.
    pub api: Result<ObservedNode, String>,
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
    ) -> Result<Self, Failure> {
        let request = Api::<Decoded<NodeObject>>::all(client.clone());
        let node = async { request.get_opt(name).await?.map(Decoded::into_object).transpose() };
        let api = match within(API_SERVER_TIMEOUT, node).await {
            Err(error) => Err(error.to_string()),
            Ok(None) => return Err(Failure::runtime(no_such_node(name))),
            Ok(Some(node)) => Ok(ObservedNode::new(node, rules)),
        };
        let address = api.as_ref().ok().and_then(|node| node.address);
        let agent = if let Some(uri) = statusz {
            fetch_agent_at(uri, name).await
        } else {
            let direct = address.and_then(|address| statusz_uri(address, access.port));
            fetch_agent(client, access, name, direct).await
        };
        let maintenances = match (&agent, &api) {
            (Err(agent), Err(api)) => {
                let error = anyhow!("neither the API server ({api}) nor the agent ({agent}) answered");
                return Err(Failure::environment(error));
            }
            (_, Err(error)) => Err(error.clone()),
            (_, Ok(_)) => maintenance_rows(client).await.map(|mut rows| {
                rows.retain_mut(|row| row.retain_nodes(&[name.to_owned()]));
                rows
            }),
        };
        Ok(Self {
            agent,
            api,
            maintenances,
        })
    }
}

impl ObservedNode {
    fn new(object: NodeObject, rules: &SignalRules) -> Self {
        let deleted_at = object.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let labels = object.metadata.labels.as_ref();
        let excluded = labels.is_some_and(|labels| labels.contains_key(EXCLUDE_LABEL));
        let cordoned = object.spec.unschedulable;
        let node = NodeReader::own(rules.clone()).read(object);
        let signals = node.signals.into_keys().map(|signal| SignalStatus {
            since: deleted_at.filter(|_| signal == Signal::Deletion),
            signal: signal.to_string(),
        });
        Self {
            signals: signals.collect(),
            marker: node.marker,
            taints: node.taints.into_iter().map(|taint| taint.key).collect(),
            cordoned,
            excluded,
            address: node.addresses.first().copied(),
            hold: node.hold,
        }
    }
}
