//! A cluster on the data plane for one scenario and strategy: machines, endpoints, the load balancer, clients.
//!
//! A run carries out a timeline while clients connect, and records what happened when. All times here are real; the
//! scenario's were shortened before. Dropping a [`World`] ends its threads and removes its namespaces.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use futures::future::try_join_all;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::clients::{self, ClientSettings, Observations};
use crate::control_plane::{ControlPlane, Observed};
use crate::controller::{self, Change, Changed, Channels, ControllerSettings};
use crate::endpoints::{Endpoint, has_ready_endpoint};
use crate::http::Probe;
use crate::machine::{AgentSetup, Command, Machine, MachineError};
use crate::network::namespace::{NamespaceError, Running};
use crate::network::tool::ToolError;
use crate::network::{Network, NetworkError, addresses};
use crate::probe::{ProbeSettings, ProbeStatus};
use crate::result::Event;
use crate::rotation::NoHealthyBackends;
use crate::scenario::{Action, Step, Timeline};
use crate::strategy::{Plan, ProbeTarget, Target};

/// Beyond the probes' own time, how long the load balancer may take to have all nodes in rotation.
const ROTATION_TIMEOUT: Duration = Duration::from_mins(1);
/// Beyond their own timeout, how long clients may take to stop.
const CLIENTS_TIMEOUT: Duration = Duration::from_secs(10);

/// A run cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// The data plane could not be built.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A node of the data plane failed.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A thread in a namespace could not be started.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The load balancer's rules.
    #[error(transparent)]
    LoadBalancer(#[from] ToolError),
    /// Backends stay out of rotation.
    #[error(
        "only the nodes {in_rotation:?} of {nodes} are in rotation after {} s; check that the machine is not overloaded, or lower --speed",
        waited.as_secs()
    )]
    NotInRotation {
        /// The indexes of those that are.
        in_rotation: Vec<usize>,
        /// How many there should be.
        nodes: usize,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The load balancer's controller has ended.
    #[error("the load balancer's controller stopped")]
    ControllerStopped,
    /// Clients do not stop.
    #[error("the clients did not stop within {} s", .0.as_secs())]
    ClientsTimeout(Duration),
    /// The control plane failed.
    #[error("the control plane failed: {0}")]
    ControlPlane(Box<dyn std::error::Error + Send + Sync>),
}

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
    /// headgate's agents, one for each node, or none at all.
    pub agents: Vec<AgentSetup>,
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
}

