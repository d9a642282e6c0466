//! `headgate agent`: flags and settings in, a running agent, an exit code out.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use headgate_clock::Clock;
use headgate_http::server;
use headgate_kubernetes::api_server;
use tokio::signal::unix::{SignalKind, signal};

use crate::agent;
use crate::config::{self, Override};

use super::spans::Spans;
use super::{EXIT_RUNTIME, EXIT_SETTINGS, fail, print};

/// Which part of the work the process does.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Role {
    /// Answer for the node; never lead
    Agent,
    /// Stand for election and lead; open no health port and ask no kube-proxy
    Controller,
    /// Both
    #[default]
    All,
}

impl From<Role> for agent::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Agent => Self::Agent,
            Role::Controller => Self::Controller,
            Role::All => Self::All,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the Node this agent speaks for
    #[arg(
        long,
        env = "NODE_NAME",
        value_name = "NAME",
        required_unless_present = "check_config", value_parser = node_name)]
    node_name: Option<String>,

    /// Which part of the work this process does
    #[arg(long, value_enum, value_name = "ROLE", default_value_t)]
    role: Role,

    /// Settings file (YAML); flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Kubeconfig file [default: the one $KUBECONFIG names, else the Pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Address of /healthz and /livez [default: [::]:10456]
    #[arg(long, value_name = "IP:PORT")]
    healthz_bind_address: Option<String>,

    /// Address of /metrics, /statusz and the process's own probes [default: [::]:10457]
    #[arg(long, value_name = "IP:PORT")]
    metrics_bind_address: Option<String>,

    /// Exit with code 1 when an address cannot be bound, instead of trying again every 5 s
    #[arg(long)]
    bind_address_hard_fail: bool,

    /// Directory of the remembered state and the probe socket [default: /var/lib/headgate]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,

    /// Address of the instance metadata service [default: `http://169.254.169.254`]
    #[arg(long, value_name = "URL")]
    imds_endpoint: Option<String>,

    /// File azure.json, as cloud-provider-azure reads it; none: nobody stands for election here [default: none]
    #[arg(long, value_name = "FILE")]
    azure_config_file: Option<String>,

    /// File to write the bound addresses to, as JSON, once they are bound; removed at start and at the end
    #[arg(long, value_name = "FILE")]
    addresses_file: Option<PathBuf>,

    /// Check the settings, print those in effect, and exit
    #[arg(long)]
    check_config: bool,
}

/// A Node's name: a DNS subdomain, as the API server demands. kube-proxy lower-cases what it is given,
/// since kubelet registers the host's name that way.
fn node_name(text: &str) -> Result<String, String> {
    let name = text.trim().to_ascii_lowercase();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label =
        |label: &str| label.starts_with(plain) && label.ends_with(plain) && label.chars().all(|c| plain(c) || c == '-');
    if name.len() <= 253 && name.split('.').all(label) {
        Ok(name)
    } else {
        Err("allowed: the name of a Node, such as worker-1 or ip-10-0-0-1.ec2.internal".to_owned())
    }
}

/// The one file that `KUBECONFIG` names. Empty is as good as unset, as for kubectl; but an agent does not
/// choose among files as a person's tools do.
fn kubeconfig_of(variable: Option<OsString>) -> anyhow::Result<Option<PathBuf>> {
    let variable = variable.unwrap_or_default();
    let mut files = env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty());
    let first = files.next();
    anyhow::ensure!(
        files.next().is_none(),
        "KUBECONFIG lists several files ({}), the agent takes one: give it with --kubeconfig FILE",
        variable.display()
    );
    Ok(first)
}

impl Arguments {
    fn kubeconfig(&self) -> anyhow::Result<Option<PathBuf>> {
        match &self.kubeconfig {
            Some(file) => Ok(Some(file.clone())),
            None => kubeconfig_of(env::var_os("KUBECONFIG")),
        }
    }

