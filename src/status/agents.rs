//! The health answers of the nodes' agents, from their `/statusz`.
//!
//! All agents are queried concurrently and within one time limit, because from outside the cluster none may answer. A
//! node without an answer keeps the verdict that its signals imply.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use hyper::Uri;
use tokio::time::{Instant, timeout_at};

use super::report::{StatusReport, VerdictRow};
use crate::why::{AgentStatus, statusz_uri};

/// Time for all agents together.
const ALL_AGENTS_TIMEOUT: Duration = Duration::from_secs(3);
/// Agents that are queried at the same time.
const MAX_CONCURRENT_QUERIES: usize = 64;

/// Where the agents serve `/statusz`.
#[derive(Clone, Debug)]
pub struct AgentEndpoints {
    /// The port on the node's address.
    pub port: u16,
    /// Other addresses, by the node's name.
    pub overrides: BTreeMap<String, Uri>,
}

/// Queries the agents of the report's nodes and enters their answers.
pub async fn query_agents(report: &mut StatusReport, endpoints: &AgentEndpoints) {
    let deadline = Instant::now() + ALL_AGENTS_TIMEOUT;
    let queries = report.nodes.iter().enumerate().map(|(index, node)| {
        let own_address = || statusz_uri(node.address?, endpoints.port);
        let (uri, name) = (
            endpoints.overrides.get(&node.name).cloned().or_else(own_address),
            node.name.clone(),
        );
        async move {
            let Some(uri) = uri else {
                return (index, Err("its address is not known".to_owned()));
            };
            let late = |_| Err(format!("no answer within {} s", ALL_AGENTS_TIMEOUT.as_secs()));
            let answer = timeout_at(deadline, AgentStatus::fetch(uri, &name)).await;
            (index, answer.unwrap_or_else(late))
        }
    });
    let queries: Vec<_> = queries.collect();
    let mut answers = stream::iter(queries).buffer_unordered(MAX_CONCURRENT_QUERIES);
    let mut verdicts = Vec::new();
    while let Some((index, answer)) = answers.next().await {
        verdicts.push((index, answer.map(|agent| verdict_row(&agent))));
    }
    for (index, verdict) in verdicts {
        let Some(node) = report.nodes.get_mut(index) else {
            continue;
        };
        match verdict {
            Ok(verdict) => node.verdict = verdict,
            Err(error) => node.verdict.why = Some(error),
        }
    }
}

fn verdict_row(agent: &AgentStatus) -> VerdictRow {
    match agent.health_port_error() {
        None => VerdictRow {
            healthz: Some(agent.healthz.code),
            answered: true,
            since: agent.healthz.since,
            why: None,
        },
        Some(error) => VerdictRow {
            healthz: None,
            answered: true,
            since: None,
            why: Some(format!("its health port: {error}")),
        },
    }
}