/// A cluster on the data plane.
#[derive(Debug)]
pub struct World {
    settings: WorldSettings,
    endpoints: Vec<Endpoint>,
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
            machines.push(Machine::start(index, namespace).await?);
        }
        let mut world = Self {
            is_off: vec![false; settings.nodes],
            settings,
            endpoints: Vec::new(),
            machines,
            network,
        };
        world.start_pods().await?;
        world.start_agents(|_| true).await?;
        Ok(world)
    }

    /// The data plane, for those who run more in its namespaces.
    #[must_use]
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
        self.start_agents(|node| was_off[node]).await
    }

    /// Ends all machines. Dropping a world does the same without waiting for it.
    ///
    /// # Errors
    /// A machine panicked or did not stop in time.
    pub async fn stop(self) -> Result<(), WorldError> {
        try_join_all(self.machines.into_iter().map(Machine::stop)).await?;
        Ok(())
    }

    async fn start_agents(&self, on: impl Fn(usize) -> bool) -> Result<(), WorldError> {
        let agents = self
            .settings
            .agents
            .iter()
            .enumerate()
            .filter(|(node, _)| on(*node) && !self.is_off[*node]);
        try_join_all(
            agents.map(|(node, setup)| self.machines[node].command(Command::StartAgent(Box::new(setup.clone())))),
        )
        .await?;
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

    fn pod_address(&self, node: usize) -> Ipv4Addr {
        match self.settings.plan.target {
            Target::HostPort => addresses::node(node),
            Target::NodePort | Target::Pod => addresses::pod(node),
        }
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

    /// Runs a timeline under clients.
    ///
    /// # Errors
    /// Nodes do not get into rotation, or a step cannot be carried out.
    pub async fn run(
        &mut self,
        timeline: &Timeline,
        run: &RunSettings,
        control_plane: &mut impl ControlPlane,
    ) -> Result<Recording, WorldError> {
        let (watch_health, watched) = mpsc::channel(self.settings.nodes.max(1));
        let (send_changes, mut changes) = mpsc::unbounded_channel();
        let (send_rotation, mut rotation) = watch::channel(Vec::new());
        let settings = self.controller_settings(run.seed);
        let channels = Channels {
            admin_states: control_plane.admin_states(),
            watched,
            changes: send_changes,
            rotation: send_rotation,
        };
        let mut controller = self
            .network
            .load_balancer
            .spawn("load-balancer", move || controller::run(settings, channels))?;
        let driven = async {
            self.wait_for_rotation(&mut rotation).await?;
            self.drive(timeline, run, control_plane, &watch_health).await
        };
        let (start, observations, mut events) = tokio::select! {
            driven = driven => driven?,
            ended = controller.join() => return Err(ended?.err().map_or(WorldError::ControllerStopped, WorldError::from)),
        };
        // Its receiver gone, the controller ends; the next one must not meet it.
        drop(rotation);
        controller.join().await??;
        while let Some(change) = changes.recv().await {
            events.extend(observed(change, start, &events));
        }
        events.extend(
            control_plane
                .take_events()
                .into_iter()
                .filter(|event| event.at >= start),
        );
        Ok(Recording {
            start,
            observations,
            events,
        })
    }

    async fn wait_for_rotation(&self, rotation: &mut watch::Receiver<Vec<usize>>) -> Result<(), WorldError> {
        let nodes = self.settings.nodes;
        let probe = &self.settings.probe;
        let waited = probe.interval * (probe.healthy_threshold + 1) + ROTATION_TIMEOUT;
        let complete = timeout(waited, rotation.wait_for(|members| members.len() == nodes)).await;
        match complete.map(|found| found.map(drop)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(WorldError::ControllerStopped),
            Err(_) => Err(WorldError::NotInRotation {
                in_rotation: rotation.borrow().clone(),
                nodes,
                waited,
            }),
        }
    }

    /// Carries out the steps while clients connect.
    async fn drive(
        &mut self,
        timeline: &Timeline,
        run: &RunSettings,
        control_plane: &mut impl ControlPlane,
        watch_health: &mpsc::Sender<usize>,
    ) -> Result<(Instant, Observations, Vec<Observed>), WorldError> {
        let (stop, stopped) = watch::channel(false);
        let settings = ClientSettings {
            source: addresses::client(run.index),
            ..run.clients
        };
        let mut running: Running<Observations> = self
            .network
            .clients
            .spawn("clients", move || clients::run(settings, stopped))?;
        let start = Instant::now();
        let mut events = Vec::new();
        for step in &timeline.steps {
            sleep_until(start + step.at).await;
            let at = Instant::now();
            let is_first = !events
                .iter()
                .any(|seen: &Observed| seen.node == step.node && seen.event == Event::Signal);
            if matches!(step.action, Action::Signal(_) | Action::TerminatePod) && is_first {
                events.push(Observed {
                    at,
                    node: step.node,
                    event: Event::Signal,
                });
                if self.probe(step.node).path.is_some() {
                    // If the controller has ended, `run` reports that.
                    let _ = watch_health.send(step.node).await;
                }
            }
            if step.action == Action::PowerOff {
                // Its packets are dropped some milliseconds later. What is lost from now on is lost with the machine.
                events.push(Observed {
                    at,
                    node: step.node,
                    event: Event::NodeGone,
                });
            }
            self.carry_out(step).await?;
            control_plane.carry_out(step).await?;
        }
        sleep_until(start + timeline.end).await;
        stop.send_replace(true);
        let bound = run.clients.timeout * 2 + CLIENTS_TIMEOUT;
        let observations = timeout(bound, running.join())
            .await
            .map_err(|_| WorldError::ClientsTimeout(bound))??;
        Ok((start, observations, events))
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
                self.machines[node].command(Command::PowerOff).await?;
                self.is_off[node] = true;
            }
            Action::RestartAgent => self.start_agents(|other| other == node).await?,
            Action::Signal(_) | Action::StopApiServer | Action::StartApiServer => {}
        }
        Ok(())
    }

    fn change_endpoint(&mut self, node: usize, change: impl Fn(&mut Endpoint)) {
        self.endpoints
            .iter_mut()
            .filter(|endpoint| endpoint.node == node)
            .for_each(change);
    }

    fn controller_settings(&self, seed: u64) -> ControllerSettings {
        let backend = |node: usize| {
            let address = match self.settings.plan.target {
                Target::NodePort => SocketAddrV4::new(addresses::node(node), addresses::NODE_PORT),
                Target::Pod => SocketAddrV4::new(addresses::pod(node), addresses::POD_PORT),
                Target::HostPort => SocketAddrV4::new(addresses::node(node), addresses::POD_PORT),
            };
            (address, self.probe(node))
        };
        ControllerSettings {
            backends: (0..self.settings.nodes).map(backend).collect(),
            probe: self.settings.probe,
            no_healthy: self.settings.no_healthy,
            propagation: self.settings.propagation,
            seed,
        }
    }

    fn probe(&self, node: usize) -> Probe {
        let (address, port, path) = match self.settings.plan.probe {
            ProbeTarget::NodePort => (addresses::node(node), addresses::NODE_PORT, None),
            ProbeTarget::KubeProxy => (
                addresses::node(node),
                addresses::KUBE_PROXY_HEALTH_PORT,
                Some("/healthz"),
            ),
            ProbeTarget::HealthCheckNodePort => (
                addresses::node(node),
                addresses::HEALTH_CHECK_NODE_PORT,
                Some("/healthz"),
            ),
            ProbeTarget::Headgate => (addresses::node(node), addresses::HEADGATE_HEALTH_PORT, Some("/healthz")),
            ProbeTarget::PodReady => (self.pod_address(node), addresses::POD_READY_PORT, Some("/ready")),
        };
        Probe {
            address: SocketAddrV4::new(address, port),
            path,
        }
    }
}

/// A change at the load balancer as an event; a health answer that fails because the machine is off is none.
fn observed((at, node, change): Changed, start: Instant, events: &[Observed]) -> Option<Observed> {
    let is_gone = || {
        events
            .iter()
            .any(|event| event.node == node && event.event == Event::NodeGone && event.at <= at)
    };
    let event = match change {
        Change::HealthFailed if !is_gone() => Event::Healthz503,
        Change::Probed(ProbeStatus::Down) => Event::ProbeDown,
        Change::InRotation(false) => Event::OutOfRotation,
        Change::HealthFailed | Change::Probed(ProbeStatus::Up) | Change::InRotation(true) => return None,
    };
    (at >= start).then_some(Observed { at, node, event })
}
