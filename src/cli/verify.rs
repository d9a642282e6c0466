//! `headgate verify`: asks real Azure what headgate assumes of it, after a confirmation.

use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use headgate_azure::LoadBalancerId;
use headgate_controller::admin_state::{ClusterTarget, SoleWriterRequest, run_as_sole_writer};
use headgate_controller::pool::{LoadBalancerView, PoolEntry};
use headgate_core::clock::Clock;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::Settings;
use crate::status::{self, StatusReport};
use crate::verify::{Named, Plan, VerifyReport, VerifyRequest, of_node, of_pools, refusal, verify};

use super::cluster::ClusterArguments;
use super::complete::node_candidates;
use super::signals::Termination;
use super::{Failure, azure, block_on, confirm, duration_up_to, print, print_json, print_progress};

/// The longest `--observe` and `--wait`. The help has it, too.
const MAX_TIME: Duration = Duration::from_hours(1);
/// The default of `--wait`: long enough for a Lease whose holder is gone, and for one that was never held.
const DEFAULT_LEASE_WAIT: Duration = Duration::from_mins(1);
/// How long no new connection must be answered, until they count as stopped.
const QUIET: Duration = Duration::from_secs(10);
/// Time for reading the load balancer that is named.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

/// Ask Azure what headgate assumes of it, on a scratch load balancer or one node: for an issue that says what real Azure does
///
/// Says what it will write, sets the entries Down and back several times, and prints a report without secrets and, unless --ids is given,
/// without names and subscription. Restores on every way out. What a crash leaves Down on scratch load balancers, the next run on one of
/// them restores; on the cluster's, headgate restore, the next leader or a run for the same node does. There it is refused while a leader
/// is alive, for a node with a signal, and where no other node would serve.
///
/// Exit code 1 if an assumption is false or the run ended early.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// ARM id of the load balancer to write, best one that is not the cluster's
    #[arg(long, value_name = "RESOURCE_ID", value_parser = load_balancer_id, requires = "pools", required_unless_present = "node")]
    load_balancer: Option<LoadBalancerId>,

    /// Pool whose first entry in service is written; with a second --pool it also writes during an operation
    #[arg(long = "pool", value_name = "NAME", requires = "load_balancer")]
    pools: Vec<String>,

    /// Node whose entries are written, in the cluster's load balancers
    #[arg(long, value_name = "NAME", conflicts_with = "load_balancer", add = ArgValueCandidates::new(node_candidates))]
    node: Option<String>,

    /// Unused IP address of the virtual network, to add to the first pool as a member that is Down, and remove
    #[arg(long, value_name = "ADDRESS", requires = "load_balancer")]
    spare_address: Option<IpAddr>,

    /// Where the load balancer takes HTTP connections for the first pool, which must have one entry in service: opens some while the entry
    /// becomes Down
    #[arg(long, value_name = "ADDRESS:PORT")]
    frontend: Option<SocketAddr>,

    /// How long new connections may go on after the entry is Down, at most 1h
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME), default_value = "2m")]
    observe: Duration,

    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,

    /// Show the ids of what was written in the report
    #[arg(long)]
    ids: bool,

    /// Wait this long for the leader's Lease, at most 1h, even while a leader is alive [default: 1m, and not at all
    /// while a leader is alive]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIME))]
    wait: Option<Duration>,

    /// Format of the report
    #[arg(short, long, value_enum, default_value_t = Output::Markdown)]
    output: Output,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    azure: azure::AzureArguments,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Markdown,
    Json,
}

fn load_balancer_id(text: &str) -> Result<LoadBalancerId, String> {
    LoadBalancerId::parse(text).map_err(|error| error.to_string())
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.pools.len() > 2 {
        return Err(Failure::settings(anyhow!("at most two pools can be named")));
    }
    let settings = arguments.azure.settings()?;
    let report = block_on(Box::pin(ask(arguments, &settings)))?;
    match arguments.output {
        Output::Markdown => print(headgate_core::telemetry::escape_lines(&report.markdown()).as_bytes())?,
        Output::Json => print_json(&report)?,
    }
    let falsified = report.falsified();
    if !report.not_restored.is_empty() {
        let left = report.not_restored.join("; ");
        return Err(Failure::runtime(anyhow!("not restored: {left}; run the command again")));
    }
    match report.ended_early {
        Some(why) => Err(Failure::runtime(anyhow!("ended early: {why}"))),
        None if falsified == 0 => Ok(()),
        None => Err(Failure::runtime(anyhow!("{falsified} assumptions are false"))),
    }
}

