//! Azure: the configuration, the identity and what it may do, and the cluster's load balancers. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use headgate_azure::{BackendPoolType, Denial, DenyAssignment, Permission, TokenClaims};
use headgate_controller::pool::{LoadBalancerView, NodeMatcher, PoolView};
use headgate_core::service::ServiceObject;
use headgate_core::telemetry::first_names;

use super::finding::{Finding, State};
use super::workloads::Workload;
use super::{Found, Read, World};

/// Names that a finding has at most.
const MAX_NAMES: usize = 5;

/// What Azure shows, where `azure.json` can be used.
#[derive(Clone, Debug)]
pub(super) struct AzureWorld {
    pub(super) configuration: Configuration,
    /// What the identity sees, or why it gets no token.
    pub(super) seen: Read<Seen>,
}

/// What the identity sees.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Whom the token is for.
    pub(super) token: TokenClaims,
    /// What the identity may do: in the resource group, and in the virtual network if that matters.
    pub(super) permissions: Read<Permissions>,
    pub(super) deny_assignments: Read<Vec<DenyAssignment>>,
    pub(super) load_balancers: Read<LoadBalancers>,
}

/// What `azure.json` and the settings say.
#[derive(Clone, Debug)]
pub(super) struct Configuration {
    /// The id of the load balancers' resource group.
    pub(super) group: String,
    /// The id of the virtual network, if `azure.json` or a pool of addresses names one.
    pub(super) network: Option<String>,
    /// The setting `azure.clusterName`.
    pub(super) cluster_name: String,
    pub(super) pool_type: BackendPoolType,
}

/// What the identity may do.
#[derive(Clone, Debug)]
pub(super) struct Permissions {
    pub(super) group: Vec<Permission>,
    /// The same as for the group if no virtual network is named.
    pub(super) network: Vec<Permission>,
}

/// The load balancers of the resource group.
#[derive(Clone, Debug)]
pub(super) struct LoadBalancers {
    /// Those of the cluster.
    pub(super) found: Vec<Arc<LoadBalancerView>>,
    /// The names of the others, where the cluster has none.
    pub(super) others: Vec<String>,
}

/// When an action of the role is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// For every write of an admin state.
    Always,
    /// For pools of addresses, at the virtual network.
    Addresses,
    /// Only in some clusters, or for `headgate check` itself.
    Sometimes,
}

/// The actions of the role in manifests/azure/role.json.
const ACTIONS: &[(&str, Need)] = &[
    ("Microsoft.Network/loadBalancers/read", Need::Always),
    ("Microsoft.Network/loadBalancers/backendAddressPools/read", Need::Always),
    (WRITE, Need::Always),
    (
        "Microsoft.Network/virtualNetworks/joinLoadBalancer/action",
        Need::Addresses,
    ),
    (
        "Microsoft.Network/loadBalancers/loadBalancingRules/read",
        Need::Sometimes,
    ),
    ("Microsoft.Network/loadBalancers/probes/read", Need::Sometimes),
    ("Microsoft.Network/locations/operations/read", Need::Sometimes),
    ("Microsoft.Network/networkInterfaces/read", Need::Sometimes),
    ("Microsoft.Authorization/denyAssignments/read", Need::Sometimes),
    ("Microsoft.Authorization/permissions/read", Need::Sometimes),
];
/// What a write of an admin state is.
const WRITE: &str = "Microsoft.Network/loadBalancers/backendAddressPools/write";

/// The actions of the role.
pub(crate) fn role_actions() -> impl Iterator<Item = &'static str> {
    ACTIONS.iter().map(|(action, _)| *action)
}

/// What the identity sees with the configuration; `None` if an earlier failure kept it from being read.
fn seen(world: &World) -> Option<(&Configuration, &Seen)> {
    let azure = world.azure.as_ref()?.as_ref().ok()?;
    Some((&azure.configuration, azure.seen.as_ref().ok()?))
}

/// The load balancers that were read.
pub(super) fn load_balancers(world: &World) -> Option<&[Arc<LoadBalancerView>]> {
    let (_, seen) = seen(world)?;
    Some(&seen.load_balancers.as_ref().ok()?.found)
}

