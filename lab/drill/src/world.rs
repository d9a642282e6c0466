//! A cluster on the data plane for one scenario and strategy: machines, endpoints, the load balancer, clients.
//!
//! A run carries out a timeline while clients connect, and records what happened when. All times here are real; the
//! scenario's were shortened before. Dropping a [`World`] ends its threads and removes its namespaces.

use std::time::Duration;

use futures::future::try_join_all;
use headgate_budget::probe::ProbeSettings;
use tokio::time::Instant;

pub use self::error::WorldError;
use crate::clients::{ClientSettings, Observations};
use crate::control_plane::Observed;
use crate::draining::DrainRules;
use crate::endpoints::{Endpoint, has_ready_endpoint};
use crate::machine::{Command, DeletedMachines, Machine, NodeProcesses, PowerOff};
use crate::network::Network;
use crate::rotation::NoHealthyBackends;
use crate::scenario::{Action, Step};
use crate::strategy::Plan;

mod backends;
mod error;
pub mod phase;
mod run;

/// A world; all times are real.
#[derive(Clone, Debug)]
pub struct WorldSettings {
    /// The number of nodes.
    pub nodes: usize,
    /// How many of them, the first ones, have no Pod.
    pub empty_nodes: usize,
    /// What the strategy means.
    pub plan: Plan,
    /// The load balancer's probes.
    pub probe: ProbeSettings,
    /// What the load balancer does without eligible backends.
    pub no_healthy: NoHealthyBackends,
    /// From an admin state shown by the control plane until it takes effect.
    pub propagation: Duration,
    /// When established flows of nodes that go away end.
    pub drain_rules: DrainRules,
    /// Independent probers of each node, at least one.
    pub probers: usize,
    /// What is seen of a machine that is switched off.
    pub power_off: PowerOff,
    /// Whether a machine that is switched off leaves the load balancer.
    pub deleted_machines: DeletedMachines,
    /// What runs on each node beside its Pod; nodes without an entry have only the model of kube-proxy.
    pub processes: Vec<NodeProcesses>,
}

/// What one run gave.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The time at which clients started.
    pub start: Instant,
    /// The results of all connections of the clients.
    pub observations: Observations,
    /// What happened, not sorted.
    pub events: Vec<Observed>,
}

/// Clients of one run.
#[derive(Clone, Copy, Debug)]
pub struct RunSettings {
    /// Clients; their source address is chosen from `index`.
    pub clients: ClientSettings,
    /// The number of runs of this world before this one.
    pub index: usize,
    /// Where the load balancer's random numbers come from.
    pub seed: u64,
    /// From the first signal until the next probe of its node, as a share of the probes' interval.
    pub phase: f64,
    /// How long an operation of ARM takes.
    pub operation: Duration,
}

/// A cluster on the data plane.
#[derive(Debug)]
pub struct World {
    settings: WorldSettings,
    endpoints: Vec<Endpoint>,
    /// What the control plane has of them.
    published: Vec<Endpoint>,
    is_off: Vec<bool>,
    /// Dropped before the network: threads leave the namespaces.
    machines: Vec<Machine>,
    network: Network,
}

impl World {
    /// Builds the data plane and starts machines and Pods.
    ///
    /// # Errors
    /// The data plane cannot be built, or a machine cannot be started.
    pub async fn start(settings: WorldSettings) -> Result<Self, WorldError> {
        let network = Network::build(settings.nodes).await?;
        let mut machines = Vec::with_capacity(settings.nodes);
        for (index, namespace) in network.nodes.iter().enumerate() {
            let processes = settings.processes.get(index).cloned().unwrap_or_default();
            machines.push(Machine::start(index, namespace, &processes).await?);
        }
        let mut world = Self {
            is_off: vec![false; settings.nodes],
            settings,
            endpoints: Vec::new(),
            published: Vec::new(),
            machines,
            network,
        };
        world.start_pods().await?;
        world.start_processes(|_| true).await?;
        Ok(world)
    }

    /// The data plane, for those who run more in its namespaces.
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// Brings everything back to the state before a run: machines on, one Pod on each node that had one, no signals.
    ///
    /// # Errors
    /// A machine cannot be brought back.
    pub async fn restore(&mut self) -> Result<(), WorldError> {
        for (machine, is_off) in self.machines.iter().zip(&self.is_off) {
            machine.command(Command::EndPod).await?;
            if *is_off {
                machine.command(Command::PowerOn).await?;
            }
            machine.command(Command::SetEligible(true)).await?;
        }
        let was_off = std::mem::replace(&mut self.is_off, vec![false; self.settings.nodes]);
        self.endpoints.clear();
        self.start_pods().await?;
        self.start_processes(|node| was_off[node]).await
    }

