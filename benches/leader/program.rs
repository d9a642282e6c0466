//! A leader as a child process, and access to the metrics of any leader.

use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use headgate_sandbox::{process, process::Process};
use tokio::time::{sleep, timeout};

use crate::azure::Azure;
use crate::azure_emulator::client::Client;
use crate::documents::LEADERS_NODE;
use crate::measuring::BINARY;
use crate::measuring::addresses::written;
use crate::world::World;

/// Time within which a leader must lead, list everything, and complete its work.
const PATIENCE: Duration = Duration::from_mins(3);
/// Interval between two reads.
const LOOK: Duration = Duration::from_millis(5);
/// Time within which it must release the Lease and stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A running leader.
pub(crate) struct Program {
    pub(crate) id: u32,
    /// Of the operations port.
    pub(crate) address: SocketAddr,
    process: Process,
}

impl Program {
    /// Starts one in this role and waits until it leads and knows every pool. `settings` continues the file.
    pub(crate) async fn start(world: &mut World, azure: &Azure, role: &str, settings: &str) -> anyhow::Result<Self> {
        world.forget_ledger().await?;
        let directory = world.leader_directory()?;
        let settings = format!(
            "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\nkubeProxyHealthzUrl: Disabled\n{settings}"
        );
        let (settings_file, addresses) = (directory.join("settings.yaml"), directory.join("addresses.json"));
        fs::write(&settings_file, settings)?;
        let mut command = process::command_in(BINARY, &directory);
        command.args(["agent", "--role", role, "--node-name", LEADERS_NODE]);
        command.args(["--metrics-bind-address", "127.0.0.1:0"]);
        // Without a health port there is none to bind.
        if role != "controller" {
            command.args(["--healthz-bind-address", "127.0.0.1:0"]);
        }
        for (flag, path) in [
            ("--kubeconfig", &world.kubeconfig()),
            ("--state-dir", &directory),
            ("--config", &settings_file),
            ("--azure-config-file", &azure.config_file()?),
            ("--addresses-file", &addresses),
        ] {
            command.arg(flag).arg(path);
        }
        let mut process = Process::start("the leader", command, &directory.join("log"))?;
        let addresses = written(&addresses, &mut process).await?;
        let program = Self {
            id: process.id().context("the leader's process")?,
            address: addresses.of("metrics")?,
            process,
        };
        let expected = azure.entries();
        program
            .until("it knows every pool", |metrics| {
                count(metrics, "headgate_pool_addresses") >= expected
            })
            .await?;
        Ok(program)
    }

    pub(crate) async fn stop(self) {
        self.process.stop(STOP_TIMEOUT).await;
    }

    pub(crate) async fn metrics(&self) -> anyhow::Result<String> {
        metrics(self.address).await
    }

    /// Waits until its metrics satisfy a condition.
    pub(crate) async fn until(&self, what: &str, reached: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        until(what, async || self.metrics().await, reached).await
    }
}

/// The metrics of the program with this operations port.
pub(crate) async fn metrics(address: SocketAddr) -> anyhow::Result<String> {
    let answer = Client::new(address, "").send("GET", "/metrics", String::new()).await?;
    Ok(String::from_utf8(answer.body.into())?)
}

/// Waits until metrics satisfy a condition.
pub(crate) async fn until<F>(what: &str, read: impl Fn() -> F, reached: impl Fn(&str) -> bool) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<String>>,
{
    let looking = async {
        while !reached(&read().await?) {
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, looking)
        .await
        .with_context(|| format!("not in time: {what}"))?
}

/// The sum of a counter over its labels.
pub(crate) fn count(metrics: &str, name: &str) -> usize {
    values::<usize>(metrics, name).sum()
}

/// The sum of a gauge over its labels.
pub(crate) fn sum(metrics: &str, name: &str) -> f64 {
    values::<f64>(metrics, name).sum()
}

fn values<T: FromStr>(metrics: &str, name: &str) -> impl Iterator<Item = T> {
    metrics.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let rest = match rest.strip_prefix('{') {
            Some(labelled) => labelled.split_once('}')?.1,
            None => rest,
        };
        rest.strip_prefix(' ')?.split(' ').next()?.parse().ok()
    })
}
