//! `headgate agent`: flags and settings in, a running agent, an exit code out.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::config::{self, Override};

use super::{EXIT_SETTINGS, fail};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the Node this agent speaks for
    #[arg(long, env = "NODE_NAME", value_name = "NAME", required_unless_present = "check_config")]
    node_name: Option<String>,

    /// Settings file (YAML); flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Kubeconfig file; without it the Pod's service account is used
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
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

    /// File to write the bound addresses to, as JSON, once they are bound
    #[arg(long, value_name = "FILE")]
    addresses_file: Option<PathBuf>,

    /// Check the settings, print those in effect, and exit
    #[arg(long)]
    check_config: bool,
}

impl Arguments {
    fn overrides(&self) -> Vec<Override> {
        let hard_fail = self.bind_address_hard_fail.then(|| "true".to_owned());
        [
            ("--healthz-bind-address", "healthzBindAddress", &self.healthz_bind_address),
            ("--metrics-bind-address", "metricsBindAddress", &self.metrics_bind_address),
            ("--bind-address-hard-fail", "bindAddressHardFail", &hard_fail),
            ("--state-dir", "stateDir", &self.state_dir),
        ]
        .into_iter()
        .filter_map(|(flag, key, value)| Some(Override { flag, key, value: value.clone()? }))
        .collect()
    }
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let settings = match config::load(arguments.config.as_deref(), &arguments.overrides()) {
        Ok(settings) => settings,
        Err(mistakes) => return fail(EXIT_SETTINGS, &mistakes.into()),
    };
    let _ = settings;
    ExitCode::SUCCESS
}
