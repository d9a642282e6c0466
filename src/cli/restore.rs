//! `headgate restore`: lists what headgate set Down, asks for confirmation, and sets it back to None.
//!
//! The work itself is `headgate_controller::restore`; what is listed is the status report of `status`.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use headgate_clock::Clock;
use headgate_controller::admin_state::ClusterTarget;
use headgate_controller::restore::{RestoreRequest, run_restore};
use headgate_kubernetes::api_server;
use headgate_leader::LeaderStatus;

use crate::config::Settings;
use crate::status::{self, SnapshotRequest, StatusError, StatusReport};

use super::{EXIT_RUNTIME, EXIT_SETTINGS, azure, duration, fail, print};

/// Enough for a Lease that its holder did not release, and for one that was never held.
const LEASE_TIMEOUT: Duration = Duration::from_mins(1);

/// Restore what headgate set Down in backend pools, by its ledger: for when headgate is removed, or gone
///
/// Only entries that the ledger has as headgate's are restored, and only those that belong to a Node. The command refuses to run
/// beside an active leader, which would set Down again what has a signal. Set adminState.mode: off in the agents instead (the
/// leader then restores everything itself), or remove headgate first.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes whose entries are restored [default: all]
    nodes: Vec<String>,

    /// Print what would be restored, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    /// Wait this long for the leader's Lease, even beside an active leader [default: 1m, and not at all beside one; at most 24h]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,

    /// How long the work may take, at most 24h
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    timeout: Duration,

    /// Kubeconfig file [default: those kubectl would use]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    azure: azure::AzureArguments,
}

/// The exit code, and the error to print.
type Failure = (u8, anyhow::Error);

fn invalid(error: impl Into<anyhow::Error>) -> Failure {
    (EXIT_SETTINGS, error.into())
}

fn failed(error: impl Into<anyhow::Error>) -> Failure {
    (EXIT_RUNTIME, error.into())
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let settings = match arguments.azure.settings() {
        Ok(settings) => settings,
        Err(mistakes) => return fail(EXIT_SETTINGS, &mistakes.into()),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(EXIT_RUNTIME, &anyhow::Error::new(error).context("starting the runtime")),
    };
    let result = runtime.block_on(restore(arguments, &settings));
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => fail(code, &error),
    }
}

async fn restore(arguments: &Arguments, settings: &Settings) -> Result<(), Failure> {
    let config = api_server::infer_config(arguments.kubeconfig.as_deref()).await;
    let client = api_server::build_client(&config.map_err(invalid)?).map_err(invalid)?;
    let target = arguments.azure.connect(settings, &client).await.map_err(invalid)?;
    let target = target.map_err(|reason| failed(anyhow!("no connection to ARM: {reason}")))?;
    let report = report(arguments, settings, &client, &target).await?;
    let entries: Vec<_> = report.down_by_headgate().collect();
    for (node, entry) in &entries {
        let key = entry.entry.as_deref().unwrap_or("?");
        print_line(&format!(
            "{}/{}   {key}   {}",
            entry.load_balancer, entry.pool, node.name
        ));
    }
    let unmatched = if arguments.nodes.is_empty() {
        print_unmatched(&report)
    } else {
        0
    };
    if entries.is_empty() {
        print_line("Nothing is Down by headgate.");
        return if unmatched == 0 || arguments.dry_run {
            Ok(())
        } else {
            Err(failed(not_restored(unmatched)))
        };
    }
    if arguments.dry_run {
        print_line(&format!(
            "{} entries would be restored; nothing was written.",
            entries.len()
        ));
        return Ok(());
    }
    refuse_beside_leader(report.leader.as_ref(), arguments.wait).map_err(failed)?;
    if !arguments.yes {
        confirm(entries.len()).map_err(invalid)?;
    }
    print_progress("waiting for the leader's Lease, so that no other instance writes; this may take half a minute");
    let request = RestoreRequest {
        client,
        target,
        nodes: arguments.nodes.clone(),
        lease_timeout: arguments.wait.unwrap_or(LEASE_TIMEOUT),
        work_timeout: arguments.timeout,
        clock: Clock::System,
    };
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let outcome = run_restore(request, interrupted).await.map_err(failed)?;
    for entry in &outcome.restored {
        print_line(&format!(
            "{}/{}   {}   {}   restored",
            entry.load_balancer, entry.pool, entry.entry, entry.node
        ));
    }
    for (entry, reason) in &outcome.not_restored {
        print_line(&format!(
            "{}/{}   {}   {}   still Down: {reason}",
            entry.load_balancer, entry.pool, entry.entry, entry.node
        ));
    }
    print_line(&format!("{} entries were restored.", outcome.restored.len()));
    if let Some(error) = outcome.ledger_error {
        print_progress(&format!("the ledger was not updated, which does no harm: {error}"));
    }
    match outcome.not_restored.len() + unmatched {
        0 => Ok(()),
        count => Err(failed(not_restored(count))),
    }
}

