//! How the status of agents is read: from the node's address, or through the API server, which reaches pods that this machine
//! does not.
//!
//! A request through the API server needs the rights to list pods and to get `pods/proxy` in headgate's namespace.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use headgate_http::client::PlainClient;
use headgate_kubernetes::Decoded;
use http_body_util::{BodyExt as _, Limited};
use hyper::{Request, StatusCode, Uri};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::client::Body;
use kube::{Api, Client};
use tokio::time::timeout;

use crate::agent_status::AgentStatus;
use crate::readable_objects::readable_objects;

/// Time for an answer, which comes from memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// More than any `/statusz`.
const MAX_STATUS_BYTES: usize = 1024 * 1024;
/// The pods of the agents: those of the `DaemonSet`.
const AGENT_PODS: &str = "app.kubernetes.io/name=headgate,app.kubernetes.io/component=agent";
/// Time for the list of pods, and for one answer through the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

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
    client: Client,
    namespace: String,
    port: u16,
    by_node: BTreeMap<String, String>,
}

impl AgentPods {
    /// Lists the pods of the agents, of one node or of all.
    ///
    /// # Errors
    /// A text that says why they cannot be listed.
    pub(crate) async fn list(client: &Client, access: &AgentAccess, node: Option<&str>) -> Result<Self, String> {
        let mut selection = ListParams::default().labels(AGENT_PODS);
        if let Some(node) = node {
            selection = selection.fields(&format!("spec.nodeName={node}"));
        }
        let api = Api::<Decoded<Pod>>::namespaced(client.clone(), &access.namespace);
        let listed = timeout(REQUEST_TIMEOUT, api.list(&selection))
            .await
            .map_err(|_| format!("no list of pods within {} s", REQUEST_TIMEOUT.as_secs()))?
            .map_err(|error| {
                format!(
                    "the pods of {} cannot be listed: {}",
                    access.namespace,
                    headgate_core::telemetry::error_chain(&error)
                )
            })?;
        let pods = readable_objects(listed).into_iter().filter(is_running);
        let by_node = pods.filter_map(|pod| Some((pod.spec?.node_name?, pod.metadata.name?)));
        Ok(Self {
            client: client.clone(),
            namespace: access.namespace.clone(),
            port: access.port,
            by_node: by_node.collect(),
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
                self.namespace
            )
        })?;
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}:{}/proxy/statusz",
            self.namespace, self.port
        );
        let place = format!("pod {}/{pod}", self.namespace);
        let request = Request::get(path).header("Accept", "application/json");
        let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
        let answer = timeout(REQUEST_TIMEOUT, self.exchange(request)).await;
        let (status, body) = answer
            .map_err(|_| format!("{place}: no answer within {} s", REQUEST_TIMEOUT.as_secs()))?
            .map_err(|error| format!("{place}: {error}"))?;
        if status != StatusCode::OK {
            return Err(format!("{place} answers {status}"));
        }
        of_node(parse(&body, &place)?, &place, node)
    }

    async fn exchange(&self, request: Request<Body>) -> Result<(StatusCode, Bytes), String> {
        let response = self.client.send(request).await;
        let response = response.map_err(|error| headgate_core::telemetry::error_chain(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_STATUS_BYTES).collect().await;
        let body = body.map_err(|error| error.to_string())?;
        Ok((status, body.to_bytes()))
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

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running")
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
