//! A node's machine: a thread in the node's network namespace that runs its Pod, kube-proxy's part and headgate's agent.
//!
//! kube-proxy is its own process, or a model of it ([`kube_proxy`]). Packets of a machine that is off are dropped before its
//! processes end, so their end is not seen on the network.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use headgate_sandbox::agents::{Agent, AgentConfig, AgentError};
use headgate_sandbox::process::{Process, ProcessError, command_in};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

pub use self::error::MachineError;
use self::kube_proxy::{KubeProxy, KubeProxyConfig};
use crate::endpoints::Backends;
use crate::network::namespace::{Namespace, Running};
use crate::network::{ruleset, tool};
use crate::pod::Pod;
use crate::tunnel::{self, Tunnel};

mod error;
pub mod kube_proxy;

/// How long an agent that was replaced may take to end.
const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// The name of the socket of an agent in its directory.
const AGENT_SOCKET: &str = "headgate.sock";
/// How long a machine may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What runs on a machine beside its Pod.
#[derive(Clone, Debug, Default)]
pub struct NodeProcesses {
    /// How processes reach what is outside of the node's namespace.
    pub tunnels: Vec<Tunnel>,
    /// kube-proxy's process; none for its model.
    pub kube_proxy: Option<KubeProxyConfig>,
    /// headgate's agent.
    pub agent: Option<AgentConfig>,
    /// headgate's counter of connections.
    pub counter: Option<CounterConfig>,
}

/// `headgate connections`, which counts for the agent of the same node.
#[derive(Clone, Debug)]
pub struct CounterConfig {
    /// The path of the headgate program.
    pub program: PathBuf,
    /// The agent's directory, with its socket.
    pub directory: PathBuf,
    /// The file to which its output is appended.
    pub log: PathBuf,
}

impl CounterConfig {
    fn start(&self) -> Result<Process, ProcessError> {
        let mut command = command_in(&self.program, &self.directory);
        command.arg("connections").arg("--agent-socket");
        command.arg(self.directory.join(AGENT_SOCKET)).env_remove("KUBECONFIG");
        Process::start("headgate's counter of connections", command, &self.log)
    }
}

/// What is seen on the network of a machine that is switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PowerOff {
    /// Nothing: its packets are dropped.
    #[default]
    Silent,
    /// TCP gets a reset, as from a system that has ended its services.
    Reset,
}

/// Whether the platform takes a machine that is deleted out of its load balancer's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeletedMachines {
    /// Its entry stays: the probe decides.
    #[default]
    Stay,
    /// Its entry goes by one operation, which begins when the machine is switched off.
    Leave,
}

/// What a machine can be made to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// The model of kube-proxy forwards to these; whether an own endpoint is ready decides `healthCheckNodePort`. Its
    /// process learns of both from the API server.
    Forward {
        /// What new flows to the node port get.
        backends: Backends,
        /// Whether an endpoint on this node is ready.
        has_ready_endpoint: bool,
    },
    /// Whether the model's `/healthz` takes the node for one that stays.
    SetEligible(bool),
    /// A new Pod starts, in the place of one that may still run.
    StartPod,
    /// The Pod's own health check fails from now on.
    FailHealthCheck,
    /// The Pod's process ends.
    EndPod,
    /// kube-proxy's process starts, in the place of one that may still run; the model needs no start.
    StartKubeProxy,
    /// An agent starts. One that runs already is stopped once the new one answers, as a `DaemonSet` with `maxSurge: 1` does.
    StartAgent(Box<AgentConfig>),
    /// The same, and the command is carried out before the new agent answers.
    RestartAgent(Box<AgentConfig>),
    /// The counter of connections starts, in the place of one that may still run.
    StartCounter(CounterConfig),
    /// Fails if kube-proxy's process has ended by itself.
    CheckKubeProxy,
    /// No packet arrives from now on, then its processes end.
    PowerOff(PowerOff),
    /// Packets are let through again; there is no Pod.
    PowerOn,
}

type Order = (Command, oneshot::Sender<Result<(), MachineError>>);

/// A running machine; dropping it ends its thread.
#[derive(Debug)]
pub struct Machine {
    node: usize,
    orders: mpsc::Sender<Order>,
    thread: Running<Result<(), MachineError>>,
}

impl Machine {
    /// Starts the machine of the node with this index.
    ///
    /// # Errors
    /// Its thread or its listeners cannot be started.
    pub async fn start(node: usize, namespace: &Namespace, processes: &NodeProcesses) -> Result<Self, MachineError> {
        let (orders, incoming) = mpsc::channel(1);
        let (send_started, started) = oneshot::channel();
        let (tunnels, kube_proxy) = (processes.tunnels.clone(), processes.kube_proxy.clone());
        let mut thread = namespace.spawn(&format!("node-{node}"), move || {
            run(node, tunnels, kube_proxy, incoming, send_started)
        })?;
        tokio::select! {
            Ok(()) = started => {}
            ended = thread.join() => return Err(ended?.err().unwrap_or(MachineError::Stopped(node))),
        }
        Ok(Self { node, orders, thread })
    }

