//! `headgate status`: also as `kubectl headgate status`, when the binary is called kubectl-headgate.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use headgate_clock::Clock;
use headgate_kubernetes::api_server;
use hyper::Uri;

use crate::config::{METRICS_PORT, Settings};
use crate::status::{self, AgentEndpoints, Detail, SnapshotRequest, StatusError, StatusReport};

use super::{Failure, azure, build_runtime, print, print_json};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes to show [default: those with a signal, an admin state or a ledger entry]
    nodes: Vec<String>,

    /// Show all nodes
    #[arg(short = 'A', long, conflicts_with = "nodes")]
    all: bool,

    /// Kubeconfig file [default: those kubectl would use]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    azure: azure::AzureArguments,

    /// Operations port of the agents, on the node's InternalIP
    #[arg(long, default_value_t = METRICS_PORT)]
    port: u16,

    /// URL of the status of a node's agent, instead of the node's address and --port; may be repeated
    #[arg(long, value_name = "NODE=URL", value_parser = node_and_url)]
    statusz: Vec<(String, Uri)>,

    /// Send no request to the agents; show the health answers that the Nodes' signals imply
    #[arg(long)]
    no_agents: bool,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Wide,
    Json,
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
    let report = runtime.block_on(read_report(arguments, &settings))?;
    // Requests that got no answer are abandoned.
    runtime.shutdown_background();
    match arguments.output {
        Output::Text => print(status::render(&report, Detail::Narrow).as_bytes()),
        Output::Wide => print(status::render(&report, Detail::Wide).as_bytes()),
        Output::Json => print_json(&report),
    }
}

async fn read_report(arguments: &Arguments, settings: &Settings) -> Result<StatusReport, Failure> {
    let config = api_server::infer_config(arguments.kubeconfig.as_deref()).await;
    let client = api_server::build_client(&config.map_err(Failure::settings)?).map_err(Failure::settings)?;
    let snapshot = status::take_snapshot(SnapshotRequest {
        client: &client,
        azure: arguments.azure.connect(settings, &client).await?,
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
            port: arguments.port,
            overrides: arguments.statusz.iter().cloned().collect(),
        };
        status::query_agents(&mut report, &places).await;
    }
    Ok(report)
}
