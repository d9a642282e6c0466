//! `headgate plan`: previews a drain, and writes nothing.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use headgate_maintenance::api::NodeMaintenance;
use kube::Client;

use crate::config::Settings;
use crate::drain::{ManifestRequest, NodeQuery, node_names};
use crate::preview::{self, Preview};

use super::cluster::ClusterArguments;
use super::complete::node_candidates;
use super::drain::read_plan;
use super::output::{self, Output, WatchArguments};
use super::{Failure, azure, block_on};

/// The name of a maintenance that is never created.
const PREVIEW_NAME: &str = "preview";

/// Preview a drain: which pods leave in which order, what blocks them, and which pools lose entries
///
/// Reads the cluster and, with the flags for Azure, the load balancers. `headgate drain` does what is shown, as far as pods, budgets and
/// pools stay as they are.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes to drain, by name
    #[arg(value_name = "NODE", add = ArgValueCandidates::new(node_candidates))]
    nodes: Vec<String>,

    /// Nodes with these labels, as for kubectl
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = NodeQuery::parse, conflicts_with = "nodes")]
    selector: Option<NodeQuery>,

    /// File with a NodeMaintenance: drainPlan, loadBalancer; nodeSelector where no NODE is given
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    azure: azure::AzureArguments,

    #[command(flatten)]
    watch: WatchArguments,

    /// Order of the nodes: a field of theirs in -o json, such as .pods [default: .name]
    #[arg(long, value_name = "FIELD")]
    sort_by: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.azure.settings()?;
    let nodes = node_names(&arguments.nodes);
    let mut request = ManifestRequest {
        nodes: nodes.clone(),
        query: arguments.selector.clone(),
        file: arguments.plan.as_ref().map(read_plan).transpose()?,
        ..ManifestRequest::default()
    };
    let is_named = request.file.as_ref().is_some_and(crate::drain::PlanFile::has_name);
    if nodes.is_empty() && arguments.selector.is_none() && !is_named {
        request.name = Some(PREVIEW_NAME.to_owned());
    }
    let maintenance = request.build().map_err(Failure::settings)?;
    block_on(async {
        let client = arguments.cluster.client().await?;
        let read = async || read(arguments, &settings, &client, maintenance.clone(), &nodes).await;
        output::show(arguments.output, &arguments.watch, read).await
    })
}

async fn read(
    arguments: &Arguments,
    settings: &Settings,
    client: &Client,
    maintenance: NodeMaintenance,
    nodes: &[String],
) -> Result<Preview, Failure> {
    let azure = arguments.azure.connect(settings, client).await?;
    let snapshot = Box::pin(preview::take_snapshot(client, azure, settings, maintenance, nodes));
    let snapshot = snapshot.await.map_err(Failure::runtime)?;
    let mut preview = Preview::from_snapshot(&snapshot);
    if let Some(field) = &arguments.sort_by {
        preview.sort_nodes_by(field).map_err(Failure::settings)?;
    }
    Ok(preview)
}