    /// Gives a command and waits until it is carried out.
    ///
    /// # Errors
    /// It cannot be carried out, or the machine's thread has ended.
    pub async fn command(&self, command: Command) -> Result<(), MachineError> {
        let (send, done) = oneshot::channel();
        let stopped = || MachineError::Stopped(self.node);
        self.orders.send((command, send)).await.map_err(|_| stopped())?;
        done.await.map_err(|_| stopped())?
    }

    /// Ends its processes and its thread.
    ///
    /// # Errors
    /// The thread panicked, or did not end in time.
    pub async fn stop(self) -> Result<(), MachineError> {
        let Self {
            node,
            orders,
            mut thread,
        } = self;
        drop(orders);
        timeout(STOP_TIMEOUT, thread.join())
            .await
            .map_err(|_| MachineError::Stopped(node))??
    }
}

struct State {
    node: usize,
    pod: Option<Pod>,
    kube_proxy: KubeProxy,
    agent: Option<Agent>,
    counter: Option<Process>,
    /// Agents that have been started by `RestartAgent` and do not answer yet.
    starting: JoinSet<Result<Agent, AgentError>>,
    /// Why one of them could not be started; an error of the next command, or of the machine's end.
    failed: Option<MachineError>,
    /// Agents that were replaced, on their way out.
    stopping: JoinSet<()>,
}

async fn run(
    node: usize,
    tunnels: Vec<Tunnel>,
    kube_proxy: Option<KubeProxyConfig>,
    mut orders: mpsc::Receiver<Order>,
    started: oneshot::Sender<()>,
) -> Result<(), MachineError> {
    let cannot_listen = |source| MachineError::Listen { node, source };
    let mut accepting = Vec::new();
    for tunnel in tunnels {
        let listener = TcpListener::bind(tunnel.near).await.map_err(cannot_listen)?;
        accepting.push(Listener(tokio::spawn(tunnel::accept(listener, tunnel.streams))));
    }
    let mut state = State {
        node,
        pod: None,
        kube_proxy: match kube_proxy {
            Some(config) => KubeProxy::process(config),
            None => KubeProxy::model().await.map_err(cannot_listen)?,
        },
        agent: None,
        counter: None,
        starting: JoinSet::new(),
        failed: None,
        stopping: JoinSet::new(),
    };
    // The starter may have gone away; then there will be no orders either.
    let _ = started.send(());
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some((command, done)) = order else { break };
                let result = match state.failed.take() {
                    Some(error) => Err(error),
                    None => state.carry_out(command).await,
                };
                let _ = done.send(result);
            }
            Some(started) = state.starting.join_next() => match started {
                Ok(Ok(agent)) => state.replace_agent(agent),
                Ok(Err(error)) => state.failed = Some(error.into()),
                // Only a machine that is switched off aborts it.
                Err(_) => {}
            }
        }
    }
    state.failed.map_or(Ok(()), Err)
}

/// A task that ends with its owner.
#[derive(Debug)]
struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl State {
    async fn carry_out(&mut self, command: Command) -> Result<(), MachineError> {
        match command {
            Command::Forward {
                backends,
                has_ready_endpoint,
            } => self.kube_proxy.forward(&backends, has_ready_endpoint).await?,
            Command::SetEligible(eligible) => self.kube_proxy.set_eligible(eligible),
            Command::StartPod => {
                self.end_pod().await;
                let number = u8::try_from(self.node).unwrap_or(u8::MAX);
                let node = self.node;
                let pod = Pod::start(number).await;
                self.pod = Some(pod.map_err(|source| MachineError::Listen { node, source })?);
            }
            Command::FailHealthCheck => {
                if let Some(pod) = &self.pod {
                    pod.fail_health_check();
                }
            }
            Command::EndPod => self.end_pod().await,
            Command::StartKubeProxy => self.kube_proxy.start().await?,
            Command::StartAgent(config) => {
                let agent = config.start().await?;
                self.replace_agent(agent);
            }
            Command::RestartAgent(config) => {
                self.starting.spawn(async move { config.start().await });
            }
            Command::StartCounter(config) => {
                // Before the next one starts: an order of the agent goes to one of them only.
                if let Some(replaced) = self.counter.take() {
                    replaced.kill().await;
                }
                self.counter = Some(config.start().map_err(MachineError::Counter)?);
            }
            Command::CheckKubeProxy => self.kube_proxy.check()?,
            Command::PowerOff(how) => {
                tool::nft(&ruleset::powered_off(how)).await?;
                self.kube_proxy.kill().await;
                self.starting.shutdown().await;
                if let Some(agent) = self.agent.take() {
                    agent.process.kill().await;
                }
                if let Some(counter) = self.counter.take() {
                    counter.kill().await;
                }
                self.stopping.shutdown().await;
                self.end_pod().await;
            }
            Command::PowerOn => tool::nft(&ruleset::powered_on()).await?,
        }
        Ok(())
    }

    fn replace_agent(&mut self, started: Agent) {
        while self.stopping.try_join_next().is_some() {}
        if let Some(replaced) = self.agent.replace(started) {
            self.stopping.spawn(async move {
                replaced.process.stop(AGENT_STOP_TIMEOUT).await;
            });
        }
    }

    async fn end_pod(&mut self) {
        if let Some(pod) = self.pod.take() {
            pod.end().await;
        }
    }
}
