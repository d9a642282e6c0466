//! `headgate azure-setup`: the `az` commands that give headgate an identity in AKS.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use clap::Args;

use super::{Failure, print};

/// The commands, which need the variables of [`script`].
const COMMANDS: &str = include_str!("azure_setup.sh");
/// The role, with [`ROLE_SUBSCRIPTION`] in the places of the subscription. Names of custom roles are unique in a tenant, and this one has the
/// subscription in its name.
const ROLE: &str = include_str!("../../manifests/azure/role.json");
const ROLE_SUBSCRIPTION: &str = "00000000-0000-0000-0000-000000000002";

/// Print or run the az commands that headgate needs for AKS, and write the chart's values
///
/// They create an identity that a token of the controllers' ServiceAccount proves, a role, and its assignments. The output is a script for
/// sh; --run runs it with the az of this machine, which must be logged in. Both can be repeated, and replace the file of values.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Resource group of the AKS cluster, in which the identity is created
    #[arg(short = 'g', long, value_name = "GROUP")]
    resource_group: String,

    /// Name of the AKS cluster
    #[arg(short, long, value_name = "CLUSTER")]
    name: String,

    /// Name or id of the subscription [default: that of az]
    #[arg(long)]
    subscription: Option<String>,

    /// Name of the identity
    #[arg(long, value_name = "NAME", default_value = "headgate")]
    identity: String,

    /// Namespace of the Helm release
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    namespace: String,

    /// Repository of the image, for the values
    #[arg(long, value_name = "REPOSITORY")]
    image: Option<String>,

    /// File for the values
    #[arg(long, value_name = "FILE", default_value = "values.yaml")]
    values: PathBuf,

    /// Run the commands instead of printing them
    #[arg(long)]
    run: bool,
}

pub(super) fn run_command(arguments: &Arguments) -> Result<(), Failure> {
    let script = script(arguments);
    if !arguments.run {
        return print(script.as_bytes());
    }
    run(&script).map_err(Failure::runtime)?;
    let values = arguments.values.display().to_string();
    let next = format!(
        "helm install headgate charts/headgate --namespace {} --values {}",
        arguments.namespace,
        quoted(&values)
    );
    print(format!("{values} is written. Next:\n{next}\n").as_bytes())
}

/// The script for a POSIX shell that runs `az` and writes the values. Every command can be repeated, and none changes what a former run has made.
fn script(arguments: &Arguments) -> String {
    // A string of JSON is one of YAML.
    let image = arguments.image.as_deref().map(serde_json::Value::from);
    let head: String = [
        ("GROUP", arguments.resource_group.clone()),
        ("CLUSTER", arguments.name.clone()),
        ("SUBSCRIPTION", arguments.subscription.clone().unwrap_or_default()),
        ("IDENTITY", arguments.identity.clone()),
        ("NAMESPACE", arguments.namespace.clone()),
        ("IMAGE", image.map(|image| image.to_string()).unwrap_or_default()),
        ("VALUES", arguments.values.display().to_string()),
    ]
    .map(|(name, value)| format!("{name}={}\n", quoted(&value)))
    .concat();
    let role: String = ROLE.lines().map(str::trim).collect();
    let role = quoted(&role).replace(ROLE_SUBSCRIPTION, "'\"$SUBSCRIPTION\"'");
    format!(
        "#!/bin/sh\n# The commands by which headgate gets an identity in AKS, from headgate azure-setup. It can be repeated.\n\
         set -eu\n{head}{}",
        COMMANDS.replace("ROLE_DEFINITION", &role)
    )
}

/// Runs a script whose `az` says what it runs, and reports its errors itself.
fn run(script: &str) -> anyhow::Result<()> {
    let shown = r#"az() { printf 'az %s\n' "$*" >&2; command az "$@"; }"#;
    let status = Command::new("sh").args(["-c", &format!("{shown}\n{script}")]).status();
    let status = status.context("sh cannot be run")?;
    anyhow::ensure!(
        status.success(),
        "not everything is set up: {status}; az must be installed and logged in"
    );
    Ok(())
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,@+=".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
