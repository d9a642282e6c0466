//! The `az` commands that give headgate an identity in an AKS cluster, and the values with which the chart uses it.
//!
//! [`plan`] decides from the inputs alone. What only Azure knows is a [`Variable`], so the same plan is a shell script ([`script()`])
//! and is run step by step ([`run`]). Invariant: every step can be repeated, and none changes what a former run has made.

use std::path::{Path, PathBuf};

mod run;
mod script;

pub(crate) use run::run;
pub(crate) use script::{command_line, script};

/// The role, with [`ROLE_SUBSCRIPTION`] in the places of the subscription.
const ROLE: &str = include_str!("../manifests/azure/role.json");
/// What the role's name begins with; the subscription follows. Names of custom roles are unique in a tenant, and the role is of one subscription.
const ROLE_NAME_PREFIX: &str = "headgate-";
const ROLE_SUBSCRIPTION: &str = "00000000-0000-0000-0000-000000000002";
/// The `ServiceAccount` of the chart's controllers.
const SERVICE_ACCOUNT: &str = "headgate-controller";
/// What workload identity exchanges the token of a `ServiceAccount` for; the chart mounts a token for it.
const AUDIENCE: &str = "api://AzureADTokenExchange";

/// What a step learns from Azure, by its name in the script.
pub(crate) type Variable = &'static str;

const TENANT: Variable = "TENANT";
const SUBSCRIPTION: Variable = "SUBSCRIPTION";
const LOCK: Variable = "LOCK";
const POOLS: Variable = "POOLS";
const NODE_GROUP: Variable = "NODE_GROUP";
const SUBNET: Variable = "SUBNET";
const ISSUER: Variable = "ISSUER";
const PRINCIPAL: Variable = "PRINCIPAL";
const CLIENT: Variable = "CLIENT";
const ROLE_ID: Variable = "ROLE";

/// What the user knows.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    /// The resource group of the cluster, in which the identity is created.
    pub(crate) group: String,
    pub(crate) cluster: String,
    /// Its name or id; `None` for the one that `az` is set to.
    pub(crate) subscription: Option<String>,
    /// The name of the identity.
    pub(crate) identity: String,
    /// The namespace of the Helm release.
    pub(crate) namespace: String,
    /// The repository of the image.
    pub(crate) image: Option<String>,
    /// Where the values are written.
    pub(crate) values: PathBuf,
}

/// What to do, in this order, and the values to write then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) values_file: PathBuf,
    pub(crate) values: Word,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Runs `az`.
    Az {
        /// What for.
        about: &'static str,
        /// Runs only if all of these hold.
        conditions: Vec<Condition>,
        /// What its output is.
        saves: Option<Variable>,
        arguments: Vec<Word>,
    },
    /// Ends here if the variable has this value.
    Refuse {
        variable: Variable,
        value: &'static str,
        message: &'static str,
    },
}

/// About a variable of an earlier step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    IsEmpty(Variable),
    IsSet(Variable),
    Is(Variable, &'static str),
}

/// One argument, or a text: its parts are put together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Variable(Variable),
    /// What the variable has before this text.
    Before(Variable, &'static str),
}

impl From<&str> for Word {
    fn from(text: &str) -> Self {
        Self(vec![Part::Text(text.to_owned())])
    }
}

fn variable(name: Variable) -> Word {
    Word(vec![Part::Variable(name)])
}

/// The steps for an AKS cluster.
pub(crate) fn plan(inputs: &Inputs) -> Plan {
    let mut steps = account(inputs);
    steps.extend(cluster(inputs));
    steps.extend(identity(inputs));
    steps.extend(role());
    Plan {
        steps,
        values_file: inputs.values.clone(),
        values: values(inputs.image.as_deref()),
    }
}

/// The tenant, and the subscription by its id.
fn account(inputs: &Inputs) -> Vec<Step> {
    let show = |about, saves, query: &str| {
        let mut arguments = words(&["account", "show"]);
        if let Some(subscription) = &inputs.subscription {
            arguments.extend(words(&["--subscription", subscription]));
        }
        saved(about, saves, arguments, query)
    };
    vec![
        show("The tenant and the subscription.", TENANT, "tenantId"),
        show("", SUBSCRIPTION, "id"),
    ]
}

