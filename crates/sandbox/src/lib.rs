//! The world on one machine, to try headgate out and to test it: a real control plane, nodes, one real
//! agent a node, and an emulator of Azure with load balancers in front of them.
//!
//! [`run`] is the command `headgate sandbox`: it starts all that, shows what every node answers, and ends
//! it. The invariant: whatever happens on the way, what it started ends with it and what it made is
//! removed. The parts are public because the integration tests are built from the same ones.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use self::directory::{Directory, DirectoryError};
use self::progress::Progress;
use self::world::World;

pub mod agents;
pub mod assets;
mod azure;
mod board;
mod calls;
pub mod certificates;
pub mod control_plane;
mod directory;
mod health;
mod hints;
mod interrupts;
mod leads;
pub mod nodes;
mod pools;
pub mod process;
mod progress;
mod show;
mod table;
mod world;

pub use interrupts::Interrupts;

/// What the sandbox is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the control plane's programs are; none looks in the usual places.
    pub assets: Option<PathBuf>,
    /// A cluster to use instead of a control plane of its own.
    pub kubeconfig: Option<PathBuf>,
    /// How many nodes, at least one.
    pub nodes: u8,
    /// Where its files go; none makes a temporary directory.
    pub directory: Option<PathBuf>,
    /// How long it runs once it is ready; none until it is interrupted.
    pub exit_after: Option<Duration>,
}

/// Why the sandbox cannot be started, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Signals cannot be listened for.
    #[error("cannot listen for Ctrl-C and SIGTERM: {0}")]
    Interrupts(io::Error),
    /// The directory cannot be used or tidied up.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The control plane cannot be started.
    #[error(transparent)]
    ControlPlane(#[from] control_plane::ControlPlaneError),
    /// The given cluster cannot be used.
    #[error(transparent)]
    Connect(#[from] headgate_kubernetes::api_server::ConnectError),
    /// The cluster does not answer in time.
    #[error("{server} did not answer within {} s while {doing}; check that the cluster is up", bound.as_secs())]
    Silent {
        /// The cluster.
        server: String,
        /// What was asked of it.
        doing: &'static str,
        /// How long it was given.
        bound: Duration,
    },
    /// Nodes cannot be made or removed.
    #[error(transparent)]
    Nodes(#[from] nodes::NodesError),
    /// An agent cannot be started.
    #[error(transparent)]
    Agent(#[from] agents::AgentError),
    /// A process has ended that should be running.
    #[error(transparent)]
    Ended(#[from] process::ProcessError),
    /// This very program cannot be found.
    #[error("cannot find the running headgate program to start agents from: {0}")]
    Program(io::Error),
    /// What the nodes answer cannot be shown.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// Interrupted again while it was stopping.
    #[error("killed everything at a second interrupt{0}")]
    Killed(String),
}

/// Starts the sandbox, shows what its nodes answer until it is interrupted, and takes everything away.
///
/// Must be called on a thread that lives as long as the sandbox, such as the main thread under a
/// `current_thread` runtime: its processes end with that thread.
///
/// # Errors
/// It cannot be started, something it started has ended, or something cannot be taken away.
pub async fn run(options: &Options) -> Result<(), SandboxError> {
    let mut interrupts = Interrupts::listen().map_err(SandboxError::Interrupts)?;
    let progress = Progress::new();
    let directory = Directory::prepare(options.directory.as_deref())?;
    let mut world = World::default();
    let lived = tokio::select! {
        lived = live(&mut world, options, &directory, &progress) => lived,
        () = interrupts.next() => Ok(()),
    };
    progress.say("stopping");
    let ended = tokio::select! {
        ended = world.end() => ended,
        () = interrupts.next() => Err(SandboxError::Killed(world.left_behind())),
    };
    drop(world);
    let removed = directory.remove();
    progress.say("stopped");
    // The first failure is the cause of later ones.
    lived.and(ended).and(removed.map_err(SandboxError::from))
}

/// Starts everything and shows it for as long as it is to run.
async fn live(
    world: &mut World,
    options: &Options,
    directory: &Directory,
    progress: &Progress,
) -> Result<(), SandboxError> {
    let program = std::env::current_exe().map_err(SandboxError::Program)?;
    world.begin(&program, options, directory, progress).await?;
    let nodes = world.nodes();
    // It is there once everything is.
    let (Some(emulator), Some(azure_json), Some(client)) = (world.emulator(), world.azure_json(), world.client())
    else {
        return Ok(());
    };
    let control = emulator.bound.control;
    directory.describe(world.kubeconfig(), &nodes, emulator, azure_json)?;
    progress.say("ready");
    show::hints(&hints::text(&hints::Tried {
        program: &program,
        kubeconfig: world.kubeconfig(),
        assets: world.assets(),
        nodes: &nodes,
        azure_json,
        control,
        logs: &directory.logs(),
    }))
    .map_err(SandboxError::Output)?;
    let time_is_up = async {
        match options.exit_after {
            Some(duration) => sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        shown = show::run(&nodes, control, client) => shown.map_err(SandboxError::Output),
        end = world.wait_for_exit() => Err(end.into()),
        () = time_is_up => Ok(()),
    }
}
