//! `headgate status`: also as `kubectl headgate status`, when the binary is called kubectl-headgate.

use std::cell::Cell;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use hyper::Uri;
use kube::Client;
use tokio::time::{Instant, sleep};

use crate::config::Settings;
use crate::drain::NodeQuery;
use crate::status::{self, LeaderNodes, StatusReport};

use super::cluster::{AgentArguments, ClusterArguments};
use super::complete::node_candidates;
use super::output::{self, Output, WatchArguments};
use super::{Failure, azure, block_on, duration_up_to};

/// The longest `--timeout`. The help has it, too.
const MAX_TIMEOUT: Duration = Duration::from_hours(168);
/// Between two reads of `--wait`.
const WAIT_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes to show [default: those with a signal, an admin state or a ledger entry]
    #[arg(add = ArgValueCandidates::new(node_candidates))]
    nodes: Vec<String>,

    /// Show all nodes
    #[arg(short = 'A', long, conflicts_with = "nodes")]
    all: bool,

    /// Nodes with these labels, as for kubectl
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector, conflicts_with_all = ["nodes", "all"])]
    selector: Option<String>,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    azure: azure::AzureArguments,

    #[command(flatten)]
    agents: AgentArguments,

    /// URL of the status of a node's agent, instead of its address and --port; may be repeated
    #[arg(long, value_name = "NODE=URL", value_parser = node_and_url)]
    statusz: Vec<(String, Uri)>,

    /// Send no request to the agents; show what the Nodes' signals imply
    #[arg(long)]
    no_agents: bool,

    #[command(flatten)]
    watch: WatchArguments,

    #[command(flatten)]
    settled: SettledArguments,

    /// Print the rows of the nodes only, for scripts
    #[arg(long)]
    no_headers: bool,

    /// Order of the nodes: a field of theirs in -o json, such as .verdict.healthz [default: .name]
    #[arg(long, value_name = "FIELD")]
    sort_by: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// What follows from whether something is pending.
#[derive(Debug, Args)]
struct SettledArguments {
    /// Wait until nothing is pending for the shown nodes, as the leader observed them last, and the leader is alive if one has led;
    /// exit code 1 after --timeout
    #[arg(long, conflicts_with = "watch")]
    wait: bool,

    /// How long --wait waits, at most 168h
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIMEOUT), default_value = "5m", requires = "wait")]
    timeout: Duration,

    /// Exit code 1 if something is pending or not known, instead of 0
    #[arg(long)]
    exit_code: bool,
}

/// A selector, which the API server gets as it is.
fn selector(text: &str) -> Result<String, String> {
    NodeQuery::parse(text).map(|_| text.to_owned())
}

fn node_and_url(text: &str) -> Result<(String, Uri), String> {
    let allowed = || "allowed: a Node's name, = and an http URL, such as n1=http://127.0.0.1:10457/statusz".to_owned();
    let (node, url) = text.split_once('=').ok_or_else(allowed)?;
    let uri = super::http_url(url).map_err(|_| allowed())?;
    if node.is_empty() {
        Err(allowed())
    } else {
        Ok((node.to_owned(), uri))
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.azure.settings()?;
    block_on(async {
        let client = arguments.cluster.client().await?;
        let read = async || read_report(arguments, &settings, &client).await;
        if arguments.settled.wait {
            return wait_until_settled(arguments, read).await;
        }
        let unsettled = Cell::default();
        let read = async || {
            let report = read().await?;
            unsettled.set(arguments.unsettled(&report));
            Ok(report)
        };
        Box::pin(output::show(arguments.output, &arguments.watch, read)).await?;
        match unsettled.take() {
            found if found.is_empty() || !arguments.settled.exit_code => Ok(()),
            found => Err(Failure::runtime(anyhow::anyhow!(found.join("; ")))),
        }
    })
}

impl Arguments {
    fn unsettled(&self, report: &StatusReport) -> Vec<String> {
        let has_leader_on_azure = report.leader.is_some() && !report.has_no_load_balancers;
        report.unsettled(!self.azure.given().is_empty() || has_leader_on_azure)
    }
}

/// Reads until every shown node is where it should be, and prints the last report.
async fn wait_until_settled(
    arguments: &Arguments,
    read: impl AsyncFn() -> Result<StatusReport, Failure>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + arguments.settled.timeout;
    let mut report = read().await?;
    loop {
        let unsettled = arguments.unsettled(&report);
        if unsettled.is_empty() {
            return output::print_report(arguments.output, &report);
        }
        if Instant::now() + WAIT_INTERVAL > deadline {
            output::print_report(arguments.output, &report)?;
            let (timeout, unsettled) = (arguments.settled.timeout, unsettled.join("; "));
            return Err(Failure::runtime(anyhow::anyhow!("not within {timeout:?}: {unsettled}")));
        }
        sleep(WAIT_INTERVAL).await;
        // A failed read, as of an API server that restarts, is one more reason to wait; the next one reads anew.
        report = match read().await {
            Ok(report) => report,
            Err(_) if Instant::now() + WAIT_INTERVAL <= deadline => continue,
            Err(failure) => {
                let timeout = arguments.settled.timeout;
                return Err(Failure::runtime(
                    failure.error.context(format!("not within {timeout:?}")),
                ));
            }
        };
    }
}

async fn read_report(arguments: &Arguments, settings: &Settings, client: &Client) -> Result<StatusReport, Failure> {
    let selected = match &arguments.selector {
        Some(selector) => Some(status::list_node_names(client, selector).await?),
        None => None,
    };
    let mut report = read_state(arguments, settings, client).await?;
    if let Some(selected) = selected {
        report.retain_selected(&selected);
    } else if !arguments.nodes.is_empty() {
        report.retain_named(&arguments.nodes)?;
    } else if !arguments.all {
        report.retain_notable();
    }
    if !arguments.no_agents {
        let overrides = arguments.statusz.iter().cloned().collect();
        status::query_agents(&mut report, client, &arguments.agents.access(), &overrides).await;
    }
    if let Some(field) = &arguments.sort_by {
        report.sort_nodes_by(field).map_err(Failure::settings)?;
    }
    report.no_headers = arguments.no_headers;
    Ok(report)
}

/// The state as the leader serves it; with flags about Azure, or without a leader, as this machine reads it.
async fn read_state(arguments: &Arguments, settings: &Settings, client: &Client) -> Result<StatusReport, Failure> {
    let (mut from_leader, mut has_no_load_balancers) = (None, false);
    if arguments.azure.given().is_empty() {
        let is_narrow = !arguments.all && arguments.nodes.is_empty() && arguments.selector.is_none();
        let nodes = if is_narrow {
            LeaderNodes::Notable
        } else {
            LeaderNodes::All
        };
        match status::fetch_from_leader(client, &arguments.agents.access(), nodes).await {
            Ok(Some(report)) => return Ok(report),
            Ok(None) => has_no_load_balancers = true,
            Err(why) => from_leader = Some(why),
        }
    }
    let azure = if has_no_load_balancers {
        Err(status::NO_LOAD_BALANCERS.to_owned())
    } else {
        arguments.azure.connect(settings, client).await?
    };
    let snapshot = status::take_snapshot(client, azure, settings).await?;
    let mut report = StatusReport::from_snapshot(&snapshot);
    report.has_no_load_balancers = has_no_load_balancers;
    if let (Some(error), Some(why)) = (&mut report.azure_error, from_leader) {
        *error = format!("{error}; the leader does not serve it: {why}");
    }
    Ok(report)
}