pub(super) fn check_configuration(world: &World) -> Found {
    let mut accounts = world.workloads.iter().flatten().filter_map(Workload::account);
    Ok(vec![match &world.azure {
        None if accounts.any(|account| account.has_azure) => Finding::warning(
            "headgate's pods have one, and this command was given none: role, pools and probes of load balancers were not checked",
            "run it in a pod of headgate, or give --config and --azure-config-file",
        ),
        None => Finding::ok(
            "this command was given none; without one there are no admin states, and health probes alone take nodes out",
        ),
        Some(Err(error)) => {
            return Err(Finding::failure(
                format!("azure.json cannot be used: {error}"),
                "correct it; give --azure-config-file or --azure-config-secret where the settings name a file of another machine",
            ));
        }
        Some(Ok(azure)) => Finding::ok(format!("load balancers in {}", azure.configuration.group)),
    }])
}

pub(super) fn check_token(world: &World) -> Found {
    let Some(Ok(azure)) = &world.azure else {
        return Ok(Vec::new());
    };
    let seen = azure.seen.as_ref().map_err(|error| {
        Finding::failure(
            format!("the identity gets no token: {error}"),
            "workload identity: compare issuer, subject and audience of the federated credential with the ServiceAccount; client secret: \
             renew it; managed identity: assign it to the machine, and let the pod reach 169.254.169.254",
        )
    })?;
    let (client, object) = (&seen.token.client_id, &seen.token.object_id);
    let what = "the identity gets a token";
    Ok(vec![if object.is_empty() {
        Finding::ok(what)
    } else {
        Finding::ok(format!("{what}: client {client}, object {object}"))
    }])
}

pub(super) fn check_role(world: &World) -> Found {
    let Some((configuration, seen)) = seen(world) else {
        return Ok(Vec::new());
    };
    let permissions = seen.permissions.as_ref().map_err(|error| {
        Finding::warning(
            format!("the actions of the identity are not known: {error}"),
            "grant Microsoft.Authorization/permissions/read with the role, or run `headgate check` as an identity that has it",
        )
    })?;
    let may =
        |permissions: &[Permission], action: &str| permissions.iter().any(|permission| permission.contains(action));
    let missing = ACTIONS.iter().filter_map(|(action, need)| {
        let (scope, granted) = match (need, &configuration.network) {
            (Need::Addresses, _) if configuration.pool_type != BackendPoolType::NodeIp => return None,
            (Need::Addresses, Some(network)) => (network, may(&permissions.network, action)),
            (Need::Addresses, None) => {
                let what = format!("the virtual network of the nodes is not known, so {action} was not checked");
                let do_ = "set vnetName in azure.json, and vnetResourceGroup where that is not the group of the nodes";
                return Some(Finding::warning(what, do_));
            }
            (Need::Always | Need::Sometimes, _) => (&configuration.group, may(&permissions.group, action)),
        };
        (!granted).then(|| {
            let what = format!("the identity may not {action}");
            let do_ = format!(
                "az role definition update --role-definition @role.json; that of this version is manifests/azure/role.json. Where the role is not \
                 assigned: az role assignment create --role ROLE --assignee PRINCIPAL --scope {scope}"
            );
            let state = if *need == Need::Sometimes {
                State::Warning
            } else {
                State::Failure
            };
            Finding::failure(what, do_).with_state(state).about(scope)
        })
    });
    Finding::or_ok(missing.collect(), "the identity has every action of the role")
}

pub(super) fn check_deny_assignments(world: &World) -> Found {
    let Some((configuration, seen)) = seen(world) else {
        return Ok(Vec::new());
    };
    let assignments = seen.deny_assignments.as_ref().map_err(|error| {
        Finding::warning(
            format!("deny assignments are not known: {error}"),
            "grant Microsoft.Authorization/denyAssignments/read with the role, or run `headgate check` as an identity that has it",
        )
    })?;
    let denying = assignments.iter().filter(|assignment| {
        let is_above = configuration.group.len() >= assignment.scope.trim_end_matches('/').len();
        assignment.denies(WRITE) && !(is_above && assignment.is_for_scope_only)
    });
    let findings = denying.filter_map(|assignment| {
        let state = match assignment.denial(&seen.token.object_id) {
            Denial::Certain => State::Failure,
            Denial::DependsOnGroups => State::Warning,
            Denial::None => return None,
        };
        let what = format!("the deny assignment {:?} refuses writes of pools", assignment.name);
        let do_ = "AKS: az aks update --resource-group GROUP --name CLUSTER --nrg-lockdown-restriction-level Unrestricted; where that is not \
                   possible, as in AKS Automatic, admin states cannot be set: leave Azure unconfigured and let probes of /healthz take nodes out";
        Some(Finding::failure(what, do_).with_state(state).about(&*assignment.scope))
    });
    Finding::or_ok(findings.collect(), "no deny assignment refuses writes of pools")
}

