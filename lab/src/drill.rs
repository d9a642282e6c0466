//! `headgate-lab drill`: flags to the options of a drill, its results to a table or JSON.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use headgate::cli::{EXIT_INTERRUPTED, Failure, build_runtime, duration_up_to, print, print_json};
use headgate_drill::drill::Options;
use headgate_drill::network::namespace::acquire_privileges;
use headgate_drill::progress::print_line;
use headgate_drill::report::saved::from_results;
use headgate_drill::report::{assumptions, name, rolls, table, warning};
use headgate_drill::requirement::Requirement;
use headgate_drill::strategy::Strategy;
use headgate_sandbox::Interrupts;

use super::drill_report::Outputs;
use super::headgate_program::HeadgateArguments;

/// Drill nodes going away: real connections through a load balancer on this machine, and which of them are lost
///
/// Builds clients, a layer-4 load balancer and nodes as network namespaces: the kernel's nftables spreads flows by a
/// hash and its conntrack keeps established ones. Clients open connections at a steady rate and hold long-lived ones
/// while nodes go away as in the scenario. Each strategy is another way for the load balancer to notice. Strategies
/// with headgate run real agents, kube-apiserver and the ARM emulator; those about kube-proxy run its own process. The
/// load balancer's probes, its use of admin states and kubelet are modelled: an HTTP probe of Azure takes a node out at the
/// first answer other than 200, as documented, and without answers after as many probes as its threshold.
///
/// Runs with the same seed are pairs: every strategy meets the same phases of probes, hash and client ports. From the signal to
/// the next probe of the node it takes a share of the interval that is uniform over the runs.
///
/// Needs root or user namespaces, and the programs ip and nft. Ctrl-C ends and removes everything. Nothing outside of
/// its own namespaces is changed.
///
/// Exit codes: 0 the results are shown; 1 the drill failed, or --expect-no-loss or --expect-gone-within was not met; 2 wrong
/// arguments; 130 interrupted.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Strategies that must lose nothing, separated by commas: if one of their runs loses a new connection, or an established
    /// one before a node is gone (connections: any established one), the exit code is 1. In admin-state every node must be out by
    /// its admin state before one of its probes fails, in healthz by its health answer, and before it is gone
    #[arg(long, value_enum, value_delimiter = ',')]
    expect_no_loss: Vec<Strategy>,

    /// The longest time from a node's signal until its machine is switched off in the runs of these strategies; if one takes
    /// longer, the exit code is 1, at most 1h
    #[arg(long, value_name = "DURATION", requires = "expect_no_loss", value_parser = duration_up_to(Duration::from_hours(1)))]
    expect_gone_within: Option<Duration>,

    /// Directory with etcd and kube-apiserver [default: `$KUBEBUILDER_ASSETS`, otherwise where `make control-plane`
    /// puts them]
    #[arg(long, value_name = "DIR")]
    assets: Option<PathBuf>,

    #[command(flatten)]
    headgate: HeadgateArguments,

    /// Output format: a table, or a JSON array with an object for each run
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,

    #[command(flatten)]
    files: Outputs,

    /// The commit that is measured, for the results to state
    #[arg(long, value_name = "COMMIT", env = "HEADGATE_COMMIT", hide_env_values = true)]
    commit: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Flags that cannot have an effect together.
#[derive(Debug, thiserror::Error)]
enum FlagError {
    #[error("--expect-no-loss names {0}, which does not run; name one of the strategies that run: {1}")]
    NotRun(String, String),
    #[error(
        "--deregistration-delay has no effect without the strategy deregistration, which needs --provider aws-cluster, aws-local or gcp"
    )]
    NoDeregistration,
}

impl Arguments {
    /// Checks before anything runs what would show at the end, or not at all.
    fn check(&self) -> Result<(), FlagError> {
        let strategies = self.options.strategies();
        let names = |strategies: &[Strategy]| strategies.iter().map(name).collect::<Vec<_>>().join(", ");
        let not_run = self.expect_no_loss.iter().find(|named| !strategies.contains(named));
        if let Some(named) = not_run {
            return Err(FlagError::NotRun(name(named), names(&strategies)));
        }
        if self.options.deregistration_delay.is_some() && !strategies.contains(&Strategy::Deregistration) {
            return Err(FlagError::NoDeregistration);
        }
        Ok(())
    }

    fn options(&self) -> io::Result<Options> {
        Ok(Options {
            assets: self.assets.clone(),
            program: self.headgate.program()?,
            ..self.options.clone()
        })
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let options = arguments.options().map_err(Failure::runtime)?;
    options.validate().map_err(Failure::settings)?;
    arguments.check().map_err(Failure::settings)?;
    // Before the runtime: a process with several threads cannot enter a user namespace.
    acquire_privileges().map_err(Failure::runtime)?;
    // On this thread, because the control plane's processes end with the thread that starts them.
    let mut results = build_runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen().map_err(Failure::runtime)?;
        tokio::select! {
            results = headgate_drill::drill::run(&options, |step| print_line(&step.to_string())) => results.map_err(Failure::runtime),
            () = interrupts.next() => Err(Failure {
                code: EXIT_INTERRUPTED,
                error: anyhow::anyhow!("interrupted; everything it started is gone"),
            }),
        }
    })?;
    if let Some(warning) = warning(&results) {
        print_line(&warning);
    }
    let commit = arguments.commit.as_ref().filter(|commit| !commit.is_empty());
    for conditions in results.iter_mut().filter_map(|run| run.conditions.as_mut()) {
        conditions.commit = commit.cloned();
    }
    match arguments.output {
        Output::Json => print_json(&results)?,
        Output::Text => {
            let rolls = rolls(&options.rolls(&results));
            let text = format!("{}\n{rolls}{}", table(&results), assumptions(&options));
            print(text.as_bytes())?;
        }
    }
    // After the output: where a file cannot be written, the results are not lost.
    if !arguments.files.are_none() {
        arguments
            .files
            .write(&from_results(&results).map_err(Failure::runtime)?)?;
    }
    let requirement = Requirement {
        without_loss: arguments.expect_no_loss.clone(),
        gone_within: arguments.expect_gone_within,
    };
    match requirement.violations(&results).as_slice() {
        [] => Ok(()),
        found => Err(Failure::runtime(anyhow::anyhow!(
            "not as expected:\n{}",
            found.join("\n")
        ))),
    }
}

#[cfg(test)]
mod tests;
