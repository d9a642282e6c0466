//! `headgate check`: whether what headgate needs is there, and what to do about what is not.

use std::cell::Cell;

use clap::Args;
use jiff::Timestamp;
use kube::Client;

use crate::check::{CheckReport, read_world};
use crate::config::Settings;

use super::cluster::ClusterArguments;
use super::output::{self, Output, WatchArguments};
use super::{Failure, azure, block_on};

/// Check what headgate needs, before and after the installation: rights, identity, role, load balancers, probes, autoscalers
///
/// Runs with a kubeconfig or in a Pod of headgate, and writes nothing; it asks the API server which rights accounts have
/// (SubjectAccessReview). ✓ is as it should be, ! is a limit or not known, ✗ does not work: exit code 1. `-o name` prints the objects of !
/// and ✗.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    cluster: ClusterArguments,

    #[command(flatten)]
    azure: azure::AzureArguments,

    #[command(flatten)]
    watch: WatchArguments,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let settings = arguments.azure.settings()?;
    let failures = Cell::new(0);
    block_on(async {
        let client = arguments.cluster.client().await?;
        let read = async || {
            let report = read(&client, &settings).await?;
            failures.set(report.failures);
            Ok(report)
        };
        Box::pin(output::show(arguments.output, &arguments.watch, read)).await
    })?;
    match failures.get() {
        0 => Ok(()),
        1 => Err(Failure::runtime(anyhow::anyhow!("1 check failed"))),
        failures => Err(Failure::runtime(anyhow::anyhow!("{failures} checks failed"))),
    }
}

async fn read(client: &Client, settings: &Settings) -> Result<CheckReport, Failure> {
    let world = Box::pin(read_world(client, settings)).await?;
    Ok(CheckReport::new(&world, Timestamp::now()))
}
