//! The control plane of a drill: etcd, kube-apiserver, Nodes and the Azure emulator, for real headgate agents and
//! kube-proxies.
//!
//! They reach it from their nodes' namespaces by [`tunnel`](crate::tunnel)s. Everything ends with [`Cluster`]: its
//! processes are killed, its tasks aborted, its directory removed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use headgate_kubernetes::api_server::{Program, build_client};
use headgate_kubernetes::leader::{LeaderStatus, LeaseName};
use headgate_sandbox::assets::Assets;
use headgate_sandbox::control_plane::ControlPlane as Processes;
use headgate_sandbox::process::Process;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::api_server::ApiServer;
pub use self::deletion_delay::DeletionDelaySettings;
use self::emulator::EmulatorAddresses;
pub use self::error::ClusterError;
pub use self::maintenance::MaintenanceSettings;
use crate::azure::{self, PoolMembers};
use crate::control_plane::Observed;
use crate::drill::NegativeControl;
use crate::endpoints::TrafficPolicy;
use crate::files::WriteError;
use crate::machine::{DeletedMachines, NodeProcesses};
use crate::network::addresses::METADATA_SERVICE;
use crate::rotation::AdminState;
use crate::scenario::{Action, Signal, Step};
use crate::strategy::{HeadgatePart, ProbeTarget};
use crate::tunnel::{self, Tunnel};

mod api_server;
mod controllers;
mod deletion_delay;
mod emulator;
mod error;
mod maintenance;
mod nodes;
mod other_writer;
mod processes;
mod service;

/// Timeout of one request to the API server or the emulator.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an election may take: up to a lease duration and a half after a leader that was killed.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(90);
/// Between two reads of a file or Lease that is waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct ClusterSettings {
    /// The headgate program, for its agents.
    pub program: PathBuf,
    /// The control plane's programs.
    pub assets: Assets,
    /// The number of nodes.
    pub nodes: usize,
    /// What of headgate runs.
    pub headgate: HeadgatePart,
    /// Whether agents poll the instance metadata service.
    pub polls_scheduled_events: bool,
    /// The `externalTrafficPolicy` of the Service.
    pub policy: TrafficPolicy,
    /// kube-proxy's process; none for its model.
    pub kube_proxy: Option<KubeProxySettings>,
    /// How headgate's maintenance controllers drain a node.
    pub maintenance: MaintenanceSettings,
    /// How annotations of Nodes delay their deletion; none if agents set none.
    pub deletion_delay: Option<DeletionDelaySettings>,
    /// How long before an eviction it is announced, really.
    pub notice: Duration,
    /// What the load balancer probes.
    pub probe: ProbeTarget,
    /// The emulator's settings, whose times are real.
    pub azure: headgate_azure_emulator::Settings,
    /// What the entries of its pool are.
    pub pool_members: PoolMembers,
    /// Whether a machine that is deleted leaves its pool.
    pub deleted_machines: DeletedMachines,
    /// How long after each of its writes another program writes the pool again, really; none if no other does.
    pub other_writer: Option<Duration>,
    /// Its fault rules, from the first signal of each run.
    pub arm_faults: Vec<serde_json::Value>,
    /// What of headgate's admin states is broken.
    pub negative_control: Option<NegativeControl>,
}

/// The process of kube-proxy on every node.
#[derive(Clone, Copy, Debug)]
pub struct KubeProxySettings {
    /// The shortest real time between two changes of its rules.
    pub min_sync_period: Duration,
}

