//! The real processes of headgate: an agent on each of the first Nodes, and two controllers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use headgate_sandbox::agents::{Agent, AgentConfig, Controller};
use tokio::time::{Instant, sleep};

use crate::azure::Azure;
use crate::azure_emulator::node_name;
use crate::documents::LEADERS_NODE;
use crate::measuring::output::say;
use crate::options::Options;
use crate::program::{SETTINGS, count, metrics, sum};
use crate::world::World;

/// Agents that start at the same time.
const AT_ONCE: usize = 8;
const CONTROLLERS: usize = 2;
/// Between two reads of metrics, where nothing is timed.
const LOOK: Duration = Duration::from_millis(100);

/// Running agents and controllers. Dropping it kills them.
pub(crate) struct Fleet {
    agents: Vec<Agent>,
    configs: Vec<AgentConfig>,
    controllers: Vec<Option<Controller>>,
}

impl Fleet {
    /// Starts the controllers, waits until one leads and knows every pool, and starts the agents.
    pub(crate) async fn start(options: &Options, world: &World, azure: &Azure) -> anyhow::Result<Self> {
        let config = |name: &str, node: String, arguments: Vec<String>| AgentConfig {
            program: options.program.clone(),
            node,
            kubeconfig: world.kubeconfig(),
            directory: world.directory().join(name),
            log: world.directory().join(format!("{name}.log")),
            settings: SETTINGS.to_owned(),
            healthz: SocketAddr::from(([127, 0, 0, 1], 0)),
            arguments,
            environment: Vec::new(),
        };
        let azure_config = format!("--azure-config-file={}", azure.config_file()?.display());
        let configs: Vec<_> = (0..CONTROLLERS)
            .map(|number| {
                config(
                    &format!("controller-{number}"),
                    LEADERS_NODE.to_owned(),
                    vec![azure_config.clone()],
                )
            })
            .collect();
        let mut fleet = Self {
            agents: Vec::new(),
            controllers: Vec::new(),
            configs,
        };
        for config in &fleet.configs {
            fleet.controllers.push(Some(config.start_controller().await?));
        }
        let entries = azure.entries();
        fleet
            .reach("a leader knows every pool", Duration::from_mins(5), |metrics| {
                count(metrics, "headgate_pool_addresses") >= entries
            })
            .await?
            .context("no leader knows every pool")?;
        let agents = (0..options.agents).map(|number| {
            config(
                &format!("agent-{number}"),
                node_name(number),
                vec!["--role=agent".to_owned()],
            )
        });
        fleet.agents = stream::iter(agents)
            .map(|config| async move { config.start().await })
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(fleet)
    }

    /// The ids of the agents' processes.
    pub(crate) fn agents(&self) -> Vec<u32> {
        self.agents.iter().filter_map(|agent| agent.process.id()).collect()
    }

    /// The ids of the controllers' processes, that of the leader first.
    pub(crate) async fn controllers(&self) -> anyhow::Result<Vec<u32>> {
        let leader = self.leader().await?;
        let mut ids = Vec::new();
        for (number, controller) in self.controllers.iter().enumerate() {
            let id = controller.as_ref().and_then(|controller| controller.process.id());
            match id {
                Some(id) if Some(number) == leader => ids.insert(0, id),
                Some(id) => ids.push(id),
                None => {}
            }
        }
        Ok(ids)
    }

    /// Which controller leads, if one does.
    pub(crate) async fn leader(&self) -> anyhow::Result<Option<usize>> {
        for (number, controller) in self.controllers.iter().enumerate() {
            let Some(controller) = controller else { continue };
            if sum(&metrics(controller.metrics).await?, "headgate_leader") > 0.0 {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The metrics of both controllers, one after the other; only the leader has values of pools.
    pub(crate) async fn metrics(&self) -> anyhow::Result<String> {
        let mut all = String::new();
        for controller in self.controllers.iter().flatten() {
            all.push_str(&metrics(controller.metrics).await?);
        }
        Ok(all)
    }

    /// The Nodes that both controllers have seen `Down` after a signal, since they started.
    pub(crate) async fn downs(&self) -> anyhow::Result<usize> {
        Ok(count(
            &self.metrics().await?,
            "headgate_admin_state_signal_to_down_seconds_count",
        ))
    }

    /// Waits until the metrics satisfy a condition; returns how long that took, and `None` if it took too long. Metrics are read rarely,
    /// because each answer costs processor time too.
    pub(crate) async fn reach(
        &self,
        what: &str,
        patience: Duration,
        reached: impl Fn(&str) -> bool,
    ) -> anyhow::Result<Option<Duration>> {
        let begun = Instant::now();
        while !reached(&self.metrics().await?) {
            if begun.elapsed() > patience {
                say(&format!("not within {} s: {what}", patience.as_secs()));
                return Ok(None);
            }
            sleep(LOOK).await;
        }
        Ok(Some(begun.elapsed()))
    }

    /// Kills the leader, as the end of its machine does; returns which controller that was.
    pub(crate) async fn kill_leader(&mut self) -> anyhow::Result<usize> {
        let leader = self.leader().await?.context("nobody leads")?;
        let controller = self.controllers.get_mut(leader).and_then(Option::take);
        controller.context("the leader is not running")?.process.kill().await;
        Ok(leader)
    }

    /// Starts a controller that was killed.
    pub(crate) async fn start_again(&mut self, number: usize) -> anyhow::Result<()> {
        let config = self.configs.get(number).context("a controller")?;
        // A new process has new ports.
        let started = config.start_controller().await?;
        *self.controllers.get_mut(number).context("a controller")? = Some(started);
        Ok(())
    }

    /// Stops all of them, so that the leader releases its Lease.
    pub(crate) async fn stop(self) {
        let controllers = self
            .controllers
            .into_iter()
            .flatten()
            .map(|controller| controller.process);
        let processes = self.agents.into_iter().map(|agent| agent.process).chain(controllers);
        futures::future::join_all(processes.map(|process| process.stop(Duration::from_secs(20)))).await;
    }
}

/// Whether every entry that should be `Down` is, and no other of headgate's.
pub(crate) fn is_settled(metrics: &str) -> bool {
    count(metrics, "headgate_pool_actual_down") == count(metrics, "headgate_pool_desired_down")
        && count(metrics, "headgate_admin_state_queue_depth") == 0
}
