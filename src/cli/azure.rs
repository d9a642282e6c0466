//! The flags by which commands reach Azure: the agents' settings, with these flags over them.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use headgate_azure::InvalidId;
use headgate_controller::admin_state::ClusterTarget;
use headgate_core::settings::SettingsError;
use kube::Client;

use crate::agent::{ArmConnectError, AzureAccess};
use crate::config::{self, Settings};

use super::Failure;

/// The flags.
#[derive(Debug, Args)]
pub struct AzureArguments {
    /// Settings file of the agents [default: the settings' defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// File azure.json, as cloud-provider-azure reads it; without a credential in it az gives the token [default: none]
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
    /// The flags that are given.
    pub fn given(&self) -> Vec<&'static str> {
        let flags = [
            ("--config", self.config.is_some()),
            ("--azure-config-file", self.azure_config_file.is_some()),
            ("--azure-config-secret", self.azure_config_secret.is_some()),
            ("--cluster-name", self.cluster_name.is_some()),
        ];
        let given = flags.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(flag, _)| flag).collect()
    }

    /// The agents' settings, with these flags over them.
    ///
    /// # Errors
    /// The settings file or a flag is invalid.
    pub fn settings(&self) -> Result<Settings, Failure> {
        let file = self.azure_config_file.as_deref().map(absolute);
        let flags = [
            ("--azure-config-file", "azureConfigFile", file.as_deref()),
            (
                "--azure-config-secret",
                "azure.configSecret",
                self.azure_config_secret.as_deref(),
            ),
            ("--cluster-name", "azure.clusterName", self.cluster_name.as_deref()),
        ];
        config::load(self.config.as_deref(), &flags).map_err(Failure::settings)
    }

    /// The cluster target, or the reason why there is none. An invalid file from a flag is a failure of the command.
    ///
    /// # Errors
    /// See above.
    pub async fn connect(
        &self,
        settings: &Settings,
        client: &Client,
    ) -> Result<Result<ClusterTarget, String>, Failure> {
        match target(settings, client).await {
            Ok(target) => Ok(Ok(target)),
            Err(NoTarget::Config(error)) if self.azure_config_file.is_some() => Err(Failure::settings(error)),
            Err(why) => Ok(Err(why.to_string())),
        }
    }

    /// The cluster target of a command that cannot do without it. `what` begins the text of a failure.
    ///
    /// # Errors
    /// No configuration is given, or it is wrong: wrong usage. Something that it names does not answer: the environment.
    pub async fn require(&self, settings: &Settings, client: &Client, what: &str) -> Result<ClusterTarget, Failure> {
        target(settings, client).await.map_err(|why| match why {
            NoTarget::Config(error) => Failure::settings(error),
            NoTarget::NotConfigured | NoTarget::Invalid(_) => Failure::settings(anyhow!("{what}: {why}")),
            NoTarget::Unreachable(_) => Failure::environment(anyhow!("{what}: {why}")),
        })
    }
}

/// Why there is no cluster target.
#[derive(Debug, thiserror::Error)]
enum NoTarget {
    #[error("give --azure-config-file or --azure-config-secret, or a --config with azure.configSecret")]
    NotConfigured,
    #[error(transparent)]
    Config(SettingsError),
    #[error(transparent)]
    Invalid(InvalidId),
    #[error(transparent)]
    Unreachable(ArmConnectError),
}

async fn target(settings: &Settings, client: &Client) -> Result<ClusterTarget, NoTarget> {
    if !settings.azure.is_configured() {
        return Err(NoTarget::NotConfigured);
    }
    let access = AzureAccess::of_command(settings.azure.clone(), client.clone());
    let connected = access.connect().await.map_err(|error| match error {
        ArmConnectError::Config(error) => NoTarget::Config(error),
        ArmConnectError::Group(error) => NoTarget::Invalid(error),
        error => NoTarget::Unreachable(error),
    })?;
    ClusterTarget::new(connected.arm, &connected.config, &settings.azure.cluster_name).map_err(NoTarget::Invalid)
}

/// A path as the settings take it: from the directory in which the command runs. A person's command has one; the agents'
/// settings are absolute, because a service has none of its own.
fn absolute(path: &str) -> String {
    if path.is_empty() {
        return path.to_owned();
    }
    let absolute = std::path::absolute(path).ok();
    let absolute = absolute.and_then(|path| path.into_os_string().into_string().ok());
    absolute.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_looked_for_where_the_command_runs() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        for (given, expected) in [
            ("azure.json", format!("{here}/azure.json")),
            ("azure/azure.json", format!("{here}/azure/azure.json")),
            ("/etc/kubernetes/azure.json", "/etc/kubernetes/azure.json".to_owned()),
            ("", String::new()),
        ] {
            let arguments = AzureArguments {
                config: None,
                azure_config_file: Some(given.to_owned()),
                azure_config_secret: None,
                cluster_name: None,
            };
            assert_eq!(absolute(given), expected);
            let settings = arguments.settings();
            assert_eq!(settings.is_ok(), !given.is_empty(), "{given:?}");
        }
    }
}