/// The status report of the Nodes that the arguments name.
async fn report(
    arguments: &Arguments,
    settings: &Settings,
    client: &kube::Client,
    target: &ClusterTarget,
) -> Result<StatusReport, Failure> {
    let request = SnapshotRequest {
        client,
        azure: Ok(target.clone()),
        settings,
        clock: Clock::System,
    };
    let snapshot = status::take_snapshot(request).await.map_err(failed)?;
    let mut report = StatusReport::from_snapshot(&snapshot, &settings.signals.admin_state);
    if let Some(error) = report.azure_error.as_ref().or(report.ledger_error.as_ref()) {
        return Err(failed(anyhow!("it is not known which Downs are headgate's: {error}")));
    }
    if let Some(error) = &report.leader_error {
        return Err(failed(anyhow!("it is not known whether a leader is active: {error}")));
    }
    if !arguments.nodes.is_empty() {
        let kept = report.retain_named(&arguments.nodes);
        kept.map_err(|missing| failed(StatusError::NoSuchNode(missing)))?;
    }
    Ok(report)
}

/// Prints the entries that are Down by headgate and belong to no Node. Returns how many there are.
fn print_unmatched(report: &StatusReport) -> usize {
    let unmatched = report
        .unmatched_ledger
        .iter()
        .filter(|entry| entry.admin_state == Some("Down"));
    let printed = unmatched.map(|entry| {
        print_line(&format!(
            "{}/{}   {}   left alone: it belongs to no Node, and cloud-controller-manager removes such entries",
            entry.load_balancer, entry.pool, entry.entry
        ));
    });
    printed.count()
}

fn not_restored(count: usize) -> anyhow::Error {
    anyhow!("{count} entries were not restored")
}

/// Fails beside an active leader, which would set Down again what has a signal, unless the command may wait for its Lease.
fn refuse_beside_leader(leader: Option<&LeaderStatus>, wait: Option<Duration>) -> anyhow::Result<()> {
    match leader
        .filter(|leader| leader.alive && wait.is_none())
        .and_then(|leader| leader.holder.as_ref())
    {
        None => Ok(()),
        Some(holder) => bail!(
            "{holder} leads, and with adminState.mode enforce it would set Down again what has a signal. Set \
             adminState.mode: off in the agents, and the leader restores everything itself; or remove headgate, and repeat \
             the command; or give --wait DURATION to wait until no instance leads"
        ),
    }
}

/// Asks for confirmation on the terminal.
fn confirm(count: usize) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        bail!("standard input is no terminal, so the command cannot ask for confirmation; give --yes");
    }
    let mut error = io::stderr().lock();
    write!(error, "Restore these {count} entries? [y/N] ")?;
    error.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => bail!("nothing was restored"),
    }
}

/// Prints a line of the result on standard output.
fn print_line(line: &str) {
    print(format!("{line}\n").as_bytes());
}

/// Prints a line about the progress on standard error.
fn print_progress(line: &str) {
    // Standard error may be closed; the result does not depend on it.
    let _ = writeln!(io::stderr().lock(), "headgate: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restore_is_refused_beside_an_active_leader_unless_it_may_wait() {
        let mut leader = LeaderStatus {
            holder: Some("n1_0a".to_owned()),
            since: None,
            renewed: None,
            alive: true,
            term: 1,
            candidates: None,
        };
        let error = refuse_beside_leader(Some(&leader), None).unwrap_err().to_string();
        assert!(
            error.contains("n1_0a leads") && error.contains("adminState.mode: off"),
            "{error}"
        );
        assert!(refuse_beside_leader(Some(&leader), Some(LEASE_TIMEOUT)).is_ok());
        assert!(refuse_beside_leader(None, None).is_ok());
        leader.alive = false;
        assert!(refuse_beside_leader(Some(&leader), None).is_ok());
    }
}
