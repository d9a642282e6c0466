//! `headgate status`: also as `kubectl headgate status`, when the binary is called kubectl-headgate.

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use headgate_core::clock::Clock;
use hyper::Uri;
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;

use crate::config::Settings;
use crate::status::{self, AgentEndpoints, Detail, SnapshotRequest, StatusError, StatusReport};

use super::cluster::{AgentArguments, ClusterArguments};
use super::complete::node_candidates;
use super::output::{self, Output, Report, WatchArguments};
use super::{Failure, azure, build_runtime};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes to show [default: those with a signal, an admin state or a ledger entry]
    #[arg(add = ArgValueCandidates::new(node_candidates))]
    nodes: Vec<String>,

    /// Show all nodes
    #[arg(short = 'A', long, conflicts_with = "nodes")]
    all: bool,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    azure: azure::AzureArguments,

    #[command(flatten)]
    agents: AgentArguments,

    /// URL of the status of a node's agent, instead of the node's address and --port; may be repeated
    #[arg(long, value_name = "NODE=URL", value_parser = node_and_url)]
    statusz: Vec<(String, Uri)>,

    /// Send no request to the agents; show the health answers that the Nodes' signals imply
    #[arg(long)]
    no_agents: bool,

    #[command(flatten)]
    watch: WatchArguments,

    /// Order of the nodes: a field of the nodes in -o json, such as .verdict.healthz [default: .name]
    #[arg(long, value_name = "FIELD")]
    sort_by: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

fn node_and_url(text: &str) -> Result<(String, Uri), String> {
    let allowed = || "allowed: a Node's name, = and an http URL, such as n1=http://127.0.0.1:10457/statusz".to_owned();
    let (node, url) = text.split_once('=').ok_or_else(allowed)?;
    let uri = super::http_url(url).map_err(|_| allowed())?;
    if node.is_empty() {
        Err(allowed())
    } else {
        Ok((node.to_owned(), uri))
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.azure.settings()?;
    let runtime = build_runtime()?;
    let outcome = runtime.block_on(async {
        let client = arguments.cluster.client().await?;
        let read = async || read_report(arguments, &settings, &client).await;
        Box::pin(output::show(arguments.output, &arguments.watch, read)).await
    });
    // Requests that got no answer are abandoned.
    runtime.shutdown_background();
    outcome
}

impl Report for StatusReport {
    const IS_COLOURED: bool = true;

    fn taken_at(&self) -> Timestamp {
        self.taken_at
    }

    fn text(&self, detail: Detail) -> String {
        status::render(self, detail)
    }

    fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("node/{}", node.name)).collect()
    }

    fn comparable(&self) -> Value {
        self.without_times()
    }
}

async fn read_report(arguments: &Arguments, settings: &Settings, client: &Client) -> Result<StatusReport, Failure> {
    let snapshot = status::take_snapshot(SnapshotRequest {
        client,
        azure: arguments.azure.connect(settings, client).await?,
        settings,
        clock: Clock::System,
    });
    let snapshot = snapshot.await.map_err(Failure::runtime)?;
    let mut report = StatusReport::from_snapshot(&snapshot);
    if !arguments.nodes.is_empty() {
        let kept = report.retain_named(&arguments.nodes);
        kept.map_err(|missing| Failure::runtime(StatusError::NoSuchNode(missing)))?;
    } else if !arguments.all {
        report.retain_notable();
    }
    if !arguments.no_agents {
        let places = AgentEndpoints {
            access: arguments.agents.access(),
            overrides: arguments.statusz.iter().cloned().collect(),
        };
        status::query_agents(&mut report, client, &places).await;
    }
    if let Some(field) = &arguments.sort_by {
        report.sort_nodes_by(field).map_err(Failure::settings)?;
    }
    Ok(report)
}
