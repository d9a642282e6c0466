//! `headgate agent`: runs an agent until a signal stops it.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use headgate_core::clock::Clock;
use headgate_http::server;
use headgate_kubernetes::api_server::{self, Program};
use tokio::signal::unix::SignalKind;

use crate::agent::{self, Role};
use crate::config::{self, Settings};

use super::signals::Termination;
use super::spans::Spans;
use super::{Failure, build_runtime, print};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the Node that this agent serves
    #[arg(
        long,
        env = "NODE_NAME",
        value_name = "NAME",
        required_unless_present = "check_config", value_parser = node_name)]
    node_name: Option<String>,

    /// Name of the pod of this process, for events [default: the name of the Node]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pod_name: Option<String>,

    /// Which part of the work this process does
    #[arg(long, value_enum, value_name = "ROLE", default_value_t)]
    role: Role,

    /// Settings file (YAML); flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Kubeconfig file [default: the one in $KUBECONFIG, else the Pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Address of /healthz and /livez [default: [::]:10456]
    #[arg(long, value_name = "IP:PORT")]
    healthz_bind_address: Option<String>,

    /// Address of /metrics, /statusz and the process's own probes [default: [::]:10457]
    #[arg(long, value_name = "IP:PORT")]
    metrics_bind_address: Option<String>,

    /// Exit with code 1 when an address cannot be bound, instead of trying again
    #[arg(long)]
    bind_address_hard_fail: bool,

    /// Directory of the remembered state and the probe socket [default: /var/lib/headgate]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,

    /// Address of the instance metadata service [default: `http://169.254.169.254`]
    #[arg(long, value_name = "URL")]
    imds_endpoint: Option<String>,

    /// File azure.json, as cloud-provider-azure reads it; without it and azure.configSecret only a controller with maintenance.enabled
    /// stands for election [default: none]
    #[arg(long, value_name = "FILE")]
    azure_config_file: Option<String>,

    /// File that gets the bound addresses as JSON
    #[arg(long, value_name = "FILE")]
    addresses_file: Option<PathBuf>,

    /// Check the settings, print those in effect, and exit
    #[arg(long)]
    check_config: bool,
}

/// Parses the name of a Node, a DNS subdomain. Lower-cases it, as kube-proxy does, because kubelet registers the host's
/// name in lower case.
pub(super) fn node_name(text: &str) -> Result<String, String> {
    let name = text.trim().to_ascii_lowercase();
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        label.starts_with(is_alphanumeric)
            && label.ends_with(is_alphanumeric)
            && label.chars().all(|c| is_alphanumeric(c) || c == '-')
    };
    if name.len() <= 253 && name.split('.').all(is_label) {
        Ok(name)
    } else {
        Err("allowed: the name of a Node, such as worker-1 or ip-10-0-0-1.ec2.internal".to_owned())
    }
}

/// The one file in `KUBECONFIG`; an empty variable counts as unset, as in kubectl. Several files, which kubectl merges, are
/// an error.
fn kubeconfig_from(variable: Option<OsString>) -> anyhow::Result<Option<PathBuf>> {
    let variable = variable.unwrap_or_default();
    let mut files = env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty());
    let first = files.next();
    anyhow::ensure!(
        files.next().is_none(),
        "KUBECONFIG lists several files ({}), and the agent takes one: name it with --kubeconfig FILE",
        variable.display()
    );
    Ok(first)
}

/// The kubeconfig of a flag, else that of the environment; `None` for the Pod's service account.
pub(super) fn kubeconfig(flag: Option<&PathBuf>) -> anyhow::Result<Option<PathBuf>> {
    match flag {
        Some(file) => Ok(Some(file.clone())),
        None => kubeconfig_from(env::var_os("KUBECONFIG")),
    }
}

impl Arguments {
    fn settings(&self) -> Result<Settings, Failure> {
        let hard_fail = self.bind_address_hard_fail.then_some("true");
        let flags = [
            (
                "--healthz-bind-address",
                "healthzBindAddress",
                self.healthz_bind_address.as_deref(),
            ),
            (
                "--metrics-bind-address",
                "metricsBindAddress",
                self.metrics_bind_address.as_deref(),
            ),
            ("--bind-address-hard-fail", "bindAddressHardFail", hard_fail),
            ("--state-dir", "stateDir", self.state_dir.as_deref()),
            ("--imds-endpoint", "imdsEndpoint", self.imds_endpoint.as_deref()),
            (
                "--azure-config-file",
                "azureConfigFile",
                self.azure_config_file.as_deref(),
            ),
        ];
        config::load(self.config.as_deref(), &flags).map_err(Failure::settings)
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.settings()?;
    let role = arguments.role;
    agent::check_azure_settings(&settings, role).map_err(Failure::settings)?;
    if arguments.check_config {
        return print(settings.to_yaml().as_bytes());
    }
    server::raise_open_file_limit();
    let runtime = build_runtime()?;
    // Clap requires it without --check-config.
    let node_name = arguments.node_name.clone().unwrap_or_default();
    let spans = Spans::install(&settings, &node_name, runtime.handle());
    let outcome = runtime.block_on(async {
        let kubeconfig = kubeconfig(arguments.kubeconfig.as_ref()).map_err(Failure::settings)?;
        let config = api_server::load_config(kubeconfig.as_deref()).await;
        let config = config.map_err(Failure::settings)?;
        let program = match role {
            Role::Controller => Program::Controller,
            Role::Agent | Role::All => Program::Agent,
        };
        let client = api_server::build_lazy_client(&config, program).map_err(Failure::settings)?;
        tracing::info!(version = headgate_core::telemetry::VERSION, node = node_name, api_server = %config.cluster_url,
            settings = settings.to_yaml(), "starting");
        let parts = agent::AgentParts {
            settings,
            role,
            node_name,
            pod_name: arguments.pod_name.clone(),
            client,
            clock: Clock::System,
            addresses_file: arguments.addresses_file.clone(),
        };
        serve(parts).await.map_err(Failure::runtime)
    });
    runtime.block_on(spans.shutdown());
    // A credential plugin of the kubeconfig may still run; the process does not wait for it.
    runtime.shutdown_background();
    outcome
}

/// Runs an agent until SIGTERM, SIGINT or SIGHUP, then stops it. A second signal ends the process at once.
async fn serve(parts: agent::AgentParts) -> anyhow::Result<()> {
    let mut signals = Termination::new(&[SignalKind::hangup()])?;
    let mut running = agent::start(parts)?;
    tokio::select! {
        error = running.failed() => return Err(error.into()),
        () = signals.received() => {}
    }
    tokio::select! {
        stopped = running.stop() => Ok(stopped?),
        () = signals.received() => Err(anyhow::anyhow!("a second signal ended the process before it had stopped")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_variable_has_one_file_or_none() {
        let parse = |text: &str| kubeconfig_from(Some(text.into())).map_err(|error| error.to_string());
        assert_eq!(kubeconfig_from(None).unwrap(), None);
        for (variable, file) in [("", None), (":", None), ("/a", Some("/a")), (":/a:", Some("/a"))] {
            assert_eq!(parse(variable).unwrap(), file.map(PathBuf::from), "{variable:?}");
        }
        assert!(parse("/a:/b").unwrap_err().contains("several files (/a:/b)"));
    }
}
