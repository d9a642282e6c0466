//! The flags by which `status` and `restore` reach Azure: the agents' settings, with these flags over them.

use std::path::PathBuf;

use clap::Args;
use headgate_azure::Metrics;
use headgate_clock::Clock;
use headgate_controller::admin_state::ClusterTarget;
use kube::Client;

use crate::agent::{ArmConnectError, AzureAccess};
use crate::config::{self, FlagOverride, Settings};

use super::{Failure, print_notices};

#[derive(Debug, Args)]
pub(super) struct AzureArguments {
    /// Settings file of the agents; without it the defaults apply, also for what is shown as adminState.mode
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// File azure.json, as cloud-provider-azure reads it [default: none]
    #[arg(long, value_name = "FILE")]
    azure_config_file: Option<String>,

    /// Secret with azure.json in its key cloud-config, which wins over the file or replaces it [default: none]
    #[arg(long, value_name = "NAMESPACE/NAME")]
    azure_config_secret: Option<String>,

    /// The cluster's name, after which its load balancers are named [default: kubernetes]
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
}

impl AzureArguments {
    /// The agents' settings, with these flags over them.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let flags = [
            ("--azure-config-file", "azure.configFile", &self.azure_config_file),
            ("--azure-config-secret", "azure.configSecret", &self.azure_config_secret),
            ("--cluster-name", "azure.clusterName", &self.cluster_name),
        ];
        let overrides: Vec<_> = flags
            .into_iter()
            .filter_map(|(flag, key, value)| FlagOverride::given(flag, key, value.as_deref()))
            .collect();
        let loaded = config::load_with_notices(self.config.as_deref(), &overrides);
        let (settings, notices) = loaded.map_err(Failure::settings)?;
        print_notices(&notices);
        Ok(settings)
    }

    /// The cluster target, or the reason why there is none. An invalid file from a flag is a failure of the command.
    pub(super) async fn connect(
        &self,
        settings: &Settings,
        client: &Client,
    ) -> Result<Result<ClusterTarget, String>, Failure> {
        if !settings.azure.is_configured() {
            return Ok(Err(
                "give --azure-config-file or --azure-config-secret, or a --config that has one of them".to_owned(),
            ));
        }
        let access = AzureAccess {
            settings: settings.azure.clone(),
            client: client.clone(),
            metrics: Metrics::default(),
            clock: Clock::System,
        };
        match access.connect().await {
            Ok(connected) => Ok(
                ClusterTarget::new(connected.arm, &connected.config, &settings.azure.cluster_name)
                    .map_err(|error| error.to_string()),
            ),
            Err(ArmConnectError::Config(error)) if self.azure_config_file.is_some() => Err(Failure::settings(error)),
            Err(error) => Ok(Err(error.to_string())),
        }
    }
}
