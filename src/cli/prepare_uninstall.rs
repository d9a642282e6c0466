//! `headgate prepare-uninstall`: the command of the chart's hook before an uninstall.

use std::time::Duration;

use clap::Args;

use crate::uninstall::{UninstallRequest, Workload, prepare_uninstall};

use super::cluster::ClusterArguments;
use super::signals::Termination;
use super::{Failure, block_on, duration_up_to, print, print_progress};

/// The longest `--timeout`. The help has it, too.
const MAX_TIMEOUT: Duration = Duration::from_hours(24);

/// Set adminState.mode to Disabled in the cluster, and wait until nothing is left of headgate's: before headgate is deleted
///
/// Refused where the workload mounts other settings. First waits until no `NodeMaintenance` or Evacuation has headgate's finalizers, no Node
/// has the cordon of one, and no Machine of Cluster API has headgate's hooks; it ends and removes none itself. It does not wait for what
/// maintenance.automatic creates. Ends at once where `headgate verify` left an entry Down, and says what restores it. Then writes the settings'
/// `ConfigMap`, also with an empty maintenance.automatic, restarts the pods that may lead, and waits until they run with it, no maintenance is
/// left and the ledger has no entry, which takes 5 min after the last one was restored. The leader restores the entries, so this command needs
/// no access to Azure. The chart runs it before an uninstall.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Namespace of headgate
    #[arg(long, default_value = "kube-system")]
    namespace: String,

    /// `ConfigMap` with settings.yaml
    #[arg(long, value_name = "NAME")]
    settings: String,

    /// Workload whose pods may lead: daemonset/NAME or deployment/NAME
    #[arg(long, value_name = "KIND/NAME")]
    workload: Workload,

    /// How long all of it may take, at most 24h
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIMEOUT), default_value = "10m")]
    timeout: Duration,

    #[command(flatten)]
    cluster: ClusterArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    block_on(prepare(arguments))
}

async fn prepare(arguments: &Arguments) -> Result<(), Failure> {
    let client = arguments.cluster.client().await?;
    let request = UninstallRequest {
        client,
        namespace: arguments.namespace.clone(),
        settings: arguments.settings.clone(),
        workload: arguments.workload.clone(),
        timeout: arguments.timeout,
    };
    let mut termination = Termination::new(&[]).map_err(Failure::runtime)?;
    prepare_uninstall(&request, termination.received(), print_progress).await?;
    print(b"Nothing is Down by headgate and no maintenance is left; it can be deleted.\n")
}
