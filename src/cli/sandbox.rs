//! `headgate sandbox`: flags in, a world on one machine, an exit code out.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use headgate_sandbox::Options;

use super::{EXIT_RUNTIME, fail};

/// Run a real control plane, nodes and agents on this machine, to try things out
///
/// Starts etcd and kube-apiserver on loopback, registers some Nodes that have no machine behind them, and
/// runs one real headgate agent for each. Prints commands to try, then shows what every node's /healthz
/// answers: as a live table on a terminal, otherwise as one JSON line for each change.
///
/// Ctrl-C or SIGTERM ends everything it started and removes everything it made; a second Ctrl-C does not
/// wait for anything. If a part of it fails, it says which and why, and ends with exit code 1.
///
/// etcd and kube-apiserver are programs of their own: `make control-plane` provides them.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Directory with etcd, kube-apiserver and kubectl [default: `$KUBEBUILDER_ASSETS`, else where
    /// `make control-plane` puts them]
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    assets: Option<PathBuf>,

    /// Use the cluster this kubeconfig file points to, instead of a control plane of its own
    ///
    /// Makes those of the Nodes node-1, node-2 and so on that the cluster does not have, and deletes the
    /// ones it made at the end. Never meant for a cluster that matters to anybody.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// How many nodes, from 1 to 50
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=50))]
    nodes: u8,

    /// Directory for its files, made if missing [default: a temporary directory, removed at the end]
    ///
    /// While it runs, the directory holds sandbox.json (what runs at which address), kubeconfig, control-plane/,
    /// nodes/ and logs/. At the end everything but the logs is removed, and nothing that was there before.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// End by itself this long after everything is ready, such as 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = super::duration)]
    exit_after: Option<Duration>,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let options = Options {
        assets: arguments.assets.clone(),
        kubeconfig: arguments.kubeconfig.clone(),
        nodes: arguments.nodes,
        directory: arguments.dir.clone(),
        exit_after: arguments.exit_after,
    };
    // On this very thread: the sandbox's processes end with the thread that starts them.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_RUNTIME, &anyhow::Error::new(error).context("starting the runtime")),
    };
    match runtime.block_on(headgate_sandbox::run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(EXIT_RUNTIME, &error.into()),
    }
}