    /// Ends all machines. Dropping a world does the same without waiting for it.
    ///
    /// # Errors
    /// A machine panicked or did not stop in time.
    pub async fn stop(self) -> Result<(), WorldError> {
        try_join_all(self.machines.into_iter().map(Machine::stop)).await?;
        Ok(())
    }

    async fn start_processes(&self, on: impl Fn(usize) -> bool) -> Result<(), WorldError> {
        let starting = self
            .machines
            .iter()
            .zip(&self.settings.processes)
            .enumerate()
            .filter(|(node, _)| on(*node) && !self.is_off[*node])
            .map(|(_, (machine, processes))| async move {
                if processes.kube_proxy.is_some() {
                    machine.command(Command::StartKubeProxy).await?;
                }
                if let Some(agent) = &processes.agent {
                    machine.command(Command::StartAgent(Box::new(agent.clone()))).await?;
                }
                match &processes.counter {
                    Some(counter) => machine.command(Command::StartCounter(counter.clone())).await,
                    None => Ok(()),
                }
            });
        try_join_all(starting).await?;
        Ok(())
    }

    /// kube-proxy starts again, and an agent in the place of the one that runs. Neither answers yet.
    async fn restart_processes(&self, node: usize) -> Result<(), WorldError> {
        let (machine, processes) = (&self.machines[node], self.settings.processes.get(node));
        let Some(processes) = processes.filter(|_| !self.is_off[node]) else {
            return Ok(());
        };
        if processes.kube_proxy.is_some() {
            machine.command(Command::StartKubeProxy).await?;
        }
        if let Some(agent) = &processes.agent {
            machine.command(Command::RestartAgent(Box::new(agent.clone()))).await?;
        }
        Ok(())
    }

    async fn start_pods(&mut self) -> Result<(), WorldError> {
        for node in self.settings.empty_nodes..self.settings.nodes {
            self.start_pod(node).await?;
        }
        self.publish().await
    }

    async fn start_pod(&mut self, node: usize) -> Result<(), WorldError> {
        self.machines[node].command(Command::StartPod).await?;
        self.endpoints.retain(|endpoint| endpoint.node != node);
        let address = self.pod_address(node);
        self.endpoints.push(Endpoint {
            node,
            address,
            serving: true,
            terminating: false,
        });
        Ok(())
    }

    /// Gives the endpoints to kube-proxy on every machine that is on.
    async fn publish(&self) -> Result<(), WorldError> {
        let machines = self.machines.iter().enumerate().filter(|(node, _)| !self.is_off[*node]);
        try_join_all(machines.map(|(node, machine)| {
            machine.command(Command::Forward {
                backends: self.settings.plan.forwarding.backends(&self.endpoints, node),
                has_ready_endpoint: has_ready_endpoint(&self.endpoints, node),
            })
        }))
        .await?;
        Ok(())
    }

    /// The part of a step that concerns machines and endpoints.
    async fn carry_out(&mut self, step: &Step) -> Result<(), WorldError> {
        let node = step.node;
        match step.action {
            Action::Signal(signal) if signal.is_seen_by_kube_proxy() => {
                self.machines[node].command(Command::SetEligible(false)).await?;
            }
            Action::TerminatePod => {
                self.change_endpoint(node, |endpoint| endpoint.terminating = true);
                self.publish().await?;
            }
            Action::FailHealthCheck => self.machines[node].command(Command::FailHealthCheck).await?,
            Action::FailReadiness => {
                self.change_endpoint(node, |endpoint| endpoint.serving = false);
                self.publish().await?;
            }
            Action::EndPod => {
                self.machines[node].command(Command::EndPod).await?;
                self.endpoints.retain(|endpoint| endpoint.node != node);
                self.publish().await?;
            }
            Action::StartPod => {
                self.start_pod(node).await?;
                self.publish().await?;
            }
            Action::PowerOff => {
                self.machines[node]
                    .command(Command::PowerOff(self.settings.power_off))
                    .await?;
                self.is_off[node] = true;
            }
            Action::RestartAgent => self.restart_processes(node).await?,
            Action::Signal(_)
            | Action::AwaitEviction
            | Action::AwaitDeletionDelay
            | Action::StopApiServer
            | Action::StartApiServer => {}
        }
        Ok(())
    }

    fn change_endpoint(&mut self, node: usize, change: impl Fn(&mut Endpoint)) {
        self.endpoints
            .iter_mut()
            .filter(|endpoint| endpoint.node == node)
            .for_each(change);
    }
}
