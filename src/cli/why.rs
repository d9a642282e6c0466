//! `headgate why NODE`: also as `kubectl headgate why NODE`, when the binary is called kubectl-headgate.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use headgate_kubernetes::api_server;
use hyper::Uri;

use crate::config::{self, METRICS_PORT};
use crate::why;

use super::{EXIT_RUNTIME, EXIT_SETTINGS, fail, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The Node
    node: String,

    /// Kubeconfig file [default: those kubectl would use]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Port of the agents' operations, on the node's InternalIP
    #[arg(long, default_value_t = METRICS_PORT)]
    port: u16,

    /// Where this node's agent shows its status, instead of the node's address and port
    #[arg(long, value_name = "URL", value_parser = super::http_url)]
    statusz: Option<Uri>,

    /// Settings file of the agents, for their signals
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let settings = match config::load(arguments.config.as_deref(), &[]) {
        Ok(settings) => settings,
        Err(mistakes) => return fail(EXIT_SETTINGS, &mistakes.into()),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_RUNTIME, &anyhow::Error::new(error).context("starting the runtime")),
    };
    let asked = runtime.block_on(async {
        let config = match api_server::infer_config(arguments.kubeconfig.as_deref()).await {
            Ok(config) => config,
            Err(error) => return Err((EXIT_SETTINGS, anyhow::Error::from(error))),
        };
        let client = api_server::build_client(&config).map_err(|error| (EXIT_SETTINGS, error.into()))?;
        let statusz = arguments.statusz.clone();
        why::explain_node(
            &client,
            &arguments.node,
            arguments.port,
            statusz,
            &settings.signals.health,
        )
        .await
        .map_err(|error| (EXIT_RUNTIME, error.into()))
    });
    match asked {
        Err((code, error)) => fail(code, &error),
        Ok(explanation) => match arguments.output {
            Output::Text => print(explanation.to_string().as_bytes()),
            Output::Json => match serde_json::to_vec_pretty(&explanation) {
                Ok(mut json) => {
                    json.push(b'\n');
                    print(&json)
                }
                Err(error) => fail(EXIT_RUNTIME, &error.into()),
            },
        },
    }
}