/// A running control plane.
pub struct Cluster {
    settings: ClusterSettings,
    client: Client,
    node_processes: Vec<NodeProcesses>,
    tunnels: Vec<Tunnel>,
    emulator: Option<EmulatorAddresses>,
    /// Whether it has its fault rules, in the run that goes on.
    has_faults: bool,
    /// The signals of each node.
    signals: Vec<Vec<Signal>>,
    /// Nodes whose machines have left the pool.
    deleted: Vec<usize>,
    /// What the API server gave the Pod that was evicted.
    pub(crate) grace_period: Option<Duration>,
    pub(crate) admin_states: watch::Receiver<Vec<AdminState>>,
    events: mpsc::UnboundedReceiver<Observed>,
    _tasks: JoinSet<()>,
    controllers: Option<Process>,
    kubeconfig: PathBuf,
    logs: PathBuf,
    api_server: ApiServer,
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
            .map_err(|source| WriteError {
                path: std::env::temp_dir(),
                source,
            })?;
        let processes = Processes::start(settings.assets.clone(), directory.path()).await?;
        let config = processes.client_config();
        let client = build_client(&config, Program::Sandbox)?;
        let mut tasks = JoinSet::new();
        let (send_states, admin_states) = watch::channel(vec![AdminState::None; settings.nodes]);
        let (send_events, events) = mpsc::unbounded_channel();
        let api_server = SocketAddr::from(([127, 0, 0, 1], config.cluster_url.port_u16().unwrap_or(443)));
        let mut ends = vec![(api_server, api_server)];
        let mut emulator = None;
        if settings.headgate.runs_agents() {
            let seed = azure::seed(settings.nodes, settings.probe, settings.pool_members);
            let addresses = emulator::start(&seed, &settings.azure, directory.path(), &mut tasks).await?;
            tasks.spawn(azure::follow(
                addresses.control,
                settings.nodes,
                send_states,
                send_events,
            ));
            if let Some(interval) = settings.other_writer {
                tasks.spawn(other_writer::run(client.clone(), addresses, interval));
            }
            ends.push((addresses.arm, addresses.arm));
            ends.push((SocketAddr::from((METADATA_SERVICE, 80)), addresses.arm));
            emulator = Some(addresses);
        }
        let mut tunnels = Vec::new();
        for (near, far) in ends {
            let (tunnel, accepted) = Tunnel::new(near);
            tasks.spawn(tunnel::dial(far, accepted));
            tunnels.push(tunnel);
        }
        let mut cluster = Self {
            node_processes: Vec::new(),
            tunnels,
            emulator,
            has_faults: false,
            signals: vec![Vec::new(); settings.nodes],
            deleted: Vec::new(),
            grace_period: None,
            settings,
            client,
            admin_states,
            events,
            _tasks: tasks,
            controllers: None,
            kubeconfig: processes.kubeconfig().to_owned(),
            logs: processes.logs(),
            api_server: ApiServer::new(processes),
            directory,
        };
        for node in 0..cluster.settings.nodes {
            cluster.create_node(node).await?;
            let processes = cluster.node_processes(node)?;
            cluster.node_processes.push(processes);
        }
        cluster.create_service().await?;
        cluster.prepare_maintenance().await?;
        cluster.controllers = cluster.start_controllers()?;
        Ok(cluster)
    }

    /// Takes all signals and faults back, for the next run.
    ///
    /// # Errors
    /// The API server rejects it.
    pub async fn restore(&mut self) -> Result<(), ClusterError> {
        self.api_server.start().await?;
        self.api_server.wait().await?;
        self.end_maintenance().await?;
        if let Some(emulator) = &self.emulator {
            emulator.set_faults(&[]).await?;
            self.has_faults = false;
            for node in self.deleted.drain(..) {
                emulator.create_machine(node).await?;
            }
        }
        for node in 0..self.settings.nodes {
            self.withdraw_signals(node).await?;
        }
        self.restore_pod().await
    }

    /// A machine is deleted: its interface goes, and with it its entry in the pool. An address stays.
    async fn delete_machine(&mut self, node: usize) -> Result<(), ClusterError> {
        let leaves = self.settings.deleted_machines == DeletedMachines::Leave;
        if let (true, PoolMembers::Nic, Some(emulator)) = (leaves, self.settings.pool_members, &self.emulator) {
            emulator.delete_machine(node).await?;
            self.deleted.push(node);
        }
        Ok(())
    }

    /// How long operations of ARM take from now on, really.
    ///
    /// # Errors
    /// The emulator rejects it.
    pub async fn set_operation_delay(&self, delay: Duration) -> Result<(), ClusterError> {
        match &self.emulator {
            Some(emulator) => emulator.set_operation_delay(delay).await,
            None => Ok(()),
        }
    }

    /// ARM's faults begin with the first signal of a run: what gives back the admin states of the run before must not meet them.
    async fn begin_faults(&mut self) -> Result<(), ClusterError> {
        if let (false, Some(emulator)) = (self.has_faults, &self.emulator) {
            emulator.set_faults(&self.settings.arm_faults).await?;
        }
        self.has_faults = true;
        Ok(())
    }

    /// Waits until a live instance of headgate leads, if any sets admin states at all.
    ///
    /// # Errors
    /// None does within a minute and a half.
    pub async fn wait_for_leader(&self) -> Result<(), ClusterError> {
        let leads = !matches!(self.settings.headgate, HeadgatePart::Nothing | HeadgatePart::Health);
        if !leads || self.settings.negative_control == Some(NegativeControl::LeaderOff) {
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
                waited: ELECTION_TIMEOUT,
                logs: self.logs.clone(),
            })
    }
}

impl Cluster {
    /// See [`crate::control_plane::ControlPlane::carry_out`].
    pub(crate) async fn carry_out(&mut self, step: &Step) -> Result<(), ClusterError> {
        match step.action {
            Action::Signal(signal) => {
                self.begin_faults().await?;
                self.signal(step.node, signal).await?;
            }
            Action::AwaitEviction => self.grace_period = self.wait_until_evicted().await?,
            Action::AwaitDeletionDelay => self.wait_for_deletion(step.node).await?,
            Action::EndPod => self.remove_pod().await?,
            Action::PowerOff => self.delete_machine(step.node).await?,
            Action::StopApiServer => self.api_server.kill().await?,
            Action::StartApiServer => self.api_server.start().await?,
            _ => {}
        }
        Ok(())
    }

    /// Returns once all that steps have begun is done.
    ///
    /// # Errors
    /// Something of it cannot be done.
    pub(crate) async fn settle(&mut self) -> Result<(), ClusterError> {
        self.api_server.wait().await
    }

    /// Events of its own since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<Observed> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }
}

async fn answered<T>(action: String, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ClusterError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(ClusterError::Api {
            action,
            source: Box::new(source),
        }),
        Err(_) => Err(ClusterError::ApiTimeout {
            action,
            after: REQUEST_TIMEOUT,
        }),
    }
}
