//! The control plane of a drill: etcd, kube-apiserver, Nodes and the ARM emulator, for real headgate agents.
//!
//! Agents reach it from their nodes' namespaces by [`tunnel`](crate::tunnel)s. Everything ends with [`Cluster`]: its
//! processes are killed, its tasks aborted, its directory removed.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use headgate_azure_emulator::{ListenError, Options, Settings};
use headgate_kubernetes::api_server::{ConnectError, build_client};
use headgate_leader::{LeaderStatus, LeaseName};
use headgate_sandbox::agents::AgentConfig;
use headgate_sandbox::assets::Assets;
use headgate_sandbox::control_plane::{ControlPlane as Processes, ControlPlaneError};
use headgate_sandbox::nodes::ready_node;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::azure;
use crate::control_plane::{ControlPlane, Observed};
use crate::machine::AgentSetup;
use crate::network::addresses::{self, HEADGATE_HEALTH_PORT};
use crate::rotation::AdminState;
use crate::scenario::{Action, Signal, Step};
use crate::tunnel::{self, Tunnel};
use crate::world::WorldError;

/// Keeps a Node that is deleted visible with its `deletionTimestamp`, as Karpenter's finalizer does.
const FINALIZER: &str = "headgate.dev/drill";
/// Timeout of one request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the emulator may take to bind its addresses.
const EMULATOR_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an election may take: up to a lease duration and a half after a leader that was killed.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(90);
/// Between two reads of a file or Lease that is waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The control plane cannot be started or does not work.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// etcd or kube-apiserver could not be started.
    #[error(transparent)]
    Processes(#[from] ControlPlaneError),
    /// The API server cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The ARM emulator stopped during the drill.
    #[error("the ARM emulator stopped: {0}")]
    Emulator(ListenError),
    /// The ARM emulator is not up.
    #[error("the ARM emulator has not bound its addresses after {} s", EMULATOR_TIMEOUT.as_secs())]
    EmulatorTimeout,
    /// A file of the drill.
    #[error("cannot write {}: {source}; check the free space of the directory for temporary files", path.display())]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A request to the API server failed.
    #[error("cannot {action}: {source}")]
    Api {
        /// The request, in words.
        action: String,
        /// The error of the request to the API server.
        source: Box<kube::Error>,
    },
    /// A request to the API server was not answered.
    #[error("cannot {action}: the API server did not answer within {} s", REQUEST_TIMEOUT.as_secs())]
    ApiTimeout {
        /// The request, in words.
        action: String,
    },
    /// No agent became leader within the timeout.
    #[error("no headgate agent became leader within {} s; see {}", ELECTION_TIMEOUT.as_secs(), logs.display())]
    NoLeader {
        /// Where the agents' logs are.
        logs: PathBuf,
    },
}

impl From<ClusterError> for WorldError {
    fn from(error: ClusterError) -> Self {
        Self::ControlPlane(Box::new(error))
    }
}

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// The headgate program, for its agents.
    pub program: PathBuf,
    /// The control plane's programs.
    pub assets: Assets,
    /// The number of nodes.
    pub nodes: usize,
    /// Whether agents know Azure, so that one of them leads and sets admin states.
    pub sets_admin_state: bool,
    /// How long an operation of ARM takes, really.
    pub operation_delay: Duration,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct EmulatorAddresses {
    arm: SocketAddr,
    control: SocketAddr,
}