async fn ask(arguments: &Arguments, settings: &Settings) -> Result<VerifyReport, Failure> {
    let client = arguments.cluster.client().await?;
    let target = arguments
        .azure
        .require(settings, &client, "Azure cannot be reached")
        .await?;
    let named = match &arguments.load_balancer {
        Some(id) => Some(named_pools(&target, id, &arguments.pools).await?),
        None => None,
    };
    let is_of_cluster = named
        .as_ref()
        .is_none_or(|named| is_managed(&target, &named.load_balancer));
    let named = if is_of_cluster {
        Box::pin(in_cluster(arguments, settings, &client, &target, named)).await?
    } else {
        named.context("no load balancer is named").map_err(Failure::runtime)?
    };
    if is_of_cluster && arguments.spare_address.is_some() {
        let error = anyhow!("--spare-address is for a load balancer that is not the cluster's");
        return Err(Failure::settings(error));
    }
    announce(arguments, &named, is_of_cluster);
    if !arguments.yes {
        confirm("Write these entries?", "nothing was written").map_err(Failure::settings)?;
    }
    let plan = Plan {
        named,
        spare: arguments.spare_address,
        frontend: arguments.frontend,
        observe: arguments.observe,
        quiet: QUIET,
    };
    let interrupted = CancellationToken::new();
    let signals = wait_for_signal(interrupted.clone()).map_err(Failure::runtime)?;
    let request = VerifyRequest {
        arm: target.arm,
        plan,
        shows_ids: arguments.ids,
        started_at: Timestamp::now(),
        interrupted: interrupted.clone(),
    };
    let writer = SoleWriterRequest {
        client,
        is_of_cluster,
        lease_timeout: arguments.wait.unwrap_or(DEFAULT_LEASE_WAIT),
        clock: Clock::System,
    };
    let begun = CancellationToken::new();
    let interrupted_before = {
        let begun = begun.clone();
        async move {
            interrupted.cancelled().await;
            if begun.is_cancelled() {
                pending::<()>().await;
            }
        }
    };
    let work = run_as_sole_writer(writer, interrupted_before, move |writer| {
        begun.cancel();
        verify(request.clone(), writer)
    });
    tokio::select! {
        report = work => report.map_err(Failure::runtime),
        () = signals => pending().await,
    }
}

/// Cancels the token after Ctrl-C or SIGTERM. Never ends.
fn wait_for_signal(interrupted: CancellationToken) -> anyhow::Result<impl Future<Output = ()>> {
    let mut signals = Termination::new(&[])?;
    Ok(async move {
        signals.received().await;
        print_progress("interrupted; restoring what was written");
        interrupted.cancel();
        pending::<()>().await;
    })
}

/// Whether a leader of this cluster may write the load balancer.
fn is_managed(target: &ClusterTarget, id: &LoadBalancerId) -> bool {
    id.group() == &target.scope.group && target.scope.managed.contains(id)
}

async fn named_pools(target: &ClusterTarget, id: &LoadBalancerId, pools: &[String]) -> Result<Named, Failure> {
    let deadline = Instant::now() + READ_TIMEOUT;
    let read = target.arm.get_load_balancer(id, PoolEntry::new, deadline).await;
    let read = read
        .context("the load balancer cannot be read")
        .map_err(Failure::runtime)?;
    let view = LoadBalancerView::from_read(read.summary, read.is_assembled);
    of_pools(&view, pools).map_err(Failure::runtime)
}

/// The entries in a load balancer of the cluster, unless something speaks against writing them.
async fn in_cluster(
    arguments: &Arguments,
    settings: &Settings,
    client: &kube::Client,
    target: &ClusterTarget,
    named: Option<Named>,
) -> Result<Named, Failure> {
    let snapshot = status::take_snapshot(client, Ok(target.clone()), settings).await;
    let snapshot = snapshot.map_err(|failure| Failure::runtime(failure.error))?;
    let report = StatusReport::from_snapshot(&snapshot);
    if let Some(why) = report.azure_error.as_ref().or(report.leader_error.as_ref()) {
        return Err(Failure::runtime(anyhow!("{why}")));
    }
    let named = match (named, &arguments.node) {
        (Some(named), _) => named,
        (None, node) => of_node(&report, node.as_deref().unwrap_or_default()).map_err(Failure::runtime)?,
    };
    let leader = report
        .leader
        .as_ref()
        .filter(|leader| leader.alive && arguments.wait.is_none());
    if let Some(holder) = leader.and_then(|leader| leader.holder.as_ref()) {
        return Err(Failure::runtime(anyhow!(
            "{holder} leads, and writes the same load balancer. Name a load balancer that is not the cluster's; or stop headgate and run \
             this command again; or give --wait DURATION to wait until there is no leader"
        )));
    }
    match refusal(&report, &named) {
        Some(why) => Err(Failure::runtime(anyhow!(why))),
        None => Ok(named),
    }
}

/// Says what will be written.
fn announce(arguments: &Arguments, named: &Named, is_of_cluster: bool) {
    let mut lines = vec![format!("{} is written:", named.load_balancer)];
    lines.extend(named.targets().map(|target| {
        let (pool, entry) = (target.pool.name(), &target.entry);
        format!("  pool {pool}: entry {entry} becomes Down and None again, up to three times")
    }));
    let spare = arguments.spare_address.iter();
    let pool = named.first.pool.name();
    lines.extend(spare.map(|address| format!("  pool {pool}: a member {address} is added and removed")));
    lines.push("while an entry is Down, it gets no new connections; each time that is for some seconds".to_owned());
    if arguments.frontend.is_some() {
        let longest = arguments.observe.as_secs();
        lines.push(format!(
            "once for up to {longest} s more, with connections through the frontend"
        ));
    }
    if is_of_cluster {
        lines.push("meanwhile no agent leads, so nothing is done about signals of nodes".to_owned());
    }
    for line in &lines {
        print_progress(line);
    }
}
