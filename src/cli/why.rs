//! `headgate why NODE`: also as `kubectl headgate why NODE`, when the binary is called kubectl-headgate.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use headgate_kubernetes::api_server;
use hyper::Uri;

use crate::config::{self, METRICS_PORT};
use crate::why;

use super::{Failure, build_runtime, print, print_json};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the Node
    node: String,

    /// Kubeconfig file [default: those kubectl would use]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Operations port of the agents, on the node's InternalIP
    #[arg(long, default_value_t = METRICS_PORT)]
    port: u16,

    /// URL of the status of this node's agent, instead of the node's address and --port
    #[arg(long, value_name = "URL", value_parser = super::http_url)]
    statusz: Option<Uri>,

    /// Settings file of the agents, for their signals
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = config::load(arguments.config.as_deref(), &[]).map_err(Failure::settings)?;
    let explanation = build_runtime()?.block_on(async {
        let config = api_server::infer_config(arguments.kubeconfig.as_deref()).await;
        let client = api_server::build_client(&config.map_err(Failure::settings)?).map_err(Failure::settings)?;
        why::explain_node(
            &client,
            &arguments.node,
            arguments.port,
            arguments.statusz.clone(),
            &settings.signals.health,
        )
        .await
        .map_err(Failure::runtime)
    })?;
    match arguments.output {
        Output::Text => print(explanation.to_string().as_bytes()),
        Output::Json => print_json(&explanation),
    }
}
