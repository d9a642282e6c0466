//! `headgate restore`: gives back what headgate set Down, after a look and a question.

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

/// Long enough for a Lease whose holder is gone, and for one that was never held.
const WAIT: Duration = Duration::from_mins(1);

/// Give back what headgate set Down in backend pools, by its ledger: for when headgate is removed, or gone
///
/// What others set Down is left alone, and so are entries of no Node. While a leader lives this is refused: it would set
/// Down again what has a signal. Give the agents adminState.mode: off instead (the leader then gives everything back
/// itself), or remove headgate first.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes whose entries are given back [default: all]
    nodes: Vec<String>,

    /// Say what would be given back, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not ask
    #[arg(short, long)]
    yes: bool,

    /// Wait this long for the leader's Lease, even while a leader lives [default: 1m, and not at all while one does]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,

    /// How long giving back may take
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    timeout: Duration,

    /// Kubeconfig file [default: those kubectl would use]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    azure: azure::AzureArguments,
}

type Failure = (u8, anyhow::Error);

fn wrong(error: impl Into<anyhow::Error>) -> Failure {
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
    let done = runtime.block_on(restore(arguments, &settings));
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => fail(code, &error),
    }
}

async fn restore(arguments: &Arguments, settings: &Settings) -> Result<(), Failure> {
    let config = api_server::infer_config(arguments.kubeconfig.as_deref()).await;
    let client = api_server::build_client(&config.map_err(wrong)?).map_err(wrong)?;
    let reached = arguments.azure.reach(settings, &client).await.map_err(wrong)?;
    let reached = reached.map_err(|why| failed(anyhow!("Azure cannot be asked: {why}")))?;
    let report = seen(arguments, settings, &client, &reached).await?;
    let ours: Vec<_> = report.down_by_headgate().collect();
    for (node, entry) in &ours {
        let name = entry.entry.as_deref().unwrap_or("?");
        say(&format!(
            "{}/{}   {name}   {}",
            entry.load_balancer, entry.pool, node.name
        ));
    }
    let lost = if arguments.nodes.is_empty() {
        of_no_node(&report)
    } else {
        0
    };
    if ours.is_empty() {
        say("Nothing is Down by headgate.");
        return if lost == 0 || arguments.dry_run {
            Ok(())
        } else {
            Err(failed(left(lost)))
        };
    }
    if arguments.dry_run {
        say(&format!(
            "{} entries would be given back; nothing was written.",
            ours.len()
        ));
        return Ok(());
    }
    refuse_beside(report.leader.as_ref(), arguments.wait).map_err(failed)?;
    if !arguments.yes {
        ask(ours.len()).map_err(wrong)?;
    }
    tell("waiting for the leader's Lease, so that nobody else writes; this may take half a minute");
    let order = RestoreRequest {
        client,
        target: reached,
        nodes: arguments.nodes.clone(),
        lease_timeout: arguments.wait.unwrap_or(WAIT),
        work_timeout: arguments.timeout,
        clock: Clock::System,
    };
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let restored = run_restore(order, interrupted).await.map_err(failed)?;
    for ours in &restored.restored {
        say(&format!(
            "{}/{}   {}   {}   given back",
            ours.load_balancer, ours.pool, ours.entry, ours.node
        ));
    }
    for (ours, why) in &restored.not_restored {
        say(&format!(
            "{}/{}   {}   {}   still Down: {why}",
            ours.load_balancer, ours.pool, ours.entry, ours.node
        ));
    }
    say(&format!("{} entries were given back.", restored.restored.len()));
    if let Some(why) = restored.ledger_error {
        tell(&format!("the ledger is not up to date, which does no harm: {why}"));
    }
    match restored.not_restored.len() + lost {
        0 => Ok(()),
        count => Err(failed(left(count))),
    }
}

async fn seen(
    arguments: &Arguments,
    settings: &Settings,
    client: &kube::Client,
    reached: &ClusterTarget,
) -> Result<StatusReport, Failure> {
    let looking = SnapshotRequest {
        client,
        azure: Ok(reached.clone()),
        settings,
        clock: Clock::System,
    };
    let sight = status::take_snapshot(looking).await.map_err(failed)?;
    let mut report = StatusReport::from_snapshot(&sight, &settings.signals.admin_state);
    if let Some(why) = report.azure_error.as_ref().or(report.ledger_error.as_ref()) {
        return Err(failed(anyhow!("what is headgate's cannot be told: {why}")));
    }
    if let Some(why) = &report.leader_error {
        return Err(failed(anyhow!("who leads cannot be told: {why}")));
    }
    if !arguments.nodes.is_empty() {
        let kept = report.retain_named(&arguments.nodes);
        kept.map_err(|missing| failed(StatusError::NoSuchNode(missing)))?;
    }
    Ok(report)
}

/// Says which entries are Down by headgate and belong to no Node; how many.
fn of_no_node(report: &StatusReport) -> usize {
    let lost = report
        .unmatched_ledger
        .iter()
        .filter(|line| line.admin_state == Some("Down"));
    let lines = lost.map(|line| {
        say(&format!(
            "{}/{}   {}   left alone: it belongs to no Node, and cloud-controller-manager takes such entries out",
            line.load_balancer, line.pool, line.entry
        ));
    });
    lines.count()
}

fn left(count: usize) -> anyhow::Error {
    anyhow!("{count} entries were not given back")
}

/// A living leader would set Down again what has a signal.
fn refuse_beside(leader: Option<&LeaderStatus>, wait: Option<Duration>) -> anyhow::Result<()> {
    match leader
        .filter(|leader| leader.alive && wait.is_none())
        .and_then(|leader| leader.holder.as_ref())
    {
        None => Ok(()),
        Some(holder) => bail!(
            "{holder} leads, and with adminState.mode enforce it would set Down again what has a signal. Give the agents \
             adminState.mode: off, and the leader gives back all that is headgate's by itself; or remove headgate first, and \
             run this again; or give --wait DURATION to wait until nobody leads"
        ),
    }
}

/// Asks a person; whoever cannot be asked has to have said yes.
fn ask(count: usize) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        bail!("standard input is no terminal, so nobody can be asked; give --yes");
    }
    let mut error = io::stderr().lock();
    write!(error, "Give back these {count} entries? [y/N] ")?;
    error.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => bail!("nothing was given back"),
    }
}

/// A line for whoever reads the result.
fn say(line: &str) {
    print(format!("{line}\n").as_bytes());
}

/// A line for whoever waits.
fn tell(line: &str) {
    // Nobody may be reading.
    let _ = writeln!(io::stderr().lock(), "headgate: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_a_living_leader_it_is_refused_unless_it_may_wait() {
        let mut leader = LeaderStatus {
            holder: Some("n1_0a".to_owned()),
            since: None,
            renewed: None,
            alive: true,
            term: 1,
            candidates: None,
        };
        let told = refuse_beside(Some(&leader), None).unwrap_err().to_string();
        assert!(
            told.contains("n1_0a leads") && told.contains("adminState.mode: off"),
            "{told}"
        );
        assert!(refuse_beside(Some(&leader), Some(WAIT)).is_ok());
        assert!(refuse_beside(None, None).is_ok());
        leader.alive = false;
        assert!(refuse_beside(Some(&leader), None).is_ok());
    }
}
