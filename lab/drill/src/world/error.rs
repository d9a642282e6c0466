//! Why a run cannot be carried out.

use std::time::Duration;

use crate::machine::MachineError;
use crate::network::NetworkError;
use crate::network::namespace::NamespaceError;
use crate::network::tool::ToolError;

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
    /// Nodes do not forward.
    #[error(
        "the node port of the nodes {silent:?} does not answer after {} s; their kube-proxy has not set its rules",
        waited.as_secs()
    )]
    NotForwarding {
        /// The indexes of the nodes.
        silent: Vec<usize>,
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
