//! `headgate restore`: sets the entries that headgate set `Down` back to `None`, after a confirmation.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use headgate_controller::admin_state::ClusterTarget;
use headgate_controller::restore::{RestoreRequest, run_restore};
use headgate_core::clock::Clock;
use headgate_core::telemetry::escape_line;
use headgate_kubernetes::leader::LeaderStatus;

use crate::config::Settings;
use crate::status::{self, StatusReport};

use super::cluster::ClusterArguments;
use super::complete::node_candidates;
use super::signals::interrupted;
use super::{Failure, azure, block_on, confirm, duration_up_to, print, print_progress};

/// The default of `--wait`: long enough for a Lease whose holder is gone, and for one that was never held.
const DEFAULT_LEASE_WAIT: Duration = Duration::from_mins(1);
/// The longest `--wait` and `--timeout`. The help has it, too.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// Set the pool entries that headgate set Down back to None, by its ledger: for when headgate is or will be removed
///
/// Leaves alone what others set Down, and entries of no Node. Refused while a leader is alive, which would set nodes with a signal Down
/// again: set adminState.mode: Disabled, with which the leader restores all entries itself, or remove headgate first.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes whose entries are restored [default: all]
    #[arg(add = ArgValueCandidates::new(node_candidates))]
    nodes: Vec<String>,

    /// Print what would be restored, and write nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    /// Wait this long for the leader's Lease, at most 1h, even while a leader is alive [default: 1m, and not at all while a leader is
    /// alive]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_WAIT))]
    wait: Option<Duration>,

    /// How long restoring may take, at most 1h
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_WAIT), default_value = "5m")]
    timeout: Duration,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    azure: azure::AzureArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.azure.settings()?;
    block_on(restore(arguments, &settings))
}

async fn restore(arguments: &Arguments, settings: &Settings) -> Result<(), Failure> {
    let client = arguments.cluster.client().await?;
    let target = arguments
        .azure
        .require(settings, &client, "Azure cannot be reached")
        .await?;
    let report = read_report(arguments, settings, &client, &target).await?;
    let ours: Vec<_> = report.down_by_headgate().collect();
    let recorded: Vec<_> = report.recorded_in_service().collect();
    for (node, entry) in ours.iter().chain(&recorded) {
        let name = entry.entry.as_deref().unwrap_or("?");
        print_line(&format!(
            "{}/{}   {name}   {}",
            entry.load_balancer, entry.pool, node.name
        ));
    }
    if !recorded.is_empty() {
        let count = recorded.len();
        print_line(&format!(
            "{count} entries are recorded and shown in service; what was read may be older, so they are read again before they count as restored."
        ));
    }
    let are_nodes_named = !arguments.nodes.is_empty();
    let (unmatched, unreadable) = unmatched(&report, are_nodes_named);
    for line in unmatched.iter().chain(&unreadable) {
        print_line(line);
    }
    let (unmatched, unreadable) = (unmatched.len(), unreadable.len());
    let at_most = ours.len() + recorded.len() + unreadable;
    // What cannot be read now may be read with a later list; whose it is may be of no interest where Nodes are named.
    let may_be_read = unreadable > 0 && !are_nodes_named;
    if arguments.dry_run || ours.is_empty() && recorded.is_empty() && !may_be_read {
        let unread = print_unread(report.unreadable_load_balancers.iter().map(|row| (&row.id, &row.why)));
        print_line(&match (ours.len(), unread, at_most) {
            (0, 0, 0) => "Nothing is Down by headgate.".to_owned(),
            (0, _, 0) => "Nothing is Down by headgate in the load balancers that were read.".to_owned(),
            // The real run would ask about these.
            (0, ..) if !recorded.is_empty() || may_be_read => {
                format!("Up to {at_most} entries would be restored; nothing was written.")
            }
            (0, ..) => "No other entry is known to be Down by headgate.".to_owned(),
            (count, _, at_most) if at_most > count => {
                format!("{count} to {at_most} entries would be restored; nothing was written.")
            }
            (count, ..) => format!("{count} entries would be restored; nothing was written."),
        });
        return match (unread, unmatched + unreadable) {
            (0, 0) => Ok(()),
            (0, _) if arguments.dry_run && unreadable == 0 => Ok(()),
            (0, count) => Err(not_restored(count)),
            (count, _) => Err(Failure::runtime(anyhow!("{count} load balancers were not read"))),
        };
    }
    refuse_beside_leader(report.leader.as_ref(), arguments.wait).map_err(Failure::runtime)?;
    if !arguments.yes {
        let question = format!("Restore these {at_most} entries?");
        confirm(&question, "nothing was restored").map_err(Failure::settings)?;
    }
    print_progress("waiting for the leader's Lease, so that no leader writes meanwhile; this may take half a minute");
    let request = RestoreRequest {
        client,
        target,
        only_nodes: (!arguments.nodes.is_empty()).then(|| Arc::new(arguments.nodes.iter().cloned().collect())),
        lease_timeout: arguments.wait.unwrap_or(DEFAULT_LEASE_WAIT),
        work_timeout: arguments.timeout,
        clock: Clock::System,
    };
    let restored = run_restore(request, interrupted()).await.map_err(Failure::runtime)?;
    let done = restored.restored.iter().map(|ours| (ours, "restored".to_owned()));
    let left = restored.not_restored.iter();
    for (ours, state) in done.chain(left.map(|(ours, why)| (ours, format!("still Down: {why}")))) {
        let (place, node) = (format!("{}/{}", ours.load_balancer, ours.pool), ours.node.as_deref());
        print_line(&format!("{place}   {}   {}   {state}", ours.entry, node.unwrap_or("?")));
    }
    let unread = print_unread(&restored.unreadable);
    print_line(&format!("{} entries were restored.", restored.restored.len()));
    if let Some(why) = restored.ledger_error {
        print_progress(&format!("the ledger was not updated, which is harmless: {why}"));
    }
    match restored.not_restored.len() + unread + unmatched {
        0 => Ok(()),
        count => Err(not_restored(count)),
    }
}

