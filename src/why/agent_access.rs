//! How the status of agents is read: from the node's address, or through the API server, which reaches pods that this machine
//! does not.
//!
//! A request through the API server needs the rights to list pods and to get `pods/proxy` in headgate's namespace.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::ValueEnum;
use headgate_http::client::PlainClient;
use hyper::{StatusCode, Uri};
use kube::Client;

use crate::agent_status::AgentStatus;
use crate::pods::HeadgatePods;

/// Time for an answer, which comes from memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// More than any `/statusz`.
const MAX_STATUS_BYTES: usize = 1024 * 1024;

/// Which way requests to agents take. Its comments are the help of a flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AgentRoute {
    /// InternalIP of the node, else the API server
    #[default]
    Auto,
    /// InternalIP only
    Direct,
    /// API server only, with the rights to list pods and get pods/proxy
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

impl AgentRoute {
    /// The status of an agent by the ways of the route, of which each is tried if the one before fails.
    ///
    /// # Errors
    /// A text for each way that was tried.
    pub(crate) async fn fetch(
        self,
        direct: impl Future<Output = Result<AgentStatus, String>>,
        through: impl Future<Output = Result<AgentStatus, String>>,
    ) -> Result<AgentStatus, String> {
        let not_reached = match self {
            Self::ApiServer => String::new(),
            Self::Direct => return direct.await,
            Self::Auto => match direct.await {
                Ok(agent) => return Ok(agent),
                Err(error) => format!("{error}; "),
            },
        };
        let through = through.await;
        through.map_err(|error| format!("{not_reached}through the API server: {error}"))
    }
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
    let direct = async {
        match direct {
            Some(uri) => fetch_agent_at(uri, node).await,
            None => Err("its address is not known; give --statusz URL".to_owned()),
        }
    };
    let through = async { AgentPods::list(client, access, Some(node)).await?.fetch(node).await };
    access.route.fetch(direct, through).await
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use headgate_test_kubernetes::FakeApi;
    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::PostParams;
    use serde_json::{Value, json};

    use super::*;

    const NO_POD: &str = "through the API server: headgate has no running pod of headgate's agents on this node";

    fn access(route: AgentRoute) -> AgentAccess {
        AgentAccess {
            port: 10457,
            route,
            namespace: "headgate".to_owned(),
        }
    }

    #[test]
    fn an_answer_counts_if_it_is_that_of_the_nodes_agent() {
        let whole = AgentStatus::example("node-1");
        let without = |change: fn(&mut AgentStatus)| {
            let mut status = whole.clone();
            change(&mut status);
            status
        };
        for (status, name, expected) in [
            (whole.clone(), "node-1", None),
            (whole.clone(), "node-2", Some("there is the agent of \"node-1\"")),
            (
                without(|status| status.healthz = None),
                "node-1",
                Some("there is a all, which answers no probes"),
            ),
            (
                without(|status| status.livez = None),
                "node-1",
                Some("there is a all, which answers no probes"),
            ),
        ] {
            let found = of_node(status.clone(), "there", name);
            assert_eq!(found, expected.map_or(Ok(status), |why| Err(why.to_owned())), "{name}");
        }
    }

    #[test]
    fn a_text_that_is_no_status_names_the_place() {
        let whole = AgentStatus::example("node-1");
        assert_eq!(parse(&serde_json::to_vec(&whole).unwrap(), "there"), Ok(whole));
        for body in ["", "ok", "[]", "{}", r#"{"version": "1", "node": {"name": "node-1"}}"#] {
            let error = parse(body.as_bytes(), "there").unwrap_err();
            assert!(
                error.starts_with("there does not answer with an agent's status: "),
                "{body}: {error}"
            );
        }
    }

    #[test]
    fn addresses_of_both_families_have_a_url() {
        for (address, expected) in [
            (IpAddr::from(Ipv4Addr::LOCALHOST), "http://127.0.0.1:10457/statusz"),
            (IpAddr::from(Ipv6Addr::LOCALHOST), "http://[::1]:10457/statusz"),
        ] {
            let found = statusz_uri(address, 10457);
            assert_eq!(found.map(|uri| uri.to_string()).as_deref(), Some(expected));
        }
    }

    #[tokio::test]
    async fn each_way_of_the_route_is_tried_and_named() {
        let unknown = "its address is not known; give --statusz URL";
        let direct = "http://127.0.0.1:1/statusz";
        for (route, given, expected, requests) in [
            (AgentRoute::Direct, None, vec![unknown], 0),
            (AgentRoute::Direct, Some(direct), vec![direct], 0),
            (AgentRoute::Auto, None, vec![unknown, NO_POD], 1),
            (AgentRoute::Auto, Some(direct), vec![direct, NO_POD], 1),
            (AgentRoute::ApiServer, None, vec![NO_POD], 1),
            (AgentRoute::ApiServer, Some(direct), vec![NO_POD], 1),
        ] {
            let (client, faults) = FakeApi::default().client();
            let given = given.map(Uri::from_static);
            let error = fetch_agent(&client, &access(route), "node-1", given).await.unwrap_err();
            let parts: Vec<_> = error.split("; through").collect();
            assert_eq!(parts.len(), expected.len(), "{route:?}: {error}");
            assert!(error.starts_with(expected[0]), "{route:?}: {error}");
            assert!(
                expected.last().is_some_and(|last| error.contains(last)),
                "{route:?}: {error}"
            );
            assert_eq!(faults.tries(), requests, "{route:?}");
        }
    }

    #[tokio::test]
    async fn a_node_is_asked_through_its_running_agent() {
        let fake = FakeApi::default();
        let client = fake.client().0;
        let pods = Api::<Pod>::namespaced(client.clone(), "headgate");
        for (name, component, node, phase) in [
            ("runs", "agent", Some("node-1"), "Running"),
            ("starts", "agent", Some("node-2"), "Pending"),
            ("waits", "agent", None, "Running"),
            ("leads", "controller", Some("node-4"), "Running"),
            ("old", "agent", Some("node-5"), "Succeeded"),
            ("new", "agent", Some("node-5"), "Running"),
        ] {
            let labels = json!({"app.kubernetes.io/name": "headgate", "app.kubernetes.io/component": component});
            let pod = json!({"metadata": {"name": name, "labels": labels},
                "spec": {"nodeName": node, "containers": [{"name": "headgate"}]}});
            pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
                .await
                .unwrap();
            fake.change::<Pod>("headgate", name, |pod: &mut Value| {
                pod["status"]["phase"] = phase.into();
            });
        }
        let named = |found: &AgentPods| found.by_node.clone().into_iter().collect::<Vec<_>>();
        let pair = |node: &str, pod: &str| (node.to_owned(), pod.to_owned());
        let all = AgentPods::list(&client, &access(AgentRoute::Auto), None).await.unwrap();
        assert_eq!(named(&all), [pair("node-1", "runs"), pair("node-5", "new")]);
        let one = AgentPods::list(&client, &access(AgentRoute::Auto), Some("node-5"))
            .await
            .unwrap();
        assert_eq!(named(&one), [pair("node-5", "new")]);
        assert_eq!(
            all.fetch("node-2").await.unwrap_err(),
            NO_POD.split_once(": ").unwrap().1
        );
    }
}
