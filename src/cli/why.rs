//! `headgate why NODE` and `headgate why service NAMESPACE/NAME`: also as `kubectl headgate why`, when the binary is called
//! kubectl-headgate.

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use headgate_clock::Clock;
use hyper::Uri;

use crate::config::Settings;
use crate::status::{self, SnapshotRequest};
use crate::why;

use super::cluster::{AgentArguments, ClusterArguments};
use super::complete::node_candidates;
use super::{Failure, azure, build_runtime, print, print_json, print_yaml};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the Node, also as node/NAME; or the word service, for the backend pools of a Service
    #[arg(add = ArgValueCandidates::new(node_candidates))]
    node: String,

    /// The Service, after the word service
    #[arg(value_name = "[NAMESPACE/]NAME")]
    service: Option<String>,

    /// Namespace of a Service that is given by its name only
    #[arg(short, long, value_name = "NAMESPACE", requires = "service")]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    agents: AgentArguments,

    /// URL of the status of this node's agent, instead of the node's address and --port; for a Service, of the leader
    #[arg(long, value_name = "URL", value_parser = super::http_url)]
    statusz: Option<Uri>,

    #[command(flatten)]
    azure: azure::AzureArguments,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.azure.settings()?;
    if let Some(service) = &arguments.service {
        let service = service_name(service, arguments.namespace.as_deref()).map_err(Failure::settings)?;
        return explain_service(arguments, &settings, &service);
    }
    let node = arguments.node.strip_prefix("node/").unwrap_or(&arguments.node);
    let explanation = build_runtime()?.block_on(async {
        let client = arguments.cluster.client().await?;
        why::explain_node(
            &client,
            node,
            &arguments.agents.access(),
            arguments.statusz.clone(),
            &settings.signals.health,
        )
        .await
        .map_err(Failure::runtime)
    })?;
    match arguments.output {
        Output::Text => print(explanation.to_string().as_bytes()),
        Output::Json => print_json(&explanation),
        Output::Yaml => print_yaml(&explanation),
    }
}

/// `NAMESPACE/NAME` of a Service in lower case, as names in Kubernetes are.
fn service_name(text: &str, namespace: Option<&str>) -> anyhow::Result<String> {
    let is_name = |name: &str| !name.is_empty() && !name.contains('/');
    let full = match text.split_once('/') {
        None => format!("{}/{text}", namespace.unwrap_or_default()),
        Some((own, _)) if namespace.is_some_and(|namespace| namespace != own) => {
            anyhow::bail!(
                "{text:?} is not in the namespace {}; give one of the two",
                namespace.unwrap_or_default()
            )
        }
        Some(_) => text.to_owned(),
    };
    match full.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => Ok(full.to_ascii_lowercase()),
        _ => anyhow::bail!(
            "{text:?} is not a Service; allowed: NAMESPACE/NAME, such as default/web, or NAME with -n NAMESPACE"
        ),
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
        let client = arguments.cluster.client().await?;
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
        Output::Json | Output::Yaml => {
            let rows = snapshot.local_pools.rows.into_iter();
            let own: Vec<_> = rows.filter(|row| row.service == service).collect();
            if arguments.output == Output::Yaml {
                print_yaml(&own)
            } else {
                print_json(&own)
            }
        }
    }
}