/// The state of all pools. Restoring needs the ledger, Azure and the leader, so an error of one of them is a failure.
async fn read_report(
    arguments: &Arguments,
    settings: &Settings,
    client: &kube::Client,
    target: &ClusterTarget,
) -> Result<StatusReport, Failure> {
    let snapshot = status::take_snapshot(client, Ok(target.clone()), settings).await?;
    let mut report = StatusReport::from_snapshot(&snapshot);
    if let Some(why) = report.azure_error.as_ref().or(report.ledger_error.as_ref()) {
        return Err(Failure::environment(anyhow!(
            "headgate's own entries are unknown: {why}"
        )));
    }
    if let Some(why) = &report.leader_error {
        return Err(Failure::environment(anyhow!("the leader is unknown: {why}")));
    }
    if !arguments.nodes.is_empty() {
        report.retain_named(&arguments.nodes)?;
    }
    Ok(report)
}

/// Lines for the entries that headgate set Down and that belong to no Node, none where Nodes are named; and for those whose Node is
/// not known, which may be a named one.
fn unmatched(report: &StatusReport, are_nodes_named: bool) -> (Vec<String>, Vec<String>) {
    let rows = report.unmatched_ledger.iter();
    let down = rows.filter(|row| row.admin_state == Some("Down"));
    let (mut unmatched, mut unreadable) = (Vec::new(), Vec::new());
    for row in down {
        let place = format!("{}/{}   {}", row.load_balancer, row.pool, row.entry);
        match &row.unreadable {
            Some(why) => unreadable.push(format!("{place}   not restored: {why}")),
            None if are_nodes_named => {}
            None => unmatched.push(format!(
                "{place}   left alone: it belongs to no Node, and cloud-controller-manager removes such entries"
            )),
        }
    }
    (unmatched, unreadable)
}

/// Prints the load balancers of the ledger that could not be read, each with the reason. Returns their number.
fn print_unread(load_balancers: impl IntoIterator<Item = (impl Display, impl Display)>) -> usize {
    let printed = load_balancers.into_iter().map(|(load_balancer, why)| {
        print_line(&format!(
            "{load_balancer}   not read, so what is Down there stays so: {why}"
        ));
    });
    printed.count()
}

fn not_restored(count: usize) -> Failure {
    Failure::runtime(anyhow!("{count} entries were not restored"))
}

/// Refuses the command while a leader is alive, unless `--wait` is given: the leader would set nodes with a signal Down
/// again.
fn refuse_beside_leader(leader: Option<&LeaderStatus>, wait: Option<Duration>) -> anyhow::Result<()> {
    match leader
        .filter(|leader| leader.alive && wait.is_none())
        .and_then(|leader| leader.holder.as_ref())
    {
        None => Ok(()),
        Some(holder) => bail!(
            "{holder} leads, and in adminState.mode Enforce it would set nodes with a signal Down again. Set \
             adminState.mode: Disabled for the agents, and the leader restores all entries itself; or remove headgate first, and \
             run this command again; or give --wait DURATION to wait until there is no leader"
        ),
    }
}

/// Prints a line of the result to standard output; names in it are those of others.
fn print_line(line: &str) {
    // The command goes on without a reader.
    let _ = print(format!("{}\n", escape_line(line)).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::example_report;

    #[test]
    fn entry_whose_node_is_not_known_is_left_whoever_is_named() {
        let mut report = example_report();
        let example = report.unmatched_ledger.remove(0);
        let row = |entry: &str, admin_state, unreadable: Option<&str>| {
            let mut row = example.clone();
            row.entry = entry.to_owned();
            row.admin_state = Some(admin_state);
            row.unreadable = unreadable.map(str::to_owned);
            row
        };
        report.unmatched_ledger = vec![
            row("a", "Down", None),
            row("b", "None", None),
            row("c", "Down", Some("why")),
            row("d", "None", Some("why")),
        ];
        for are_nodes_named in [false, true] {
            let (unmatched, unreadable) = unmatched(&report, are_nodes_named);
            assert_eq!(unreadable, ["kubernetes/kubernetes   c   not restored: why"]);
            assert_eq!(unmatched.len(), usize::from(!are_nodes_named), "{unmatched:?}");
        }
    }

    #[test]
    fn refused_beside_a_living_leader_without_wait() {
        let mut leader = LeaderStatus {
            holder: Some("n1_0a".to_owned()),
            since: None,
            renewed: None,
            alive: true,
            term: 1,
            candidates: None,
        };
        let error = refuse_beside_leader(Some(&leader), None).unwrap_err().to_string();
        headgate_test_kubernetes::assert_contains!(error, "n1_0a leads", "adminState.mode: Disabled");
        assert!(refuse_beside_leader(Some(&leader), Some(DEFAULT_LEASE_WAIT)).is_ok());
        assert!(refuse_beside_leader(None, None).is_ok());
        leader.alive = false;
        assert!(refuse_beside_leader(Some(&leader), None).is_ok());
    }
}
