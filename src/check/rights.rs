//! What headgate's accounts need from the API server with the given settings, and what of it they lack. Pure; `read` asks the API server.
//!
//! Invariant: [`needed`] is what the manifests grant for the same features, which tests/integration/manifests/check.rs shows.

use headgate_maintenance::automatic::Cause;

use super::finding::Finding;
use super::workloads::Workload;
use super::{Found, Read, World};
use crate::agent::Role;
use crate::config::{MarkerWriter, ServiceHealth, Settings};

/// The API group of Leases.
const LEASES: &str = "coordination.k8s.io";
const MAINTENANCE: &str = "headgate.dev";
/// The namespace of the leader's objects.
const SYSTEM: &str = "kube-system";
/// What needs a right.
const ADMIN_STATES: &str = "admin states";
const MAINTENANCE_ENABLED: &str = "maintenance.enabled";

/// A request that an account must be allowed to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Right {
    pub(super) verb: &'static str,
    /// Empty for the core group.
    pub(super) group: &'static str,
    /// The plural, and a subresource after a slash.
    pub(super) resource: &'static str,
    /// Empty for all namespaces, and for resources without one.
    pub(super) namespace: String,
    /// Empty for all names.
    pub(super) name: String,
    /// The settings key, or the work, that needs it.
    pub(super) why: &'static str,
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        if !self.namespace.is_empty() {
            write!(f, " in {}", self.namespace)?;
        }
        Ok(())
    }
}

/// An account of headgate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) namespace: String,
    pub(super) name: String,
    /// `None` for `headgate hold`.
    pub(super) role: Option<Role>,
    /// Whether its process has the path of `azure.json`.
    pub(super) has_azure: bool,
}

impl Account {
    /// The user name of its tokens.
    pub(super) fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    /// The groups of its tokens.
    pub(super) fn groups(&self) -> Vec<String> {
        vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{}", self.namespace),
            "system:authenticated".to_owned(),
        ]
    }
}

/// What an account lacks.
#[derive(Clone, Debug)]
pub(super) struct AccountRights {
    pub(super) account: Account,
    /// The rights that it needs and does not have, or why that is not known.
    pub(super) missing: Read<Vec<Right>>,
}

/// The accounts to ask about. In a Pod of headgate that is its own; elsewhere those of the workloads.
pub(super) fn accounts(own_user: &str, workloads: &[Workload], settings: &Settings) -> Vec<Account> {
    let installed: Vec<Account> = workloads.iter().filter_map(Workload::account).collect();
    let own = own_user
        .strip_prefix("system:serviceaccount:")
        .and_then(|account| account.split_once(':'));
    let Some((namespace, name)) = own else {
        return installed;
    };
    if let Some(own) = installed
        .iter()
        .find(|account| (account.namespace.as_str(), account.name.as_str()) == (namespace, name))
    {
        return vec![own.clone()];
    }
    // The workloads cannot be read with its rights.
    let role = match name {
        "headgate" => Role::Agent,
        "headgate-controller" => Role::Controller,
        _ => return installed,
    };
    vec![Account {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        role: Some(role),
        has_azure: settings.azure.is_configured(),
    }]
}

/// Collects rights.
#[derive(Default)]
struct Rights(Vec<Right>);

impl Rights {
    fn add(&mut self, why: &'static str, group: &'static str, resource: &'static str, verbs: &[&'static str]) {
        self.add_in(why, group, resource, ("", ""), verbs);
    }

    /// Those in a namespace, about one name or all.
    fn add_in(
        &mut self,
        why: &'static str,
        group: &'static str,
        resource: &'static str,
        (namespace, name): (&str, &str),
        verbs: &[&'static str],
    ) {
        let rights = verbs.iter().map(|verb| Right {
            verb,
            group,
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            why,
        });
        self.0.extend(rights);
    }
}

/// What an account needs with these settings.
pub(super) fn needed(settings: &Settings, account: &Account) -> Vec<Right> {
    let mut rights = Rights::default();
    let Some(role) = account.role else {
        let why = "delayTermination.karpenter";
        rights.add(why, "", "nodes", &["list", "watch"]);
        rights.add_in(why, "events.k8s.io", "events", ("default", ""), &["create"]);
        return rights.0;
    };
    rights.add("the watch of Nodes", "", "nodes", &["get", "list", "watch"]);
    // Events about a Node are kept in `default`, those about a Service with it.
    let writes_everywhere = role == Role::Controller || settings.service_health == ServiceHealth::NodePorts;
    let namespace = if writes_everywhere { "" } else { "default" };
    rights.add_in(
        "events",
        "events.k8s.io",
        "events",
        (namespace, ""),
        &["create", "patch"],
    );
    match settings.out_of_load_balancers.writer() {
        MarkerWriter::None => {}
        MarkerWriter::Leader | MarkerWriter::Probes(_) => {
            rights.add("outOfLoadBalancers.source", "", "nodes/status", &["patch"]);
        }
    }
    if role.answers_probes() {
        add_for_agents(&mut rights, settings);
    }
    let leads_azure = account.has_azure || settings.azure.is_configured();
    if role.may_lead() && leads_azure {
        add_for_leaders(&mut rights, ADMIN_STATES);
        add_for_admin_states(&mut rights, settings);
    } else if role == Role::Controller && settings.leads_maintenances_alone() {
        add_for_leaders(&mut rights, MAINTENANCE_ENABLED);
    }
    // Of those that may lead only the controllers have it, without which the setting has no effect.
    if role.may_lead() && settings.azure.reads_node_events() {
        rights.add_in("evictionNotices", "", "events", ("default", ""), &["list", "watch"]);
    }
    if role == Role::Controller {
        add_for_controllers(&mut rights, settings);
    }
    rights.0
}