/// A running control plane.
pub struct Cluster {
    settings: ClusterSettings,
    client: Client,
    agents: Vec<AgentSetup>,
    taints: Vec<Vec<&'static str>>,
    admin_states: watch::Receiver<Vec<AdminState>>,
    events: mpsc::UnboundedReceiver<Observed>,
    _tasks: JoinSet<()>,
    processes: Processes,
    directory: TempDir,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Starts it and creates the Nodes. The calling thread must live as long as the cluster: its processes end with it.
    ///
    /// # Errors
    /// A part cannot be started.
    pub async fn start(settings: ClusterSettings) -> Result<Self, ClusterError> {
        let directory = tempfile::Builder::new()
            .prefix("headgate-drill-")
            .tempdir()
            .map_err(|source| ClusterError::Write {
                path: std::env::temp_dir(),
                source,
            })?;
        let processes = Processes::start(settings.assets.clone(), directory.path()).await?;
        let config = processes.client_config();
        let client = build_client(&config)?;
        let mut tasks = JoinSet::new();
        let emulator = start_emulator(&settings, directory.path(), &mut tasks).await?;
        let (send_states, admin_states) = watch::channel(vec![AdminState::None; settings.nodes]);
        let (send_events, events) = mpsc::unbounded_channel();
        tasks.spawn(azure::follow(
            emulator.control,
            settings.nodes,
            send_states,
            send_events,
        ));
        let mut tunnels = Vec::new();
        let port = config.cluster_url.port_u16().unwrap_or(443);
        for address in [SocketAddr::from(([127, 0, 0, 1], port)), emulator.arm] {
            let (tunnel, accepted) = Tunnel::new(address);
            tasks.spawn(tunnel::dial(address, accepted));
            tunnels.push(tunnel);
        }
        let mut cluster = Self {
            agents: Vec::new(),
            taints: vec![Vec::new(); settings.nodes],
            settings,
            client,
            admin_states,
            events,
            _tasks: tasks,
            processes,
            directory,
        };
        for node in 0..cluster.settings.nodes {
            cluster.create_node(node).await?;
            let agent = cluster.agent(node, &tunnels, emulator.arm)?;
            cluster.agents.push(agent);
        }
        Ok(cluster)
    }

    /// The agents to run, one on each node.
    #[must_use]
    pub fn agents(&self) -> Vec<AgentSetup> {
        self.agents.clone()
    }

    fn agent(&self, node: usize, tunnels: &[Tunnel], arm: SocketAddr) -> Result<AgentSetup, ClusterError> {
        let name = azure::name(node);
        let directory = self.directory.path().join("nodes").join(&name);
        let mut settings = "# Written by headgate drill.\n".to_owned();
        if self.settings.sets_admin_state {
            let file = directory.join("azure.json");
            write(&file, &azure::azure_json(arm))?;
            // A JSON string is valid YAML.
            settings = format!("{settings}azure: {{configFile: {}}}\n", json!(file.to_string_lossy()));
        }
        let config = AgentConfig {
            program: self.settings.program.clone(),
            kubeconfig: self.processes.kubeconfig().to_owned(),
            log: self.processes.logs().join(format!("agent-{name}.log")),
            settings,
            healthz: SocketAddr::from(([0, 0, 0, 0], HEADGATE_HEALTH_PORT)),
            arguments: Vec::new(),
            directory,
            node: name,
        };
        Ok(AgentSetup {
            config,
            tunnels: tunnels.to_vec(),
        })
    }

    /// Takes all signals back, for the next run.
    ///
    /// # Errors
    /// The API server rejects it.
    pub async fn restore(&mut self) -> Result<(), ClusterError> {
        self.processes.start_apiserver().await?;
        for node in 0..self.settings.nodes {
            if std::mem::take(&mut self.taints[node]).is_empty() {
                continue;
            }
            let patch = json!({"metadata": {"finalizers": null}, "spec": {"taints": null}});
            self.patch_node(node, &patch).await?;
            // A Node that was deleted is gone with its finalizer; another one takes its name.
            self.create_node(node).await?;
        }
        Ok(())
    }

    /// Waits until a live agent leads, if agents set admin states at all.
    ///
    /// # Errors
    /// None does within a minute and a half.
    pub async fn wait_for_leader(&self) -> Result<(), ClusterError> {
        if !self.settings.sets_admin_state {
            return Ok(());
        }
        let since = Timestamp::now();
        let LeaseName { namespace, name } = LeaseName::default();
        let leases = Api::<Lease>::namespaced(self.client.clone(), &namespace);
        let leads = async {
            loop {
                if let Ok(Ok(Some(lease))) = timeout(REQUEST_TIMEOUT, leases.get_opt(&name)).await {
                    let status = LeaderStatus::from_lease(&lease, Timestamp::now());
                    if status.alive && status.holder.is_some() && status.renewed.is_some_and(|renewed| renewed > since)
                    {
                        return;
                    }
                }
                sleep(POLL_INTERVAL).await;
            }
        };
        timeout(ELECTION_TIMEOUT, leads)
            .await
            .map_err(|_| ClusterError::NoLeader {
                logs: self.processes.logs(),
            })
    }