pub(super) fn check_load_balancers(world: &World) -> Found {
    let Some((configuration, seen)) = seen(world) else {
        return Ok(Vec::new());
    };
    let listed = seen.load_balancers.as_ref().map_err(|error| {
        Finding::failure(
            format!("the load balancers cannot be read: {error}"),
            "check subscriptionId, resourceGroup and loadBalancerResourceGroup in azure.json, and the role assignment of the identity",
        )
    })?;
    if !listed.found.is_empty() {
        let found = listed.found.iter().map(|found| found.id.name());
        return Ok(vec![Finding::ok(first_names(found, MAX_NAMES))]);
    }
    let has_services = world
        .services
        .as_ref()
        .is_ok_and(|services| services.iter().any(ServiceObject::is_load_balancer));
    let others = if listed.others.is_empty() {
        "none".to_owned()
    } else {
        first_names(&listed.others, MAX_NAMES)
    };
    let what = format!(
        "no load balancer is named {0} or {0}-internal; {1} has: {others}",
        configuration.cluster_name, configuration.group
    );
    Ok(vec![if has_services {
        let do_ = "set azure.clusterName to the name of the cluster's load balancer, or loadBalancerName in azure.json";
        Finding::failure(what, do_)
    } else {
        Finding::ok(format!("{what}. The cluster has no Service of type LoadBalancer"))
    }])
}

pub(super) fn check_pools(world: &World) -> Found {
    let Some(found) = load_balancers(world) else {
        return Ok(Vec::new());
    };
    let (mut findings, mut number) = (Vec::new(), 0);
    for load_balancer in found {
        for pool in load_balancer.pools.iter().filter(|pool| pool.is_used()) {
            number += 1;
            let object = format!("pool/{}/{}", load_balancer.id.name(), pool.id.name());
            findings.extend(check_pool(pool).into_iter().map(|finding| finding.about(&*object)));
        }
    }
    Finding::or_ok(findings, format!("{number} pools of addresses with rules"))
}

fn check_pool(pool: &PoolView) -> Vec<Finding> {
    let count = |is: fn(&NodeMatcher) -> bool| pool.entries.iter().filter(|entry| is(&entry.matcher)).count();
    let interfaces = count(|matcher| matches!(matcher, NodeMatcher::Machine(_) | NodeMatcher::Interface(_)));
    let unmatched = count(|matcher| matches!(matcher, NodeMatcher::Unmatched));
    let states: BTreeSet<_> = pool.entries.iter().map(|entry| entry.admin_state.is_none()).collect();
    let mut findings = Vec::new();
    if interfaces > 0 {
        findings.push(Finding::warning(
            format!("{interfaces} of {} entries are network interfaces", pool.entries.len()),
            "try one node first: whether Azure takes admin states in such a pool is not verified; pools of addresses (AKS: \
             --load-balancer-backend-pool-type nodeIP) are what Microsoft documents",
        ));
    }
    if unmatched > 0 {
        findings.push(Finding::warning(
            format!(
                "{unmatched} of {} entries name no address, interface or node",
                pool.entries.len()
            ),
            "headgate leaves them alone; look at the pool in Azure",
        ));
    }
    if states.contains(&true) {
        findings.push(Finding::warning(
            "entries have an admin state that headgate does not know",
            "headgate leaves them alone; use a newer version of headgate",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_those_of_the_role() {
        let role: serde_json::Value = serde_json::from_str(include_str!("../../manifests/azure/role.json")).unwrap();
        let granted: BTreeSet<&str> = role["Actions"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(serde_json::Value::as_str)
            .collect();
        let checked: BTreeSet<&str> = ACTIONS.iter().map(|(action, _)| *action).collect();
        assert_eq!(checked, granted);
    }
}
