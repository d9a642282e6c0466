//! `headgate-lab sandbox`: runs a control plane, nodes and agents on this machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use headgate::cli::{Failure, build_runtime, duration_up_to};
use headgate_sandbox::Options;

use super::headgate_program::HeadgateArguments;

/// The longest `--exit-after`. The help has it, too.
const MAX_EXIT_AFTER: Duration = Duration::from_hours(24);

/// Run a real control plane, nodes and agents on this machine, to try things out
///
/// Starts etcd and kube-apiserver on loopback, registers some Nodes without machines, and runs one real
/// headgate agent for each. Prints commands to try, then shows what every node's /healthz answers: as a live
/// table on a terminal, otherwise as one JSON line for each change.
///
/// Ctrl-C or SIGTERM ends everything that it started and removes everything that it created; a second Ctrl-C
/// ends the process at once. If a part fails, the sandbox reports which and why, and ends with exit code 1.
///
/// etcd, kube-apiserver and the others are programs of their own: `make control-plane` provides them.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Directory with etcd, kube-apiserver and kubectl [default: `$KUBEBUILDER_ASSETS`, else the one that
    /// `make control-plane` fills]
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    assets: Option<PathBuf>,

    /// Use the cluster of this kubeconfig file instead of a control plane of its own
    ///
    /// Creates the Nodes node-1, node-2 and so on that the cluster does not have, and deletes those that it
    /// created at the end. Use it for test clusters only.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Run pods on the nodes, and act on maintenances (docs/guides/maintenance.md)
    ///
    /// Adds kube-controller-manager, kube-scheduler, and kwok in place of kubelets; two Deployments with
    /// `PodDisruptionBudgets` and a `DaemonSet`; and two controllers of headgate, which lead instead of the agents. Prints
    /// commands that drain nodes. Needs at least 4 nodes, and has 5 by default.
    #[arg(long, conflicts_with = "kubeconfig")]
    workloads: bool,

    /// Start no agents, to install headgate and run its processes yourself (docs/dev/lab.md)
    #[arg(long, conflicts_with_all = ["workloads", "kubeconfig"])]
    no_agents: bool,

    /// Number of nodes, from 1 to 50
    #[arg(long, value_name = "COUNT", default_value_t = 3, default_value_if("workloads", "true", "5"),
        value_parser = clap::value_parser!(u8).range(1..=50))]
    nodes: u8,

    /// Directory for its files, created if missing [default: a temporary directory, removed at the end]
    ///
    /// While the sandbox runs, the directory has sandbox.json (what runs at which address), kubeconfig,
    /// control-plane/, nodes/ and logs/. At the end the sandbox removes all of these except the logs, and
    /// nothing that was there before.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// End this long after everything is ready, such as 30s or 5m, at most 24h
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_EXIT_AFTER))]
    exit_after: Option<Duration>,

    #[command(flatten)]
    headgate: HeadgateArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let options = Options {
        program: arguments.headgate.program().map_err(Failure::runtime)?,
        assets: arguments.assets.clone(),
        kubeconfig: arguments.kubeconfig.clone(),
        nodes: arguments.nodes,
        has_workloads: arguments.workloads,
        has_agents: !arguments.no_agents,
        directory: arguments.dir.clone(),
        exit_after: arguments.exit_after,
    };
    // On this thread, because the sandbox's processes end with the thread that starts them.
    let outcome = build_runtime()?.block_on(headgate_sandbox::run(&options));
    outcome.map_err(Failure::runtime)
}
