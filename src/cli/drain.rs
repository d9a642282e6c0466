//! `headgate drain`: creates a `NodeMaintenance`, and follows it unless `--wait=false` is given.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{ArgAction, Args, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use headgate_core::telemetry::escape_line;
use headgate_maintenance::api::NodeMaintenance;

use crate::drain::{Created, ManifestRequest, NodeQuery, Outcome, PlanFile, create, follow, node_names};

use super::cluster::ClusterArguments;
use super::complete::node_candidates;
use super::signals::interrupted;
use super::{Failure, block_on, duration_up_to, print, print_json, print_yaml};

/// The longest `--timeout`. The help has it, too.
pub(super) const MAX_TIMEOUT: Duration = Duration::from_hours(168);
/// A plan has 32 entries at most, so any real file is much smaller.
const MAX_PLAN_BYTES: u64 = 1024 * 1024;

/// Drain nodes: out of their load balancers first, then without pods, by creating a NodeMaintenance
///
/// Waits until all pods have left all nodes, and prints what changes on a node: the pods that are left, what it waits for, and what blocks
/// which pod. The leader's maintenance controllers (maintenance.enabled) do the work, so the drain goes on after a timeout and an
/// interrupt. `headgate plan` shows it beforehand, `headgate undrain` ends or cancels it.
///
/// Exit code 1 if it is refused, ended or changed before, selects no node (it stays all the same), or is not done within --timeout.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes to drain, by name
    #[arg(value_name = "NODE", add = ArgValueCandidates::new(node_candidates))]
    nodes: Vec<String>,

    /// Nodes with these labels, as for kubectl; those that get them later are drained, too
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = NodeQuery::parse, conflicts_with = "nodes")]
    selector: Option<NodeQuery>,

    /// File with a NodeMaintenance: drainPlan, loadBalancer, reason; nodeSelector where no NODE is given
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// Name of the NodeMaintenance [default: that of the plan file, or drain-NODE; the same nodes or labels have the same name]
    #[arg(long)]
    name: Option<String>,

    /// Why the nodes are drained, for people
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Let headgate restart the rollout of Deployments whose PodDisruptionBudget needs all replicas, so that replacements start first;
    /// needs maintenance.rollout of the chart
    #[arg(long)]
    rollout: bool,

    /// Wait until the nodes are drained
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true",
          action = ArgAction::Set)]
    wait: bool,

    /// How long to wait, at most 168h; 0s: without an end [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIMEOUT))]
    timeout: Option<Duration>,

    /// Create nothing: print what would be sent (client), or let the API server check it (server)
    #[arg(long, value_enum, value_name = "STRATEGY", num_args = 0..=1, default_value = "none", default_missing_value = "client",
          require_equals = true)]
    dry_run: DryRun,

    /// Print the NodeMaintenance in this format, and progress to standard error
    #[arg(short, long, value_enum)]
    output: Option<Output>,

    #[command(flatten)]
    cluster: ClusterArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DryRun {
    None,
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Json,
    Yaml,
    Name,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if !arguments.wait && arguments.timeout.is_some() {
        return Err(Failure::settings(anyhow!(
            "--timeout is for waiting, and --wait=false does not wait"
        )));
    }
    let nodes = node_names(&arguments.nodes);
    let request = ManifestRequest {
        nodes: nodes.clone(),
        query: arguments.selector.clone(),
        file: arguments.plan.as_ref().map(read_plan).transpose()?,
        name: arguments.name.clone(),
        reason: arguments.reason.clone(),
        rollout: arguments.rollout,
    };
    let object = request.build().map_err(Failure::settings)?;
    if arguments.dry_run == DryRun::Client {
        return report(arguments, &object, "created (dry run)");
    }
    block_on(drain(arguments, &object, &nodes))
}

async fn drain(arguments: &Arguments, object: &NodeMaintenance, nodes: &[String]) -> Result<(), Failure> {
    let client = arguments.cluster.client().await?;
    let is_dry = arguments.dry_run == DryRun::Server;
    let created = create(&client, object, nodes, is_dry).await.map_err(Failure::runtime)?;
    let (object, verb) = match &created {
        Created::New(object) if is_dry => (object, "created (server dry run)"),
        Created::New(object) => (object, "created"),
        Created::Unchanged(object) => (object, "unchanged"),
    };
    let is_followed = arguments.wait && !is_dry;
    if !is_followed {
        return report(arguments, object, verb);
    }
    if arguments.output.is_none() {
        report(arguments, object, verb)?;
    }
    let is_new = matches!(created, Created::New(_));
    let timeout = arguments.timeout.filter(|timeout| !timeout.is_zero());
    let line = |line: &str| print_progress(arguments, line);
    let followed = follow(&client, object, is_new, timeout, interrupted(), line).await?;
    if arguments.output.is_some() {
        report(arguments, &followed.last, "")?;
    }
    let name = followed.last.metadata.name.unwrap_or_default();
    match followed.outcome {
        Outcome::Drained | Outcome::Shown => Ok(()),
        Outcome::NotDrained(why) => Err(Failure::runtime(anyhow!(
            "NodeMaintenance {name} ended or changed before its nodes were drained: {why}"
        ))),
        Outcome::NoNodes => Err(Failure::runtime(anyhow!(
            "NodeMaintenance {name} selects no node. It stays, and drains a node that it selects later; \
             `headgate undrain` with the same nodes or labels, or `kubectl delete hgnm {name}`, ends it"
        ))),
    }
}

/// Reads a plan file.
pub(super) fn read_plan(file: &PathBuf) -> Result<PlanFile, Failure> {
    let about = || format!("plan file {}", file.display());
    let read = || -> anyhow::Result<PlanFile> {
        let size = std::fs::metadata(file)?.len();
        if size > MAX_PLAN_BYTES {
            return Err(anyhow!("it has {size} bytes; allowed: {MAX_PLAN_BYTES}"));
        }
        PlanFile::parse(&std::fs::read_to_string(file)?)
    };
    read().with_context(about).map_err(Failure::settings)
}

/// Prints the object, or one line about it as kubectl does.
fn report(arguments: &Arguments, object: &NodeMaintenance, verb: &str) -> Result<(), Failure> {
    let mut object = object.clone();
    object.metadata.managed_fields = None;
    let name = format!(
        "nodemaintenance.headgate.dev/{}",
        object.metadata.name.as_deref().unwrap_or_default()
    );
    match arguments.output {
        None => print(format!("{} {verb}\n", escape_line(&name)).as_bytes()),
        Some(Output::Name) => print(format!("{}\n", escape_line(&name)).as_bytes()),
        Some(Output::Json) => print_json(&object),
        Some(Output::Yaml) => print_yaml(&object),
    }
}

/// Prints a line about progress: to standard output, unless an object is printed there.
fn print_progress(arguments: &Arguments, line: &str) {
    let line = format!("{}\n", escape_line(line));
    // The command goes on without a reader.
    let _ = match arguments.output {
        None => io::stdout().lock().write_all(line.as_bytes()),
        Some(_) => io::stderr().lock().write_all(line.as_bytes()),
    };
}
