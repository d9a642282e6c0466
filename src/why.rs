//! `headgate why`: whether a load balancer that probes a node sends it new connections, since when, why not, and what would change it.
//!
//! It reads and writes nothing. The explanation is a pure function of observations: the status of the node's agent, the Node
//! object, and the `NodeMaintenance`s; one of the first two may be missing. It covers what probes are answered, not what a load
//! balancer does with the answer.

mod agent_access;
mod explanation;
mod maintenances;
mod observations;
mod reasons;
mod wide;

use headgate_core::node::SignalRules;
use hyper::Uri;
use jiff::Timestamp;
use kube::Client;

use crate::failure::Failure;

pub(crate) use agent_access::{AgentAccess, AgentPods, AgentRoute};
pub(crate) use agent_access::{fetch_agent_at, fetch_status, statusz_uri};
pub(crate) use explanation::{Explanation, explain};
pub(crate) use maintenances::{ConditionRow, MaintainedNodeRow, MaintenanceRow, list_maintenances, maintenance_rows};
pub(crate) use observations::Observations;

/// Queries the API server and the agent, and explains the node `name`. `statusz` is the address of the agent's
/// `/statusz`, if it is not found by `access`.
///
/// # Errors
/// When neither the API server nor the agent answers, or the Node does not exist.
pub(crate) async fn explain_node(
    client: &Client,
    name: &str,
    access: &AgentAccess,
    statusz: Option<Uri>,
    rules: &SignalRules,
) -> Result<Explanation, Failure> {
    let observations = Observations::query(client, name, access, statusz, rules).await?;
    Ok(explain(name, &observations, Timestamp::now()))
}
