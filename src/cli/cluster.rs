//! The flags by which commands reach the API server, and through it or directly the agents: those of `kubectl`.

use std::path::PathBuf;

use clap::Args;
use headgate_core::telemetry::error_chain;
use headgate_kubernetes::api_server::{self, ConnectError, Program};
use kube::Client;
use kube::config::KubeConfigOptions;

use crate::config::METRICS_PORT;
use crate::why::{AgentAccess, AgentRoute};

use super::Failure;

/// The flags about the cluster.
#[derive(Debug, Args)]
pub struct ClusterArguments {
    /// Kubeconfig file [default: those kubectl would use]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// Cluster of the kubeconfig, instead of the context's
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,

    /// User of the kubeconfig, instead of the context's
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl ClusterArguments {
    /// The flags that are given.
    pub fn given(&self) -> Vec<&'static str> {
        let flags = [
            ("--kubeconfig", self.kubeconfig.is_some()),
            ("--context", self.context.is_some()),
            ("--cluster", self.cluster.is_some()),
            ("--user", self.user.is_some()),
        ];
        let given = flags.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(flag, _)| flag).collect()
    }

    /// A client for the selected cluster, whose API server has answered a first request.
    ///
    /// # Errors
    /// The kubeconfig cannot be used, there is none, or the API server does not answer.
    pub async fn client(&self) -> Result<Client, Failure> {
        let entries = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        // What no flag names is not the user's mistake.
        let unusable = |error: ConnectError| {
            if self.given().is_empty() {
                Failure::environment(error)
            } else {
                Failure::settings(error)
            }
        };
        let config = api_server::infer_config(self.kubeconfig.as_deref(), &entries)
            .await
            .map_err(unusable)?;
        let client = api_server::build_client(&config, Program::Cli).map_err(unusable)?;
        match client.apiserver_version().await {
            Err(kube::Error::Service(error)) => Err(Failure::environment(anyhow::anyhow!(error_chain(&*error)))),
            // A refusal is an answer, too.
            _ => Ok(client),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct AgentArguments {
    /// Operations port of the agents
    #[arg(long, default_value_t = METRICS_PORT)]
    port: u16,

    /// How the agents are reached
    #[arg(long, value_name = "ROUTE", value_enum, default_value_t)]
    agents_via: AgentRoute,

    /// Namespace of the agents' pods
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    agents_namespace: String,
}

impl AgentArguments {
    pub(super) fn access(&self) -> AgentAccess {
        AgentAccess {
            port: self.port,
            route: self.agents_via,
            namespace: self.agents_namespace.clone(),
        }
    }
}
