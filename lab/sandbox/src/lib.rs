//! A cluster on one machine, to try headgate out and to test it: a real control plane, Nodes, a real agent for each
//! Node, and an emulator of Azure with load balancers.
//!
//! [`run`] is the command `headgate-lab sandbox`: it starts all of them, shows the health of every node, and stops them.
//! Its invariant: however it ends, it stops what it started and removes what it made. The modules are public because
//! the integration tests use them as well.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use self::components::Components;
use self::directory::{Description, Directory, DirectoryError};
use self::display::Progress;

pub mod agents;
mod arm_callers;
pub mod assets;
mod azure;
pub mod certificates;
mod components;
pub mod control_plane;
mod directory;
mod display;
mod files;
mod hints;
mod interrupts;
mod leader_row;
mod live_tables;
mod local_service;
mod node_health;
pub mod nodes;
mod pods;
mod pools;
pub mod process;
mod workloads;

pub use files::WriteError;
pub use interrupts::Interrupts;

/// The flags of `headgate-lab sandbox`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program headgate, which agents and controllers run.
    pub program: PathBuf,
    /// Directory with the control plane's programs; `None` searches the usual places.
    pub assets: Option<PathBuf>,
    /// Kubeconfig of a cluster to use instead of an own control plane.
    pub kubeconfig: Option<PathBuf>,
    /// The number of nodes, at least one.
    pub nodes: u8,
    /// Whether pods run on the nodes, and controllers act on maintenances. Not with `kubeconfig`.
    pub has_workloads: bool,
    /// Whether an agent runs for each node.
    pub has_agents: bool,
    /// Directory for its files; `None` makes a temporary one.
    pub directory: Option<PathBuf>,
    /// How long it runs after it is ready; `None` until it is interrupted.
    pub exit_after: Option<Duration>,
}

/// The sandbox cannot start, or has stopped early.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Signal handlers cannot be installed.
    #[error("cannot install the handlers for Ctrl-C and SIGTERM: {0}")]
    Interrupts(io::Error),
    /// The directory cannot be used or cleaned up.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The control plane cannot be started.
    #[error(transparent)]
    ControlPlane(#[from] control_plane::ControlPlaneError),
    /// The kubeconfig's cluster cannot be used.
    #[error(transparent)]
    Connect(#[from] headgate_kubernetes::api_server::ConnectError),
    /// The cluster did not answer in time.
    #[error("{server} did not answer within {} s while {action}; check that the cluster is running", timeout.as_secs())]
    ClusterTimeout {
        /// The URL of the cluster.
        server: String,
        /// What the sandbox was doing.
        action: &'static str,
        /// How long the sandbox waited.
        timeout: Duration,
    },
    /// Nodes cannot be created or deleted.
    #[error(transparent)]
    Nodes(#[from] nodes::NodesError),
    /// The Local Service cannot be created.
    #[error(transparent)]
    LocalService(#[from] local_service::LocalServiceError),
    /// The workloads cannot be created, or do not run.
    #[error(transparent)]
    Workloads(#[from] workloads::WorkloadsError),
    /// A Pod of an agent or a controller cannot be created.
    #[error(transparent)]
    Pods(#[from] pods::PodsError),
    /// An agent cannot be started.
    #[error(transparent)]
    Agent(#[from] agents::AgentError),
    /// A process has ended while the sandbox was running.
    #[error(transparent)]
    ProcessEnded(#[from] process::ProcessError),
    /// The path of the running program cannot be determined.
    #[error("cannot find the running program to start the Azure emulator from: {0}")]
    Program(io::Error),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// A second interrupt came while the sandbox was stopping.
    #[error("killed all processes after a second interrupt{0}")]
    Killed(String),
}

/// Starts the sandbox, shows the health of its nodes until it is interrupted, and stops it.
///
/// Call this on a thread that lives as long as the sandbox, such as the main thread under a `current_thread` runtime:
/// the processes end with the thread that started them.
///
/// # Errors
/// It cannot start, a process has ended, or something cannot be removed.
pub async fn run(options: &Options) -> Result<(), SandboxError> {
    let mut interrupts = Interrupts::listen().map_err(SandboxError::Interrupts)?;
    let progress = Progress::new();
    let directory = Directory::prepare(options.directory.as_deref())?;
    let mut components = Components::default();
    let ran = tokio::select! {
        ran = run_until_stopped(&mut components, options, &directory, &progress) => ran,
        () = interrupts.next() => Ok(()),
    };
    progress.print("stopping");
    let stopped = tokio::select! {
        stopped = components.stop() => stopped,
        () = interrupts.next() => Err(SandboxError::Killed(components.leftover_nodes())),
    };
    drop(components);
    let removed = directory.remove();
    progress.print("stopped");
    // The first failure is the cause of later ones.
    ran.and(stopped).and(removed.map_err(SandboxError::from))
}

/// Starts all components and shows their state for as long as the sandbox runs.
async fn run_until_stopped(
    components: &mut Components,
    options: &Options,
    directory: &Directory,
    progress: &Progress,
) -> Result<(), SandboxError> {
    components.start(options, directory, progress).await?;
    let nodes = components.nodes.clone();
    let (Some(azure), Some(client)) = (&components.azure, components.client.clone()) else {
        return Ok(());
    };
    let control = azure.addresses.bound.control;
    let leader = if options.kubeconfig.is_none() && !nodes.is_empty() {
        leader_row::node(&client).await
    } else {
        None
    };
    progress.print("ready");
    display::print_hints(&hints::text(&hints::HintContext {
        program: &options.program,
        kubeconfig: &components.kubeconfig,
        assets: components.assets.as_ref(),
        nodes: &nodes,
        leader: leader.as_deref(),
        azure_json: &azure.config_file,
        control,
        logs: &directory.logs(),
        has_local_service: options.kubeconfig.is_none(),
        maintenances: &components.maintenances,
    }))
    .map_err(SandboxError::Output)?;
    // After the hints: who waits for it finds them.
    directory.write_description(&Description {
        kubeconfig: &components.kubeconfig,
        nodes: &nodes,
        emulator: &azure.addresses,
        azure_json: &azure.config_file,
    })?;
    let exit_time = async {
        match options.exit_after {
            Some(duration) => sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        shown = display::run(&nodes, control, client) => shown.map_err(SandboxError::Output),
        end = components.wait_for_exit() => Err(end.into()),
        () = exit_time => Ok(()),
    }
}
