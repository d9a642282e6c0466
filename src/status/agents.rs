//! The health answers of the nodes' agents, from their `/statusz`.
//!
//! All agents are queried concurrently and within one time limit, because from outside the cluster none may answer at its node's
//! address. Those that do not are queried again through the API server. A node without an answer keeps the verdict that its
//! signals imply.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use hyper::Uri;
use kube::Client;
use tokio::time::{Instant, timeout_at};

use super::report::{StatusReport, VerdictRow};
use crate::agent_status::AgentStatus;
use crate::why::{AgentAccess, AgentPods, AgentRoute, both, fetch_agent_at, statusz_uri};

/// Time for all agents together, and again for those that are queried through the API server.
const ALL_AGENTS_TIMEOUT: Duration = Duration::from_secs(3);
/// Agents that are queried at the same time.
const MAX_CONCURRENT_QUERIES: usize = 64;

/// Where the agents serve `/statusz`.
#[derive(Clone, Debug)]
pub(crate) struct AgentEndpoints {
    /// How they are reached.
    pub access: AgentAccess,
    /// Addresses of some of them, by the node's name.
    pub overrides: BTreeMap<String, Uri>,
}

/// Queries the agents of the report's nodes and enters their answers.
pub(crate) async fn query_agents(report: &mut StatusReport, client: &Client, endpoints: &AgentEndpoints) {
    let AgentEndpoints { access, overrides } = endpoints;
    let mut missing = BTreeMap::new();
    let deadline = Instant::now() + ALL_AGENTS_TIMEOUT;
    let queries = report.nodes.iter().enumerate().map(|(index, node)| {
        let name = node.name.clone();
        let given = overrides.get(&name).cloned();
        let is_given = given.is_some();
        let own_address = || {
            let address = node.address.filter(|_| access.route != AgentRoute::ApiServer)?;
            statusz_uri(address, access.port)
        };
        let uri = given.or_else(own_address);
        async move {
            let answer = match uri {
                Some(uri) => timeout_at(deadline, fetch_agent_at(uri, &name)).await,
                None => Ok(Err("its address is not known".to_owned())),
            };
            (index, name, is_given, answer.unwrap_or_else(|_| Err(late())))
        }
    });
    let queries: Vec<_> = queries.collect();
    let mut answers = stream::iter(queries).buffer_unordered(MAX_CONCURRENT_QUERIES);
    let mut verdicts = Vec::new();
    while let Some((index, name, is_given, answer)) = answers.next().await {
        match answer {
            Err(error) if !is_given && access.route != AgentRoute::Direct => {
                missing.insert(index, (name, Some(error).filter(|_| access.route == AgentRoute::Auto)));
            }
            answer => verdicts.push((index, answer)),
        }
    }
    drop(answers);
    if !missing.is_empty() {
        verdicts.extend(query_through_api_server(client, access, missing).await);
    }
    for (index, answer) in verdicts {
        let Some(node) = report.nodes.get_mut(index) else {
            continue;
        };
        match answer {
            Ok(agent) => node.verdict = verdict_row(&agent),
            Err(error) => node.verdict.why = Some(error),
        }
    }
}

fn late() -> String {
    format!("no answer within {} s", ALL_AGENTS_TIMEOUT.as_secs())
}

/// Queries agents through the API server: their index, name, and why their address did not answer.
async fn query_through_api_server(
    client: &Client,
    access: &AgentAccess,
    missing: BTreeMap<usize, (String, Option<String>)>,
) -> Vec<(usize, Result<AgentStatus, String>)> {
    let pods = match AgentPods::list(client, access, None).await {
        Ok(pods) => pods,
        Err(why) => {
            let failed = |(index, (_, direct))| (index, Err(both(direct, &why)));
            return missing.into_iter().map(failed).collect();
        }
    };
    let deadline = Instant::now() + ALL_AGENTS_TIMEOUT;
    let query = async |(index, (name, direct)): (usize, (String, Option<String>))| {
        let answer = timeout_at(deadline, pods.fetch(&name)).await;
        let answer = answer.unwrap_or_else(|_| Err(late()));
        (index, answer.map_err(|error| both(direct, &error)))
    };
    let answers = stream::iter(missing).map(query);
    answers.buffer_unordered(MAX_CONCURRENT_QUERIES).collect().await
}

fn verdict_row(agent: &AgentStatus) -> VerdictRow {
    match agent.health_port_error() {
        None => VerdictRow {
            healthz: agent.healthz.map(|path| path.code),
            answered: true,
            since: agent.healthz.and_then(|path| path.since),
            why: None,
            connections: agent.connections.clone(),
            kept_services: agent.kept_services.clone(),
        },
        Some(error) => VerdictRow {
            healthz: None,
            answered: true,
            since: None,
            why: Some(format!("its health port: {error}")),
            connections: agent.connections.clone(),
            kept_services: agent.kept_services.clone(),
        },
    }
}
