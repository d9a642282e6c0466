//! The arguments with which an operator's command connects to Azure: the agent's flags, its settings file, and `azure.json`.

use std::path::PathBuf;

use clap::Args;
use headgate_azure::Metrics;
use headgate_clock::Clock;
use headgate_controller::admin_state::ClusterTarget;
use headgate_settings::Mistakes;
use kube::Client;

use crate::agent::{ArmConnectError, AzureAccess};
use crate::config::{self, Override, Settings};

#[derive(Debug, Args)]
pub(super) struct AzureArguments {
    /// Settings file of the agents
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// File azure.json, as cloud-provider-azure reads it [default: none]
    #[arg(long, value_name = "FILE")]
    azure_config_file: Option<String>,

    /// Secret with azure.json in its key cloud-config, merged over the file or in its place [default: none]
    #[arg(long, value_name = "NAMESPACE/NAME")]
    azure_config_secret: Option<String>,

    /// The cluster's name, which is the name of its load balancers [default: kubernetes]
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
}

impl AzureArguments {
    /// The agents' settings, overridden by these flags.
    pub(super) fn settings(&self) -> Result<Settings, Mistakes> {
        let overrides = [
            ("--azure-config-file", "azure.configFile", &self.azure_config_file),
            ("--azure-config-secret", "azure.configSecret", &self.azure_config_secret),
            ("--cluster-name", "azure.clusterName", &self.cluster_name),
        ];
        let overrides = overrides.into_iter().filter_map(|(flag, key, value)| {
            Some(Override {
                flag,
                key,
                value: value.clone()?,
            })
        });
        config::load(self.config.as_deref(), &overrides.collect::<Vec<_>>())
    }

    /// Connects to ARM.
    ///
    /// # Errors
    /// If the file that a flag names is invalid. The inner error is the reason why there is no connection; a command may
    /// continue without one.
    pub(super) async fn connect(
        &self,
        settings: &Settings,
        client: &Client,
    ) -> Result<Result<ClusterTarget, String>, Mistakes> {
        if !settings.azure.is_said() {
            return Ok(Err(
                "give --azure-config-file or --azure-config-secret, or a --config that has one of them".to_owned(),
            ));
        }
        let access = AzureAccess {
            settings: settings.azure.clone(),
            client: client.clone(),
            // This process exports no metrics.
            metrics: Metrics::default(),
            clock: Clock::System,
        };
        match access.connect().await {
            Ok(connected) => Ok(
                ClusterTarget::new(connected.arm, &connected.config, &settings.azure.cluster_name)
                    .map_err(|error| error.to_string()),
            ),
            Err(ArmConnectError::Config(mistakes)) if self.azure_config_file.is_some() => Err(mistakes),
            Err(error) => Ok(Err(error.to_string())),
        }
    }
}
