//! `headgate connections`: counts on this node, in its network namespace.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use headgate_agent::connections::parse_prefix;
use ipnet::IpNet;

use crate::connections::ConnectionCounter;

use super::agent::node_name;
use super::cluster::ClusterArguments;
use super::complete::node_candidates;
use super::output::{self, Output, WatchArguments};
use super::{Failure, block_on};

mod counter;

/// Count the established connections of Services that pass through this node
///
/// Counts in the kernel's connection table what was sent to an address of a Service of type LoadBalancer, or to its node port on this node,
/// whichever node its endpoint is on; not what comes from probes (on Azure), from the node and from its pods. Run it on the node, in its
/// network namespace, with `CAP_NET_ADMIN`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Name of the Node that this process runs on
    #[arg(env = "NODE_NAME", value_parser = node_name, required_unless_present = "agent_socket", add = ArgValueCandidates::new(node_candidates))]
    node: Option<String>,

    /// Count for the agent that serves this Unix socket, whenever it asks, until SIGTERM
    #[arg(long, value_name = "FILE", conflicts_with_all = ["exclude", "output", "watch"])]
    agent_socket: Option<PathBuf>,

    /// Do not count connections from this address or prefix, such as 10.0.9.0/24; may be repeated
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix)]
    exclude: Vec<IpNet>,

    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    watch: WatchArguments,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let node = match (&arguments.agent_socket, &arguments.node) {
        (Some(socket), _) => return counter::run(socket),
        (None, Some(node)) => node,
        // clap requires one of them.
        (None, None) => return Ok(()),
    };
    block_on(async {
        let client = arguments.cluster.client().await?;
        let counter = ConnectionCounter::new(arguments.exclude.clone());
        let read = async || counter.count(&client, node).await.map_err(Failure::runtime);
        Box::pin(output::show(arguments.output, &arguments.watch, read)).await
    })
}
