//! `headgate clean-nodes`: removes what headgate wrote on Nodes, after headgate was deleted.

use anyhow::anyhow;
use clap::Args;
use headgate_core::telemetry::escape_line;

use crate::uninstall::{Cleaned, clean_nodes};

use super::cluster::ClusterArguments;
use super::{Failure, block_on, print, print_progress};

/// Remove what headgate wrote on Nodes: annotations, taints and conditions, after headgate was deleted
///
/// Refused while a leader is alive or a NodeMaintenance is not over, whose record this is. Nodes that a maintenance made unschedulable stay
/// so, and are named.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    cluster: ClusterArguments,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    block_on(async {
        let client = arguments.cluster.client().await?;
        let cleaned = clean_nodes(&client).await;
        report(&cleaned.map_err(Failure::runtime)?)
    })
}

fn report(cleaned: &Cleaned) -> Result<(), Failure> {
    for name in &cleaned.unschedulable {
        let name = escape_line(name);
        let line = format!("node/{name} stays unschedulable by a maintenance; `kubectl uncordon {name}` ends that\n");
        print(line.as_bytes())?;
    }
    print(format!("{} Nodes were cleaned.\n", cleaned.nodes).as_bytes())?;
    for error in &cleaned.failed {
        print_progress(error);
    }
    match cleaned.failed.len() {
        0 => Ok(()),
        count => Err(Failure::runtime(anyhow!(
            "{count} Nodes were not cleaned; repeat the command"
        ))),
    }
}
