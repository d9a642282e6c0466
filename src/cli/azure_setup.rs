//! `headgate azure-setup`: the `az` commands that give headgate an identity in AKS.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use clap::Args;

use super::{Failure, print};
use crate::azure_setup::{Inputs, command_line, plan, run, script};

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
    let plan = plan(&Inputs {
        group: arguments.resource_group.clone(),
        cluster: arguments.name.clone(),
        subscription: arguments.subscription.clone(),
        identity: arguments.identity.clone(),
        namespace: arguments.namespace.clone(),
        image: arguments.image.clone(),
        values: arguments.values.clone(),
    });
    if !arguments.run {
        return print(script(&plan).as_bytes());
    }
    let values = run(&plan, az).map_err(Failure::runtime)?;
    let file = arguments.values.display();
    let written = std::fs::write(&arguments.values, values);
    written
        .with_context(|| format!("{file} cannot be written"))
        .map_err(Failure::runtime)?;
    print(
        format!(
            "{file} is written. Next:\n{}\n",
            plan.next_command(&arguments.namespace)
        )
        .as_bytes(),
    )
}

/// Runs `az`, which reports its errors itself.
#[expect(clippy::print_stderr, reason = "a person sees which command takes its time")]
fn az(arguments: &[String]) -> anyhow::Result<String> {
    let words: Vec<_> = arguments.iter().map(|word| word.as_str().into()).collect();
    let shown = command_line(&words);
    eprintln!("az {}", headgate_core::telemetry::escape_lines(&shown));
    let mut command = Command::new("az");
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command
        .output()
        .context("az cannot be run; install the Azure CLI and log in")?;
    anyhow::ensure!(
        output.status.success(),
        "az {} failed: {}",
        arguments.join(" "),
        output.status
    );
    String::from_utf8(output.stdout).context("the output of az is not UTF-8")
}
