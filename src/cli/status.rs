//! `headgate status`: also as `kubectl headgate status`, when the binary is called kubectl-headgate.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use headgate_clock::Clock;
use headgate_kubernetes::api_server;
use hyper::Uri;

use crate::config::{METRICS_PORT, Settings};
use crate::status::{self, AgentEndpoints, Detail, SnapshotRequest, StatusError, StatusReport};

use super::{EXIT_RUNTIME, EXIT_SETTINGS, azure, fail, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes to show [default: those with a signal, an admin state or a line in the ledger]
    nodes: Vec<String>,

    /// Show all nodes
    #[arg(short = 'A', long, conflicts_with = "nodes")]
    all: bool,

    /// Kubeconfig file [default: those kubectl would use]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    azure: azure::AzureArguments,

    /// Port of the agents' operations, on the node's InternalIP
    #[arg(long, default_value_t = METRICS_PORT)]
    port: u16,

    /// Where a node's agent shows its status, instead of the node's address and port; may be repeated
    #[arg(long, value_name = "NODE=URL", value_parser = node_and_url)]
    statusz: Vec<(String, Uri)>,

    /// Do not ask the agents: what probes are told is what the Nodes' signals imply
    #[arg(long)]
    no_agents: bool,

    /// How to print it
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

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let settings = match arguments.azure.settings() {
        Ok(settings) => settings,
        Err(mistakes) => return fail(EXIT_SETTINGS, &mistakes.into()),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_RUNTIME, &anyhow::Error::new(error).context("starting the runtime")),
    };
    let report = match runtime.block_on(ask(arguments, &settings)) {
        Ok(report) => report,
        Err((code, error)) => return fail(code, &error),
    };
    // Whoever did not answer is not waited for.
    runtime.shutdown_background();
    match arguments.output {
        Output::Text => print(status::render(&report, Detail::Narrow).as_bytes()),
        Output::Wide => print(status::render(&report, Detail::Wide).as_bytes()),
        Output::Json => match serde_json::to_vec_pretty(&report) {
            Ok(mut json) => {
                json.push(b'\n');
                print(&json)
            }
            Err(error) => fail(EXIT_RUNTIME, &error.into()),
        },
    }
}

async fn ask(arguments: &Arguments, settings: &Settings) -> Result<StatusReport, (u8, anyhow::Error)> {
    let wrong = |error: anyhow::Error| (EXIT_SETTINGS, error);
    let failed = |error: StatusError| (EXIT_RUNTIME, error.into());
    let config = api_server::infer_config(arguments.kubeconfig.as_deref()).await;
    let client = api_server::build_client(&config.map_err(|error| wrong(error.into()))?);
    let client = client.map_err(|error| wrong(error.into()))?;
    let azure = arguments.azure.connect(settings, &client).await;
    let sight = status::take_snapshot(SnapshotRequest {
        client: &client,
        azure: azure.map_err(|mistakes| wrong(mistakes.into()))?,
        settings,
        clock: Clock::System,
    });
    let sight = sight.await.map_err(failed)?;
    let mut report = StatusReport::from_snapshot(&sight, &settings.signals.admin_state);
    if !arguments.nodes.is_empty() {
        let kept = report.retain_named(&arguments.nodes);
        kept.map_err(|missing| failed(StatusError::NoSuchNode(missing)))?;
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