/// What is asked of the cluster, and its OIDC issuer.
fn cluster(inputs: &Inputs) -> Vec<Step> {
    let of_cluster = |verb: &[&str]| {
        let mut arguments = words(&["aks"]);
        arguments.extend(words(verb));
        arguments.extend(words(&["--resource-group", &inputs.group, "--name", &inputs.cluster]));
        arguments.extend(in_subscription());
        arguments
    };
    let show = |about, saves, query| saved(about, saves, of_cluster(&["show"]), query);
    let issuer = "oidcIssuerProfile.issuerUrl";
    let mut enable = saved(
        "Issues tokens for other systems. This restarts the API server where it was off.",
        ISSUER,
        of_cluster(&["update", "--enable-oidc-issuer"]),
        issuer,
    );
    only_if(&mut enable, &[Condition::IsEmpty(ISSUER)]);
    vec![
        show(
            "Whether Azure refuses writes to the node resource group.",
            LOCK,
            "nodeResourceGroupProfile.restrictionLevel",
        ),
        Step::Refuse {
            variable: LOCK,
            value: "ReadOnly",
            message: "The node resource group is locked, as in AKS Automatic: Azure refuses admin states whatever the role. \
                      Use the profile healthz.",
        },
        show(
            "What the entries of its backend pools are.",
            POOLS,
            "networkProfile.loadBalancerProfile.backendPoolType",
        ),
        Step::Refuse {
            variable: POOLS,
            value: "podIP",
            message: "The backend pools have the addresses of pods, for which headgate has no admin states. Use the profile healthz.",
        },
        show(
            "Where its load balancers are, and the subnet of its nodes if it is your own.",
            NODE_GROUP,
            "nodeResourceGroup",
        ),
        show("", SUBNET, "agentPoolProfiles[0].vnetSubnetId"),
        show("The issuer of its ServiceAccounts' tokens.", ISSUER, issuer),
        enable,
    ]
}

/// The identity, which a token of the controllers' `ServiceAccount` proves.
fn identity(inputs: &Inputs) -> Vec<Step> {
    let of_identity = |verb: &[&str], name_flag| {
        let mut arguments = words(&["identity"]);
        arguments.extend(words(verb));
        arguments.extend(words(&["--resource-group", &inputs.group, name_flag, &inputs.identity]));
        arguments.extend(in_subscription());
        arguments
    };
    let subject = format!("system:serviceaccount:{}:{SERVICE_ACCOUNT}", inputs.namespace);
    let mut credential = of_identity(&["federated-credential", "create"], "--identity-name");
    // Of the cluster's name, because clusters of one group share the identity.
    let name = format!("headgate-{}", inputs.cluster);
    credential.extend(words(&["--name", &name, "--audiences", AUDIENCE]));
    credential.extend(words(&["--subject", &subject, "--issuer"]));
    credential.push(variable(ISSUER));
    vec![
        saved(
            "The identity. An existing one is kept.",
            PRINCIPAL,
            of_identity(&["create"], "--name"),
            "principalId",
        ),
        saved("", CLIENT, of_identity(&["show"], "--name"), "clientId"),
        Step::Az {
            about: "Whose token proves it: that of the ServiceAccount of the chart's controllers.",
            conditions: Vec::new(),
            saves: None,
            arguments: quiet(credential),
        },
    ]
}

/// The role, and where the identity has it.
fn role() -> Vec<Step> {
    let of_subscription = |text: &str| Word(vec![Part::Text(text.to_owned()), Part::Variable(SUBSCRIPTION)]);
    let mut list = words(&["role", "definition", "list", "--custom-role-only", "true", "--name"]);
    list.push(of_subscription(ROLE_NAME_PREFIX));
    list.push("--scope".into());
    list.push(of_subscription("/subscriptions/"));
    list.extend(in_subscription());

    let mut create = words(&["role", "definition", "create"]);
    create.extend(in_subscription());
    create.extend(words(&["--role-definition"]));
    create.push(definition());
    let mut create = saved("", ROLE_ID, create, "id");
    only_if(&mut create, &[Condition::IsEmpty(ROLE_ID)]);

    let group = Word(vec![
        Part::Text("/subscriptions/".to_owned()),
        Part::Variable(SUBSCRIPTION),
        Part::Text("/resourceGroups/".to_owned()),
        Part::Variable(NODE_GROUP),
    ]);
    let network = Word(vec![Part::Before(SUBNET, "/subnets/")]);
    let mut network = assignment(
        "The same on your own virtual network, which a write of such a pool names.",
        network,
    );
    only_if(
        &mut network,
        &[Condition::IsSet(SUBNET), Condition::Is(POOLS, "nodeIP")],
    );
    vec![
        saved(
            "The role. An existing one is kept: `headgate check` names the actions that it lacks.",
            ROLE_ID,
            list,
            "[0].id",
        ),
        create,
        assignment("The identity has it on the node resource group.", group),
        network,
    ]
}

