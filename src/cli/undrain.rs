//! `headgate undrain`: ends what `headgate drain` created, and waits until the nodes are given back.

use std::io::{self, Write as _};
use std::time::Duration;

use clap::{ArgAction, Args};
use clap_complete::engine::ArgValueCandidates;
use headgate_core::telemetry::escape_line;

use crate::drain::{NodeQuery, UndrainRequest, node_names, undrain};

use super::cluster::ClusterArguments;
use super::complete::node_candidates;
use super::drain::MAX_TIMEOUT;
use super::signals::interrupted;
use super::{Failure, block_on, duration_up_to};

/// Give nodes back that headgate drain took: end their NodeMaintenance, so that they are schedulable and in service again
///
/// Also cancels a drain. The maintenance goes on for its other nodes, those that are gone included, and a node that was cordoned before
/// stays so. The name of a node that is gone can be given, so that its successor is not drained, and the labels of a drain that no node
/// has. Waits until the nodes are given back, but for those that another maintenance takes up.
///
/// Exit code 1 if it is not done within --timeout, or refused because headgate drain did not create the NodeMaintenance of a node.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Nodes to give back, by name
    #[arg(value_name = "NODE", required_unless_present = "selector", add = ArgValueCandidates::new(node_candidates))]
    nodes: Vec<String>,

    /// Nodes with these labels, as for kubectl
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = NodeQuery::parse, conflicts_with = "nodes")]
    selector: Option<NodeQuery>,

    /// Wait until the nodes are given back
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true",
          action = ArgAction::Set)]
    wait: bool,

    /// How long to wait, at most 168h; 0s: without an end [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = duration_up_to(MAX_TIMEOUT))]
    timeout: Option<Duration>,

    #[command(flatten)]
    cluster: ClusterArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let nodes = node_names(&arguments.nodes);
    block_on(async {
        let client = arguments.cluster.client().await?;
        let request = UndrainRequest {
            client: &client,
            nodes: &nodes,
            query: arguments.selector.as_ref(),
            wait: arguments.wait,
            timeout: arguments.timeout.filter(|timeout| !timeout.is_zero()),
        };
        let line = |text: &str| {
            // The command goes on without a reader.
            let _ = writeln!(io::stdout().lock(), "{}", escape_line(text));
        };
        undrain(&request, interrupted(), line).await
    })
}
