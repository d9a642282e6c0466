//! A node's machine: a thread in the node's network namespace that runs its Pod, kube-proxy's part and headgate's agent.
//!
//! kube-proxy's part is its NAT rules, its `/healthz` and `/livez`, and the Service's `healthCheckNodePort`. It is
//! modelled, because it follows the steps of a scenario without an API server.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headgate_sandbox::agents::{Agent, AgentConfig, AgentError};
use hyper::StatusCode;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::endpoints::Backends;
use crate::http;
use crate::network::addresses::{HEALTH_CHECK_NODE_PORT, KUBE_PROXY_HEALTH_PORT};
use crate::network::namespace::{Namespace, NamespaceError, Running};
use crate::network::{ruleset, tool, tool::ToolError};
use crate::pod::Pod;
use crate::tunnel::{self, Tunnel};

/// A machine cannot do what it should.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Its namespace or thread.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The node's nftables rules could not be set.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The node's ports could not be opened.
    #[error("node {node} cannot listen on its ports: {source}")]
    Listen {
        /// The index of the node, from 0.
        node: usize,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The node's agent failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// Its thread has ended.
    #[error("the machine of node {0} has stopped")]
    Stopped(usize),
}

/// How long an agent that was replaced may take to end.
const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a machine may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// An agent to run on a machine.
#[derive(Clone, Debug)]
pub struct AgentSetup {
    /// The configuration of the node's agent.
    pub config: AgentConfig,
    /// How it reaches the control plane from its namespace.
    pub tunnels: Vec<Tunnel>,
}

/// What a machine can be made to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// kube-proxy forwards to these; whether an own endpoint is ready decides `healthCheckNodePort`.
    Forward {
        /// What new flows to the node port get.
        backends: Backends,
        /// Whether an endpoint on this node is ready.
        has_ready_endpoint: bool,
    },
    /// Whether kube-proxy's `/healthz` takes the node for one that stays.
    SetEligible(bool),
    /// A new Pod starts, in the place of one that may still run.
    StartPod,
    /// The Pod's own health check fails from now on.
    FailHealthCheck,
    /// The Pod's process ends.
    EndPod,
    /// An agent starts. One that runs already is stopped once the new one answers, as a `DaemonSet` with `maxSurge: 1` does.
    StartAgent(Box<AgentSetup>),
    /// All packets are dropped from now on, then its processes end.
    PowerOff,
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
    pub async fn start(node: usize, namespace: &Namespace) -> Result<Self, MachineError> {
        let (orders, incoming) = mpsc::channel(1);
        let (send_started, started) = oneshot::channel();
        let mut thread = namespace.spawn(&format!("node-{node}"), move || run(node, incoming, send_started))?;
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
    agent: Option<Agent>,
    /// Agents that were replaced, on their way out.
    stopping: JoinSet<()>,
    tunnels: Vec<Listener>,
    is_eligible: Arc<AtomicBool>,
    has_ready_endpoint: Arc<AtomicBool>,
}

async fn run(node: usize, mut orders: mpsc::Receiver<Order>, started: oneshot::Sender<()>) -> Result<(), MachineError> {
    let mut state = State {
        node,
        pod: None,
        agent: None,
        stopping: JoinSet::new(),
        tunnels: Vec::new(),
        is_eligible: Arc::new(AtomicBool::new(true)),
        has_ready_endpoint: Arc::new(AtomicBool::new(false)),
    };
    let eligible = Arc::clone(&state.is_eligible);
    let _kube_proxy = state
        .listen(KUBE_PROXY_HEALTH_PORT, move |path| match path {
            "/livez" => StatusCode::OK,
            "/healthz" => ok_if(&eligible),
            _ => StatusCode::NOT_FOUND,
        })
        .await?;
    let ready = Arc::clone(&state.has_ready_endpoint);
    let _health_check = state.listen(HEALTH_CHECK_NODE_PORT, move |_| ok_if(&ready)).await?;
    // The starter may have gone away; then there will be no orders either.
    let _ = started.send(());
    while let Some((command, done)) = orders.recv().await {
        let result = state.carry_out(command).await;
        let _ = done.send(result);
    }
    Ok(())
}

fn ok_if(flag: &AtomicBool) -> StatusCode {
    if flag.load(Ordering::Relaxed) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

/// A task that ends with its owner.
struct Listener(JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl State {
    async fn listen(
        &self,
        port: u16,
        answer: impl Fn(&str) -> StatusCode + Send + Sync + 'static,
    ) -> Result<Listener, MachineError> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .await
            .map_err(|source| self.cannot_listen(source))?;
        Ok(Listener(tokio::spawn(http::serve(listener, Arc::new(answer)))))
    }

    const fn cannot_listen(&self, source: io::Error) -> MachineError {
        MachineError::Listen {
            node: self.node,
            source,
        }
    }

    async fn carry_out(&mut self, command: Command) -> Result<(), MachineError> {
        match command {
            Command::Forward {
                backends,
                has_ready_endpoint,
            } => {
                tool::nft(&ruleset::kube_proxy(&backends)).await?;
                self.has_ready_endpoint.store(has_ready_endpoint, Ordering::Relaxed);
            }
            Command::SetEligible(eligible) => self.is_eligible.store(eligible, Ordering::Relaxed),
            Command::StartPod => {
                self.end_pod().await;
                let number = u8::try_from(self.node).unwrap_or(u8::MAX);
                self.pod = Some(Pod::start(number).await.map_err(|source| self.cannot_listen(source))?);
            }
            Command::FailHealthCheck => {
                if let Some(pod) = &self.pod {
                    pod.fail_health_check();
                }
            }
            Command::EndPod => self.end_pod().await,
            Command::StartAgent(setup) => self.start_agent(&setup).await?,
            Command::PowerOff => {
                tool::nft(&ruleset::powered_off()).await?;
                if let Some(agent) = self.agent.take() {
                    agent.process.kill().await;
                }
                self.stopping.shutdown().await;
                self.end_pod().await;
            }
            Command::PowerOn => tool::nft(&ruleset::powered_on()).await?,
        }
        Ok(())
    }

    async fn start_agent(&mut self, setup: &AgentSetup) -> Result<(), MachineError> {
        if self.tunnels.is_empty() {
            for tunnel in &setup.tunnels {
                let listener = TcpListener::bind(tunnel.address)
                    .await
                    .map_err(|source| self.cannot_listen(source))?;
                let accepting = tunnel::accept(listener, tunnel.streams.clone());
                self.tunnels.push(Listener(tokio::spawn(accepting)));
            }
        }
        let started = setup.config.start().await?;
        while self.stopping.try_join_next().is_some() {}
        if let Some(replaced) = self.agent.replace(started) {
            self.stopping.spawn(async move {
                replaced.process.stop(AGENT_STOP_TIMEOUT).await;
            });
        }
        Ok(())
    }

    async fn end_pod(&mut self) {
        if let Some(pod) = self.pod.take() {
            pod.end().await;
        }
    }
}
