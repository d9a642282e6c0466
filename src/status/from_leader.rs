//! The report that the leader serves, read through the API server: it needs no access to Azure, and no Node is listed.
//!
//! The leader is found by its Lease, which names its node, and by its pods' labels.

use headgate_kubernetes::leader::LeaderStatus;
use jiff::Timestamp;
use kube::Client;

use super::report::StatusReport;
use super::snapshot::lease;
use crate::agent::{ALL_NODES, CLUSTER_PATH};
use crate::pods::{HeadgatePod, HeadgatePods};
use crate::why::{AgentAccess, AgentRoute};

/// More than the report of the largest clusters.
const MAX_REPORT_BYTES: usize = 64 * 1024 * 1024;
/// Pods that are asked whether they lead.
const MAX_PODS: usize = 5;

/// Which Nodes are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// Those with something to report.
    Notable,
    All,
}

/// Why load balancers are not shown where the leader says so.
pub(crate) const NO_LOAD_BALANCERS: &str = "the leader has no load balancers";

/// Gets the report of the leader; `None` if it leads without load balancers, for maintenances alone.
///
/// # Errors
/// Why there is none, as a text.
pub(crate) async fn fetch_from_leader(
    client: &Client,
    access: &AgentAccess,
    nodes: Nodes,
) -> Result<Option<StatusReport>, String> {
    if access.route == AgentRoute::Direct {
        return Err("it is asked through the API server only".to_owned());
    }
    let lease = lease(client).await;
    let leader = match &lease {
        Ok(Some(lease)) => Some(LeaderStatus::from_lease(lease, Timestamp::now())),
        Ok(None) => return Err("there is no Lease".to_owned()),
        // Without the right to read it, every controller is asked.
        Err(_) => None,
    };
    if leader.as_ref().is_some_and(|leader| leader.holder.is_none()) {
        return Err("nobody leads".to_owned());
    }
    // An identity is the node's name and a suffix.
    let holder = leader.as_ref().and_then(|leader| leader.holder.as_deref());
    let node = holder.and_then(|holder| holder.rsplit_once('_')).map(|(node, _)| node);
    let pods = HeadgatePods::list(client, &access.namespace, None, node).await?;
    let candidates = candidates(&pods.all, node.is_some());
    if candidates.is_empty() {
        let place = node.map_or_else(String::new, |node| format!(" on node {node}"));
        return Err(format!(
            "{} has no running pod of headgate that may lead{place}",
            access.namespace
        ));
    }
    let query = match nodes {
        Nodes::Notable => String::new(),
        Nodes::All => format!("?{ALL_NODES}"),
    };
    let path = format!("{CLUSTER_PATH}{query}");
    let mut failure = String::new();
    for pod in candidates.iter().take(MAX_PODS) {
        match pods.get(&pod.name, access.port, &path, MAX_REPORT_BYTES).await {
            Ok(body) => {
                let report: Option<StatusReport> = serde_json::from_slice(&body)
                    .map_err(|error| format!("{} does not answer with a status: {error}", pods.place(&pod.name)))?;
                return Ok(report.map(|report| StatusReport {
                    // It has answered; by this machine's clock its Lease may have expired.
                    leader: leader
                        .map(|leader| LeaderStatus { alive: true, ..leader })
                        .or(report.leader),
                    ..report
                }));
            }
            Err(error) if failure.is_empty() => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

/// The pods that may lead, those of controllers first. Where the node is not known, agents are too many to be asked.
fn candidates(pods: &[HeadgatePod], is_node_known: bool) -> Vec<&HeadgatePod> {
    let running = || pods.iter().filter(|pod| pod.is_running);
    let controllers = running().filter(|pod| pod.component == "controller");
    let agents = running().filter(|pod| is_node_known && pod.component == "agent");
    controllers.chain(agents).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;

    use hyper::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::status::example_report;

    /// What is fetched where the pod of the leader answers this.
    async fn fetched(answer: String) -> Result<Option<StatusReport>, String> {
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path();
            let body = if path.ends_with("/proxy/statusz/cluster") {
                answer.clone()
            } else if path.ends_with("/pods") {
                let labels = json!({"app.kubernetes.io/name": "headgate", "app.kubernetes.io/component": "controller"});
                let pod = json!({"metadata": {"name": "leads", "labels": labels}, "status": {"phase": "Running"},
                    "spec": {"nodeName": "node-1", "containers": []}});
                json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}).to_string()
            } else {
                // By a clock that is far behind this machine's.
                let renewed = "2020-01-01T00:00:00.000000Z";
                let spec = json!({"holderIdentity": "node-1_x", "leaseDurationSeconds": 15, "renewTime": renewed});
                json!({"metadata": {"name": "headgate-leader"}, "spec": spec}).to_string()
            };
            ready(Ok::<_, Infallible>(Response::new(Body::from(body.into_bytes()))))
        });
        let access = AgentAccess {
            port: 10457,
            route: AgentRoute::ApiServer,
            namespace: "kube-system".to_owned(),
        };
        fetch_from_leader(&Client::new(service, "default"), &access, Nodes::Notable).await
    }

    #[tokio::test]
    async fn a_leader_without_load_balancers_has_no_report() {
        assert!(matches!(fetched("null".to_owned()).await, Ok(None)));
        let report = serde_json::to_string(&example_report()).unwrap();
        let report = fetched(report).await.unwrap().unwrap();
        let leader = report.leader.unwrap();
        assert_eq!(leader.holder.as_deref(), Some("node-1_x"), "the leader by its Lease");
        assert!(leader.alive);
        for answer in ["", "false", "{}"] {
            let error = fetched(answer.to_owned()).await.unwrap_err();
            assert!(
                error.starts_with("pod kube-system/leads does not answer with a status: "),
                "{answer}: {error}"
            );
        }
    }

    #[test]
    fn controllers_are_asked_before_agents() {
        let pod = |name: &str, component: &str, is_running| HeadgatePod {
            name: name.to_owned(),
            component: component.to_owned(),
            is_running,
            ..HeadgatePod::default()
        };
        let pods = [
            pod("a", "agent", true),
            pod("c", "controller", true),
            pod("d", "controller", false),
            pod("h", "hold", true),
        ];
        let names = |is_known| {
            candidates(&pods, is_known)
                .iter()
                .map(|pod| &*pod.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(true), ["c", "a"]);
        assert_eq!(names(false), ["c"]);
    }
}
