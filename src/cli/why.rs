//! `headgate why NODE` and `headgate why service NAMESPACE/NAME`: also as `kubectl headgate why`, when the binary is called
//! kubectl-headgate.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use headgate_clock::Clock;
use headgate_kubernetes::api_server;
use hyper::Uri;

use crate::config::{METRICS_PORT, Settings};
use crate::status::{self, SnapshotRequest};
use crate::why;

use super::{Failure, azure, build_runtime, print, print_json};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the Node, also as node/NAME; or the word service, for the backend pools of a Service
    node: String,

    /// The Service, after the word service
    #[arg(value_name = "NAMESPACE/NAME", value_parser = service_name)]
    service: Option<String>,

    /// Kubeconfig file [default: those kubectl would use]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Operations port of the agents, on the node's InternalIP
    #[arg(long, default_value_t = METRICS_PORT)]
    port: u16,

    /// URL of the status of this node's agent, instead of the node's address and --port; for a Service, of the leader
    #[arg(long, value_name = "URL", value_parser = super::http_url)]
    statusz: Option<Uri>,

    #[command(flatten)]
    azure: azure::AzureArguments,

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
    let settings = arguments.azure.settings()?;
    if let Some(service) = &arguments.service {
        return explain_service(arguments, &settings, service);
    }
    let node = arguments.node.strip_prefix("node/").unwrap_or(&arguments.node);
    let explanation = build_runtime()?.block_on(async {
        let config = api_server::infer_config(arguments.kubeconfig.as_deref()).await;
        let client = api_server::build_client(&config.map_err(Failure::settings)?).map_err(Failure::settings)?;
        why::explain_node(
            &client,
            node,
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

/// The name of a Service in lower case, as names in Kubernetes are.
fn service_name(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(text.to_ascii_lowercase())
        }
        _ => Err("allowed: NAMESPACE/NAME, such as default/web".to_owned()),
    }
}

/// Explains the backend pools of a Service.
fn explain_service(arguments: &Arguments, settings: &Settings, service: &str) -> Result<(), Failure> {
    if arguments.node != "service" {
        return Err(Failure::settings(anyhow::anyhow!(
            "{:?} followed by {service} is not allowed; allowed: why NODE, or why service NAMESPACE/NAME",
            arguments.node
        )));
    }
    let runtime = build_runtime()?;
    let mut snapshot = runtime.block_on(async {
        let config = api_server::infer_config(arguments.kubeconfig.as_deref()).await;
        let client = api_server::build_client(&config.map_err(Failure::settings)?).map_err(Failure::settings)?;
        let azure = arguments.azure.connect(settings, &client).await?;
        if let Err(reason) = azure {
            return Err(Failure::settings(anyhow::anyhow!(
                "the load balancers cannot be read: {reason}"
            )));
        }
        let snapshot = status::take_snapshot(SnapshotRequest {
            client: &client,
            azure,
            settings,
            clock: Clock::System,
        });
        snapshot.await.map_err(Failure::runtime)
    })?;
    if let Err(error) = &snapshot.azure {
        return Err(Failure::runtime(anyhow::anyhow!(
            "the load balancers cannot be read: {error}"
        )));
    }
    if let Some(leader) = arguments.statusz.clone() {
        let queue = runtime.block_on(status::fetch_queue(leader));
        snapshot.local_pools.queue = queue.map_err(|error| Failure::runtime(anyhow::anyhow!(error)))?;
    }
    match arguments.output {
        Output::Text => print(status::explain_service(service, &snapshot.local_pools).as_bytes()),
        Output::Json => {
            let rows = snapshot.local_pools.rows.into_iter();
            let own: Vec<_> = rows.filter(|row| row.service == service).collect();
            print_json(&own)
        }
    }
}
