//! `headgate why NODE` and `headgate why service/NAME`: also as `kubectl headgate why`, when the binary is called
//! kubectl-headgate.

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use hyper::Uri;
use jiff::Timestamp;
use kube::Client;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::config::Settings;
use crate::report::{Detail, Report};
use crate::status::{self, LeaderNodes, LocalPoolRow, LocalPoolsSnapshot};
use crate::why;

use super::cluster::{AgentArguments, ClusterArguments};
use super::complete::node_candidates;
use super::output::{self, Output, WatchArguments};
use super::{Failure, azure, block_on};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// NAME or node/NAME of a Node; for the pools of a Service service/NAME, or service and a NAME
    #[arg(add = ArgValueCandidates::new(node_candidates))]
    node: String,

    /// The Service, after the word service
    #[arg(value_name = "[NAMESPACE/]NAME")]
    service: Option<String>,

    /// Namespace of the Service [default for service/NAME: that of the context]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    agents: AgentArguments,

    /// URL of the agent's status, for a Service the leader's, instead of the node's address and --port
    #[arg(long, value_name = "URL", value_parser = super::http_url)]
    statusz: Option<Uri>,

    #[command(flatten)]
    azure: azure::AzureArguments,

    #[command(flatten)]
    watch: WatchArguments,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.azure.settings()?;
    if let Some(service) = &arguments.service {
        let service = service_name(service, arguments.namespace.as_deref()).map_err(Failure::settings)?;
        return explain_service(arguments, &settings, Some(&service));
    }
    if kubectl_service(&arguments.node).is_some() {
        return explain_service(arguments, &settings, None);
    }
    if arguments.namespace.is_some() {
        return Err(Failure::settings(anyhow::anyhow!(
            "--namespace is for a Service; a Node has none"
        )));
    }
    let node = arguments.node.strip_prefix("node/").unwrap_or(&arguments.node);
    block_on(async {
        let client = arguments.cluster.client().await?;
        let access = arguments.agents.access();
        let read = async || {
            let statusz = arguments.statusz.clone();
            why::explain_node(&client, node, &access, statusz, &settings.signals.health()).await
        };
        Box::pin(output::show(arguments.output, &arguments.watch, read)).await
    })
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

/// The Service of `service/NAME` or `svc/NAME`.
fn kubectl_service(text: &str) -> Option<&str> {
    text.strip_prefix("service/").or_else(|| text.strip_prefix("svc/"))
}

/// Explains the backend pools of a Service; of the one in the form of kubectl, if none is given.
fn explain_service(arguments: &Arguments, settings: &Settings, service: Option<&str>) -> Result<(), Failure> {
    if let Some(service) = service
        && arguments.node != "service"
    {
        return Err(Failure::settings(anyhow::anyhow!(
            "{:?} followed by {service} is not allowed; allowed: why NODE, why service/NAME, or why service NAMESPACE/NAME",
            arguments.node
        )));
    }
    block_on(async {
        let client = arguments.cluster.client().await?;
        let service = if let Some(service) = service {
            service.to_owned()
        } else {
            let namespace = arguments.namespace.as_deref().unwrap_or(client.default_namespace());
            let name = kubectl_service(&arguments.node).unwrap_or_default();
            service_name(name, Some(namespace)).map_err(Failure::settings)?
        };
        let read = async || read_service(arguments, settings, &client, &service).await;
        Box::pin(output::show(arguments.output, &arguments.watch, read)).await
    })
}

async fn read_service(
    arguments: &Arguments,
    settings: &Settings,
    client: &Client,
    service: &str,
) -> Result<ServiceReport, Failure> {
    let report = |local_pools| ServiceReport {
        service: service.to_owned(),
        local_pools,
        taken_at: Timestamp::now(),
    };
    let mut from_leader = String::new();
    if arguments.azure.given().is_empty() && arguments.statusz.is_none() {
        match status::fetch_from_leader(client, &arguments.agents.access(), LeaderNodes::Notable).await {
            Ok(Some(found)) => return Ok(report(LocalPoolsSnapshot::of_leader(found))),
            Ok(None) => from_leader = format!("; {}", status::NO_LOAD_BALANCERS),
            Err(why) => from_leader = format!("; the leader does not serve it: {why}"),
        }
    }
    let target = arguments
        .azure
        .require(settings, client, "the load balancers cannot be read");
    let target = target.await.map_err(|Failure { code, error }| Failure {
        code,
        error: anyhow::anyhow!("{error}{from_leader}"),
    })?;
    let mut snapshot = status::take_snapshot(client, Ok(target), settings).await?;
    if let Err(error) = &snapshot.azure {
        return Err(Failure::environment(anyhow::anyhow!(
            "the load balancers cannot be read: {error}"
        )));
    }
    if let Some(leader) = arguments.statusz.clone() {
        let leader = why::fetch_status(leader).await;
        snapshot.local_pools.queue = leader
            .map_err(|error| Failure::environment(anyhow::anyhow!(error)))?
            .local_pools;
    }
    Ok(report(snapshot.local_pools))
}

/// The pools of one Service.
struct ServiceReport {
    service: String,
    local_pools: LocalPoolsSnapshot,
    taken_at: Timestamp,
}

impl ServiceReport {
    fn rows(&self) -> impl Iterator<Item = &LocalPoolRow> {
        let rows = self.local_pools.rows.iter();
        rows.filter(|row| row.service == self.service)
    }
}

/// The rows of the pools.
impl Serialize for ServiceReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rows())
    }
}

impl Report for ServiceReport {
    const KIND: Option<&'static str> = None;

    fn taken_at(&self) -> Timestamp {
        self.taken_at
    }

    /// Both are the same: the text leaves nothing out.
    fn text(&self, _: Detail) -> String {
        status::explain_service(&self.service, &self.local_pools)
    }

    /// The Service, if it has pools of its own.
    fn names(&self) -> Vec<String> {
        let name = self
            .service
            .split_once('/')
            .map_or(self.service.as_str(), |(_, name)| name);
        self.rows().take(1).map(|_| format!("service/{name}")).collect()
    }

    /// With the queue, which only the text has.
    fn comparable(&self) -> Value {
        self.text(Detail::Wide).into()
    }
}