    /// Creates a Node unless it is there.
    async fn create_node(&self, node: usize) -> Result<(), ClusterError> {
        let name = azure::name(node);
        let mut object = ready_node(&name, u8::try_from(node + 1).unwrap_or(u8::MAX), "drill");
        object.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        if let Some(status) = &mut object.status {
            status.addresses = Some(vec![NodeAddress {
                type_: "InternalIP".to_owned(),
                address: addresses::node(node).to_string(),
            }]);
        }
        let nodes = Api::<Node>::all(self.client.clone());
        let parameters = PostParams::default();
        let created = nodes.create(&parameters, &object);
        match answered(format!("create Node {name}"), created).await {
            Err(ClusterError::Api { source, .. }) if is_conflict(&source) => Ok(()),
            created => created.map(drop),
        }
    }

    async fn patch_node(&self, node: usize, patch: &serde_json::Value) -> Result<(), ClusterError> {
        let name = azure::name(node);
        let nodes = Api::<Node>::all(self.client.clone());
        let (parameters, merge) = (PatchParams::default(), Patch::Merge(patch));
        let patched = nodes.patch(&name, &parameters, &merge);
        answered(format!("patch Node {name}"), patched).await.map(drop)
    }

    async fn signal(&mut self, node: usize, signal: Signal) -> Result<(), ClusterError> {
        let Some(key) = signal.taint() else {
            let name = azure::name(node);
            let nodes = Api::<Node>::all(self.client.clone());
            let parameters = DeleteParams::default();
            let deleted = nodes.delete(&name, &parameters);
            return answered(format!("delete Node {name}"), deleted).await.map(drop);
        };
        self.taints[node].push(key);
        let taints: Vec<_> = self.taints[node]
            .iter()
            .map(|key| json!({"key": key, "effect": "NoSchedule"}))
            .collect();
        self.patch_node(node, &json!({"spec": {"taints": taints}})).await
    }
}

impl ControlPlane for Cluster {
    async fn carry_out(&mut self, step: &Step) -> Result<(), WorldError> {
        match step.action {
            Action::Signal(signal) => self.signal(step.node, signal).await?,
            Action::StopApiServer => self.processes.stop_apiserver().await,
            Action::StartApiServer => self.processes.start_apiserver().await.map_err(ClusterError::from)?,
            _ => {}
        }
        Ok(())
    }

    fn admin_states(&self) -> watch::Receiver<Vec<AdminState>> {
        self.admin_states.clone()
    }

    fn take_events(&mut self) -> Vec<Observed> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

async fn answered<T>(action: String, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ClusterError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(ClusterError::Api {
            action,
            source: Box::new(source),
        }),
        Err(_) => Err(ClusterError::ApiTimeout { action }),
    }
}

fn write(path: &Path, text: &str) -> Result<(), ClusterError> {
    let directory = path.parent().unwrap_or(path);
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(path, text));
    written.map_err(|source| ClusterError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Runs the emulator as a task of this process.
async fn start_emulator(
    settings: &ClusterSettings,
    directory: &Path,
    tasks: &mut JoinSet<()>,
) -> Result<EmulatorAddresses, ClusterError> {
    let [seed, bound] = ["seed.json", "addresses.json"].map(|name| directory.join("azure").join(name));
    write(&seed, &azure::seed(settings.nodes).to_string())?;
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = Options {
        listen: any_port,
        tls_listen: None,
        tls_ca_file: None,
        control_listen: any_port,
        seed: Some(seed),
        addresses_file: Some(bound.clone()),
        settings: Settings {
            operation_delay: settings.operation_delay,
            ..Settings::default()
        },
    };
    let (send_failed, failed) = tokio::sync::oneshot::channel();
    tasks.spawn(async move {
        let ended = headgate_azure_emulator::run(options, std::future::pending()).await;
        // After the start the receiver is gone; agents then report what they cannot reach.
        let _ = send_failed.send(ended);
    });
    let addresses = async {
        loop {
            let text = std::fs::read(&bound).unwrap_or_default();
            if let Ok(addresses) = serde_json::from_slice(&text) {
                return addresses;
            }
            sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        addresses = timeout(EMULATOR_TIMEOUT, addresses) => addresses.map_err(|_| ClusterError::EmulatorTimeout),
        Ok(Err(error)) = failed => Err(ClusterError::Emulator(error)),
    }
}