    fn overrides(&self) -> Vec<Override> {
        let hard_fail = self.bind_address_hard_fail.then(|| "true".to_owned());
        [
            (
                "--healthz-bind-address",
                "healthzBindAddress",
                &self.healthz_bind_address,
            ),
            (
                "--metrics-bind-address",
                "metricsBindAddress",
                &self.metrics_bind_address,
            ),
            ("--bind-address-hard-fail", "bindAddressHardFail", &hard_fail),
            ("--state-dir", "stateDir", &self.state_dir),
            ("--imds-endpoint", "azure.imdsEndpoint", &self.imds_endpoint),
            ("--azure-config-file", "azure.configFile", &self.azure_config_file),
        ]
        .into_iter()
        .filter_map(|(flag, key, value)| {
            Some(Override {
                flag,
                key,
                value: value.clone()?,
            })
        })
        .collect()
    }
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let settings = match config::load(arguments.config.as_deref(), &arguments.overrides()) {
        Ok(settings) => settings,
        Err(mistakes) => return fail(EXIT_SETTINGS, &mistakes.into()),
    };
    let role = arguments.role.into();
    if let Err(mistakes) = agent::check_azure_settings(&settings, role) {
        return fail(EXIT_SETTINGS, &mistakes.into());
    }
    if arguments.check_config {
        return print(settings.to_yaml().as_bytes());
    }
    server::raise_open_file_limit();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_RUNTIME, &anyhow::Error::new(error).context("starting the runtime")),
    };
    // clap lets it be missing only together with --check-config.
    let node_name = arguments.node_name.clone().unwrap_or_default();
    let spans = Spans::install(&settings, &node_name, runtime.handle());
    let kubeconfig = match arguments.kubeconfig() {
        Ok(kubeconfig) => kubeconfig,
        Err(error) => return fail(EXIT_SETTINGS, &error),
    };
    let code = runtime.block_on(async {
        let config = match api_server::load_config(kubeconfig.as_deref()).await {
            Ok(config) => config,
            Err(error) => return fail(EXIT_SETTINGS, &error.into()),
        };
        let client = match api_server::build_lazy_client(&config) {
            Ok(client) => client,
            Err(error) => return fail(EXIT_SETTINGS, &error.into()),
        };
        tracing::info!(version = headgate_telemetry::VERSION, node = node_name, api_server = %config.cluster_url,
            settings = settings.to_yaml(), "starting");
        let addresses_file = arguments.addresses_file.clone();
        let parts = agent::AgentParts {
            settings,
            role,
            node_name,
            client,
            clock: Clock::System,
            addresses_file,
        };
        match serve(parts).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(EXIT_RUNTIME, &error),
        }
    });
    runtime.block_on(spans.close());
    // A program for credentials may still run; the end does not wait for it.
    runtime.shutdown_background();
    code
}

/// Runs an agent until SIGTERM, SIGINT or SIGHUP, then stops it; a second signal ends the process at once.
async fn serve(parts: agent::AgentParts) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let mut hang_up = signal(SignalKind::hangup()).context("listening for SIGHUP")?;
    let mut signalled = async || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => {}
        }
    };
    let mut running = agent::start(parts)?;
    tokio::select! {
        error = running.failed() => return Err(error.into()),
        () = signalled() => {}
    }
    tokio::select! {
        stopped = running.stop() => Ok(stopped?),
        () = signalled() => Err(anyhow::anyhow!("a second signal ended the process before it had stopped")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_names_one_file_or_none() {
        let of = |text: &str| kubeconfig_of(Some(text.into())).map_err(|error| error.to_string());
        assert_eq!(kubeconfig_of(None).unwrap(), None);
        for (variable, file) in [("", None), (":", None), ("/a", Some("/a")), (":/a:", Some("/a"))] {
            assert_eq!(of(variable).unwrap(), file.map(PathBuf::from), "{variable:?}");
        }
        assert!(of("/a:/b").unwrap_err().contains("several files (/a:/b)"));
    }
}
