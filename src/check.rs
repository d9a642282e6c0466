//! `headgate check`: whether what headgate needs is there, before and after its installation, and what to do about what is not.
//!
//! It writes nothing; only reviews of access are created, which the API server does not store. A [`World`] is read once, each part by
//! itself: a part that cannot be read is a finding. Each check is a function from the world to [`Finding`]s, and [`CHECKS`] has all. A
//! check about a part that an earlier failure kept from being read finds nothing, so one fault is named once.

mod autoscalers;
mod azure;
mod cluster;
mod finding;
mod probes;
mod read;
mod report;
mod rights;
#[cfg(test)]
mod tests;
mod workloads;

use std::collections::BTreeSet;

use headgate_core::node::NodeObject;
use headgate_core::service::ServiceObject;

use crate::config::Settings;

use azure::AzureWorld;
use finding::Finding;
use rights::AccountRights;
use workloads::Workload;

pub(crate) use azure::role_actions;
pub(crate) use read::read_world;
pub(crate) use report::CheckReport;

/// A part of the world, or why it cannot be read.
type Read<T> = Result<T, String>;

/// What the checks look at.
#[derive(Clone, Debug)]
pub(crate) struct World {
    /// The agents' settings, as the command line gives them.
    settings: Settings,
    /// The version of the API server.
    server: Read<Server>,
    /// The kinds of [`cluster::KINDS`] that it serves, as `GROUP/VERSION/PLURAL`.
    served: Read<BTreeSet<String>>,
    /// What the accounts of headgate lack.
    accounts: Read<Vec<AccountRights>>,
    /// All Nodes.
    nodes: Read<Vec<NodeObject>>,
    /// Services of type `LoadBalancer`.
    services: Read<Vec<ServiceObject>>,
    /// Deployments, `DaemonSets` and `StatefulSets`.
    workloads: Read<Vec<Workload>>,
    /// What Azure shows; `None` where it is not configured.
    azure: Option<Read<AzureWorld>>,
}

/// The version of the API server.
#[derive(Clone, Debug)]
struct Server {
    /// Such as `v1.36.3`.
    version: String,
    major: u32,
    minor: u32,
}

/// What a check finds, or why what it is about is not known.
type Found = Result<Vec<Finding>, Finding>;

/// A check: its name, and what it finds.
type Check = (&'static str, fn(&World) -> Found);

/// All checks, in the order of the report.
const CHECKS: &[Check] = &[
    ("api-server", cluster::check_version),
    ("api-kinds", cluster::check_kinds),
    ("nodes", cluster::check_nodes),
    ("rights", rights::check),
    ("installation", workloads::check_installation),
    ("versions", workloads::check_versions),
    ("azure-config", azure::check_configuration),
    ("azure-token", azure::check_token),
    ("azure-role", azure::check_role),
    ("deny-assignments", azure::check_deny_assignments),
    ("load-balancers", azure::check_load_balancers),
    ("pools", azure::check_pools),
    ("rules", probes::check_rules),
    ("probes", probes::check_services),
    ("local-services", probes::check_local_services),
    ("liveness-probes", probes::check_liveness),
    ("autoscalers", autoscalers::check),
    ("annotations", autoscalers::check_annotations),
];

/// What all checks find.
fn find(world: &World) -> Vec<Finding> {
    let found = CHECKS.iter().flat_map(|(id, check)| {
        let mut findings = check(world).unwrap_or_else(|unknown| vec![unknown]);
        for finding in &mut findings {
            finding.id = id;
        }
        findings
    });
    found.collect()
}
