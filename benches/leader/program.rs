//! A leader as a child process, and access to the metrics of any leader.

use std::future::Future;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use headgate_sandbox::agents::AgentConfig;
use headgate_sandbox::process::Process;
use tokio::time::{sleep, timeout};

use crate::azure::Azure;
use crate::azure_emulator::client::Client;
use crate::documents::LEADERS_NODE;
use crate::measuring::BINARY;
use crate::world::World;

/// The settings of every process.
pub(crate) const SETTINGS: &str =
    "apiVersion: config.headgate.dev/v1alpha1\nkind: HeadgateConfiguration\nkubeProxyHealthzUrl: Disabled\n";
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
    /// Starts one and waits until it leads and knows every pool.
    pub(crate) async fn start(world: &mut World, azure: &Azure) -> anyhow::Result<Self> {
        world.forget_ledger().await?;
        let directory = world.leader_directory();
        let config = AgentConfig {
            program: BINARY.into(),
            node: LEADERS_NODE.to_owned(),
            kubeconfig: world.kubeconfig(),
            log: directory.join("log"),
            directory,
            settings: SETTINGS.to_owned(),
            healthz: SocketAddr::from(([127, 0, 0, 1], 0)),
            arguments: vec![format!("--azure-config-file={}", azure.config_file()?.display())],
            environment: Vec::new(),
        };
        let controller = config.start_controller().await?;
        let program = Self {
            id: controller.process.id().context("the leader's process")?,
            address: controller.metrics,
            process: controller.process,
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
    Ok(String::from_utf8(answer.into())?)
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