/// The role of this subscription, on one line.
fn definition() -> Word {
    let role: String = ROLE.lines().map(str::trim).collect();
    let mut parts = Vec::new();
    for text in role.split(ROLE_SUBSCRIPTION) {
        if !parts.is_empty() {
            parts.push(Part::Variable(SUBSCRIPTION));
        }
        parts.push(Part::Text(text.to_owned()));
    }
    Word(parts)
}

fn assignment(about: &'static str, scope: Word) -> Step {
    let mut arguments = words(&[
        "role",
        "assignment",
        "create",
        "--assignee-principal-type",
        "ServicePrincipal",
    ]);
    for (flag, value) in [
        ("--assignee-object-id", variable(PRINCIPAL)),
        ("--role", variable(ROLE_ID)),
        ("--scope", scope),
    ] {
        arguments.push(flag.into());
        arguments.push(value);
    }
    arguments.extend(in_subscription());
    Step::Az {
        about,
        conditions: Vec::new(),
        saves: None,
        arguments: quiet(arguments),
    }
}

/// The values of the chart.
fn values(image: Option<&str>) -> Word {
    let mut parts = vec![Part::Text(
        "# Written by headgate azure-setup.\nprofile: aks\n".to_owned(),
    )];
    if let Some(image) = image {
        // A string of JSON is one of YAML.
        let image = serde_json::Value::from(image);
        parts.push(Part::Text(format!("image:\n  repository: {image}\n")));
    }
    parts.push(Part::Text("azure:\n".to_owned()));
    for (key, name) in [
        ("tenantId", TENANT),
        ("subscriptionId", SUBSCRIPTION),
        ("resourceGroup", NODE_GROUP),
        ("clientId", CLIENT),
        ("config:\n    loadBalancerBackendPoolConfigurationType", POOLS),
    ] {
        parts.push(Part::Text(format!("  {key}: \"")));
        parts.push(Part::Variable(name));
        parts.push(Part::Text("\"\n".to_owned()));
    }
    Word(parts)
}

fn words(texts: &[&str]) -> Vec<Word> {
    texts.iter().map(|text| (*text).into()).collect()
}

fn in_subscription() -> [Word; 2] {
    ["--subscription".into(), variable(SUBSCRIPTION)]
}

/// Prints nothing that nobody reads.
fn quiet(mut arguments: Vec<Word>) -> Vec<Word> {
    arguments.extend(words(&["--output", "none"]));
    arguments
}

/// A step whose output is one value of Azure's answer; empty if it has none.
fn saved(about: &'static str, saves: Variable, mut arguments: Vec<Word>, query: &str) -> Step {
    arguments.extend(words(&["--query", query, "--output", "tsv"]));
    Step::Az {
        about,
        conditions: Vec::new(),
        saves: Some(saves),
        arguments,
    }
}

fn only_if(step: &mut Step, wanted: &[Condition]) {
    if let Step::Az { conditions, .. } = step {
        conditions.extend_from_slice(wanted);
    }
}

impl Plan {
    /// The command that comes next.
    pub(crate) fn next_command(&self, namespace: &str) -> String {
        let values = command_line(&[display(&self.values_file)]);
        format!("helm install headgate charts/headgate --namespace {namespace} --values {values}")
    }
}

fn display(path: &Path) -> Word {
    Word(vec![Part::Text(path.display().to_string())])
}

#[cfg(test)]
mod tests;
