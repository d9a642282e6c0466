//! Why a machine cannot do what it should.

use std::io;

use headgate_sandbox::agents::AgentError;
use headgate_sandbox::process::ProcessError;

use crate::files::WriteError;
use crate::network::namespace::NamespaceError;
use crate::network::tool::ToolError;

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
    /// A file of one of its processes.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The node's kube-proxy cannot be run, or has ended.
    #[error(transparent)]
    KubeProxy(#[from] ProcessError),
    /// The node's counter of connections cannot be run.
    #[error(transparent)]
    Counter(ProcessError),
    /// Its thread has ended.
    #[error("the machine of node {0} has stopped")]
    Stopped(usize),
}
