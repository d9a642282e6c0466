//! `headgate status`: also as `kubectl headgate status`, when the binary is called kubectl-headgate.

use std::time::Duration;

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use headgate_clock::Clock;
use hyper::Uri;
use kube::Client;

use crate::config::Settings;
use crate::status::{self, AgentEndpoints, Detail, SnapshotRequest, StatusError, StatusReport};

use super::cluster::{AgentArguments, ClusterArguments};
use super::colour::print_coloured;
use super::complete::node_candidates;
use super::{Failure, azure, build_runtime, duration_up_to, print, print_json, print_yaml};

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

    /// Read again every --interval, and print the report whenever it has changed
    #[arg(short, long)]
    watch: bool,

    /// Time between two reads of --watch, at most 1h
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_INTERVAL), default_value = "5s", requires = "watch")]
    interval: Duration,

    /// Order of the nodes: a field of the nodes in -o json, such as .verdict.healthz [default: .name]
    #[arg(long, value_name = "FIELD")]
    sort_by: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The longest `--interval`. The help has it, too.
const MAX_INTERVAL: Duration = Duration::from_hours(1);
/// The shortest, so that a watch does not load the API server and ARM.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Wide,
    Json,
    Yaml,
    /// node/NAME, one a line
    Name,
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
        let report = read_report(arguments, &settings, &client).await?;
        print_report(arguments.output, &report)?;
        if arguments.watch {
            watch(arguments, &settings, &client, report).await?;
        }
        Ok(())
    });
    // Requests that got no answer are abandoned.
    runtime.shutdown_background();
    outcome
}

/// Prints the report whenever it has changed, until the process is stopped or nothing reads its output. A failed read is reported
/// once, and tried again.
async fn watch(
    arguments: &Arguments,
    settings: &Settings,
    client: &Client,
    mut shown: StatusReport,
) -> Result<(), Failure> {
    let mut failure = None;
    loop {
        tokio::time::sleep(arguments.interval.max(MIN_INTERVAL)).await;
        match read_report(arguments, settings, client).await {
            Ok(report) => {
                failure = None;
                if !report.shows_the_same_as(&shown) {
                    if matches!(arguments.output, Output::Text | Output::Wide) {
                        print(format!("\n{:.0}\n", report.taken_at).as_bytes())?;
                    }
                    print_report(arguments.output, &report)?;
                    shown = report;
                }
            }
            Err(error) => {
                let text = error.error.to_string();
                if failure.as_ref() != Some(&text) {
                    super::report(&error.error);
                    failure = Some(text);
                }
            }
        }
    }
}

fn print_report(output: Output, report: &StatusReport) -> Result<(), Failure> {
    match output {
        Output::Text => print_coloured(&status::render(report, Detail::Narrow)),
        Output::Wide => print_coloured(&status::render(report, Detail::Wide)),
        Output::Json => print_json(report),
        Output::Yaml => print_yaml(report),
        Output::Name => {
            let names = report.nodes.iter().map(|node| format!("node/{}\n", node.name));
            print(names.collect::<String>().as_bytes())
        }
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
