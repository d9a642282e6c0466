//! Why a drill's control plane does not work.

use std::path::PathBuf;
use std::time::Duration;

use headgate_azure_emulator::ListenError;
use headgate_kubernetes::api_server::ConnectError;
use headgate_sandbox::assets::AssetsError;
use headgate_sandbox::control_plane::ControlPlaneError;
use headgate_sandbox::process::ProcessError;

use crate::files::WriteError;
use crate::world::WorldError;

/// The control plane cannot be started or does not work.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// etcd or kube-apiserver could not be started.
    #[error(transparent)]
    Processes(#[from] ControlPlaneError),
    /// A program is missing.
    #[error(transparent)]
    Assets(#[from] AssetsError),
    /// The API server cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The ARM emulator stopped during the drill.
    #[error("the ARM emulator stopped: {0}")]
    Emulator(ListenError),
    /// The ARM emulator is not up.
    #[error("the ARM emulator has not bound its addresses after {} s", .0.as_secs())]
    EmulatorTimeout(Duration),
    /// The ARM emulator's control API rejects a request.
    #[error("the ARM emulator does not accept {what}: {answer}")]
    EmulatorRequest {
        /// What was to be set.
        what: &'static str,
        /// What it answered.
        answer: String,
    },
    /// A file of the drill.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A request to the API server failed.
    #[error("cannot {action}: {source}")]
    Api {
        /// The request, in words.
        action: String,
        /// The error of the request to the API server.
        source: Box<kube::Error>,
    },
    /// A process cannot be run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Something that headgate or the API server does has not happened.
    #[error("after {} s it is still not so that {what}; see {}", waited.as_secs(), logs.display())]
    NotYet {
        /// What should be so.
        what: &'static str,
        /// How long it was waited for.
        waited: Duration,
        /// Where the logs are.
        logs: PathBuf,
    },
    /// A request to the API server was not answered.
    #[error("cannot {action}: the API server did not answer within {} s", .after.as_secs())]
    ApiTimeout {
        /// The request, in words.
        action: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// No agent became leader within the timeout.
    #[error("no headgate agent became leader within {} s; see {}", waited.as_secs(), logs.display())]
    NoLeader {
        /// How long it was waited for.
        waited: Duration,
        /// Where the agents' logs are.
        logs: PathBuf,
    },
}

impl From<ClusterError> for WorldError {
    fn from(error: ClusterError) -> Self {
        Self::ControlPlane(Box::new(error))
    }
}