fn add_for_agents(rights: &mut Rights, settings: &Settings) {
    if settings.azure.polls_scheduled_events() {
        rights.add("evictionNotices", "", "nodes", &["patch"]);
    }
    if settings.cluster_autoscaler_delay.is_some() {
        rights.add("delayTermination.clusterAutoscaler", "", "nodes", &["patch"]);
    }
    if settings.count_connections {
        rights.add("connections.count", "", "services", &["list", "watch"]);
    }
    if settings.service_health != ServiceHealth::Disabled {
        rights.add("serviceHealthChecks", "", "services", &["list", "watch"]);
        rights.add(
            "serviceHealthChecks",
            "discovery.k8s.io",
            "endpointslices",
            &["list", "watch"],
        );
    }
}

/// The election, and what every term reads.
fn add_for_leaders(rights: &mut Rights, why: &'static str) {
    rights.add_in(why, LEASES, "leases", (SYSTEM, "headgate-leader"), &["get", "update"]);
    rights.add_in(why, LEASES, "leases", (SYSTEM, ""), &["create"]);
    rights.add(why, "", "services", &["list", "watch"]);
}

fn add_for_admin_states(rights: &mut Rights, settings: &Settings) {
    let why = ADMIN_STATES;
    rights.add(why, "discovery.k8s.io", "endpointslices", &["list", "watch"]);
    let shared = (SYSTEM, "aks-managed-resource-locker");
    rights.add_in(why, LEASES, "leases", shared, &["get", "list", "watch", "update"]);
    rights.add_in(
        why,
        "",
        "configmaps",
        (SYSTEM, "headgate-admin-state"),
        &["get", "update"],
    );
    rights.add_in(why, "", "configmaps", (SYSTEM, ""), &["create"]);
    if let Some(secret) = &settings.azure.config_secret {
        let secret = (secret.namespace.as_str(), secret.name.as_str());
        rights.add_in("azure.configSecret", "", "secrets", secret, &["get"]);
    }
}

fn add_for_controllers(rights: &mut Rights, settings: &Settings) {
    rights.add("holds of the guard", "", "nodes", &["patch"]);
    if settings.maintenance.enabled {
        let why = MAINTENANCE_ENABLED;
        rights.add(why, MAINTENANCE, "nodemaintenances", &["list", "watch", "patch"]);
        rights.add(why, MAINTENANCE, "nodemaintenances/status", &["update"]);
        let all = ["list", "watch", "create", "patch", "delete"];
        rights.add(why, MAINTENANCE, "evacuations", &all);
        rights.add(why, MAINTENANCE, "evacuations/status", &["update"]);
        rights.add(why, "", "nodes/status", &["patch"]);
        rights.add(why, "", "pods", &["get", "list", "watch", "delete"]);
        rights.add(why, "", "pods/eviction", &["create"]);
        rights.add(why, "policy", "poddisruptionbudgets", &["list", "watch"]);
        let (why, causes) = ("maintenance.automatic", &settings.maintenance.automatic.causes);
        if !causes.is_empty() {
            let verbs = ["create", "delete", "automate"];
            rights.add(why, MAINTENANCE, "nodemaintenances", &verbs);
        }
        if causes.contains_key(&Cause::Machine) {
            rights.add(why, "cluster.x-k8s.io", "machines", &["list", "watch", "patch"]);
        }
    }
}

pub(super) fn check(world: &World) -> Found {
    let unknown = |error: &str| {
        Finding::warning(
            format!("the rights are not known: {error}"),
            "run `headgate check` in a Pod of headgate, or as a user who may create subjectaccessreviews",
        )
    };
    let accounts = world.accounts.as_ref().map_err(|error| unknown(error))?;
    let mut findings = Vec::new();
    for AccountRights { account, missing } in accounts {
        let object = format!("serviceaccount/{}/{}", account.namespace, account.name);
        match missing {
            Err(error) => findings.push(unknown(error).about(object)),
            Ok(missing) => findings.extend(missing.iter().map(|right| {
                let what = format!("may not {right}, which {} needs", right.why);
                let do_ = "apply the roles of headgate's manifests of this version with that feature, or turn the feature off";
                Finding::failure(what, do_).about(&*object)
            })),
        }
    }
    let users: Vec<String> = accounts.iter().map(|rights| rights.account.user()).collect();
    let what = if users.is_empty() {
        "headgate is not installed: no account needs rights yet".to_owned()
    } else {
        format!("{} may do what the settings need", users.join(" and "))
    };
    Finding::or_ok(findings, what)
}
