//! How the status of agents is read: from the node's address, or through the API server, which reaches pods that this machine
//! does not.
//!
//! A request through the API server needs the rights to list pods and to get `pods/proxy` in headgate's namespace.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use headgate_http::client::PlainClient;
use hyper::{StatusCode, Uri};
use kube::Client;

use crate::agent_status::AgentStatus;
use crate::pods::HeadgatePods;

/// Time for an answer, which comes from memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// More than any `/statusz`.
const MAX_STATUS_BYTES: usize = 1024 * 1024;

/// Which way requests to agents take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AgentRoute {
    /// The node's address, and if the agent does not answer there, the API server.
    #[default]
    Auto,
    /// The node's address only.
    Direct,
    /// The API server only.
    ApiServer,
}

/// Where agents are.
#[derive(Clone, Debug)]
pub(crate) struct AgentAccess {
    /// Their operations port.
    pub port: u16,
    /// Which way requests take.
    pub route: AgentRoute,
    /// The namespace of their pods.
    pub namespace: String,
}

/// The pods of the agents, through which the API server sends requests.
pub(crate) struct AgentPods {
    pods: HeadgatePods,
    port: u16,
    by_node: BTreeMap<String, String>,
}

impl AgentPods {
    /// Lists the pods of the agents, of one node or of all.
    ///
    /// # Errors
    /// A text that says why they cannot be listed.
    pub(crate) async fn list(client: &Client, access: &AgentAccess, node: Option<&str>) -> Result<Self, String> {
        let pods = HeadgatePods::list(client, &access.namespace, Some("agent"), node).await?;
        let running = pods.all.iter().filter(|pod| pod.is_running && !pod.node.is_empty());
        Ok(Self {
            by_node: running.map(|pod| (pod.node.clone(), pod.name.clone())).collect(),
            port: access.port,
            pods,
        })
    }

    /// Gets the status of the agent of a node.
    ///
    /// # Errors
    /// A text that names the pod and what is wrong.
    pub(crate) async fn fetch(&self, node: &str) -> Result<AgentStatus, String> {
        let pod = self.by_node.get(node).ok_or_else(|| {
            format!(
                "{} has no running pod of headgate's agents on this node",
                self.pods.namespace
            )
        })?;
        let place = self.pods.place(pod);
        let body = self.pods.get(pod, self.port, "/statusz", MAX_STATUS_BYTES).await?;
        of_node(parse(&body, &place)?, &place, node)
    }
}

fn parse(body: &[u8], place: &str) -> Result<AgentStatus, String> {
    serde_json::from_slice(body).map_err(|error| format!("{place} does not answer with an agent's status: {error}"))
}

/// The status at `place`, which must be that of the agent of the node `name`.
fn of_node(status: AgentStatus, place: &str, name: &str) -> Result<AgentStatus, String> {
    if status.node.name != name {
        return Err(format!("{place} is the agent of {:?}", status.node.name));
    }
    if status.healthz.is_none() || status.livez.is_none() {
        return Err(format!("{place} is a {}, which answers no probes", status.leader.role));
    }
    Ok(status)
}

/// Gets the status of any process from its `/statusz`.
///
/// # Errors
/// A text that names the address and what is wrong.
pub(crate) async fn fetch_status(uri: Uri) -> Result<AgentStatus, String> {
    let client = PlainClient::plain(ANSWER_TIMEOUT, MAX_STATUS_BYTES);
    let address = uri.to_string();
    let answer = client.get(uri, &[("Accept", "application/json")]).await;
    let (status, body) = answer.map_err(|error| format!("{address}: {error}"))?;
    if status != StatusCode::OK {
        return Err(format!("{address} answers {status}"));
    }
    parse(&body, &address)
}

/// Gets the status of the agent of the node `name` from its `/statusz`.
///
/// # Errors
/// A text that names the address and what is wrong.
pub(crate) async fn fetch_agent_at(uri: Uri, name: &str) -> Result<AgentStatus, String> {
    let address = uri.to_string();
    of_node(fetch_status(uri).await?, &address, name)
}

/// The address of `/statusz` of the agent at `address`.
pub(crate) fn statusz_uri(address: IpAddr, port: u16) -> Option<Uri> {
    format!("http://{}/statusz", SocketAddr::from((address, port)))
        .parse()
        .ok()
}

/// The agent of one node, by the address of its status if that is given, and by `access` otherwise.
///
/// # Errors
/// A text for each way that was tried.
pub(super) async fn fetch_agent(
    client: &Client,
    access: &AgentAccess,
    node: &str,
    direct: Option<Uri>,
) -> Result<AgentStatus, String> {
    let not_reached = match (direct, access.route) {
        (_, AgentRoute::ApiServer) => None,
        (Some(uri), _) => match fetch_agent_at(uri, node).await {
            Ok(agent) => return Ok(agent),
            Err(error) => Some(error),
        },
        (None, _) => Some("its address is not known; give --statusz URL".to_owned()),
    };
    if access.route == AgentRoute::Direct {
        return Err(not_reached.unwrap_or_default());
    }
    let through = match AgentPods::list(client, access, Some(node)).await {
        Ok(pods) => pods.fetch(node).await,
        Err(error) => Err(error),
    };
    through.map_err(|error| both(not_reached, &error))
}

/// The failures of both ways in one text.
pub(crate) fn both(direct: Option<String>, through: &str) -> String {
    let through = format!("through the API server: {through}");
    direct.map_or_else(|| through.clone(), |direct| format!("{direct}; {through}"))
}
