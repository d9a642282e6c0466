//! The data plane: a layer-4 load balancer, nodes and clients as network namespaces of this machine's kernel.
//!
//! The load balancer is nftables: DNAT by a hash of the flow's addresses and ports, and conntrack. So flows, NAT and
//! TCP are real; only decisions (which backend is in rotation) come from [`controller`](crate::controller).
//! The invariant: everything here is released by dropping [`Network`].

use std::io;

pub mod addresses;
pub mod namespace;
pub mod ruleset;
pub mod tool;

use namespace::{Namespace, NamespaceError};
use tool::ToolError;

/// The data plane cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A namespace or its thread.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// The program `ip` or `nft` failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A kernel setting cannot be written.
    #[error(
        "cannot write {value} to {path}: {source}; network settings must be writable (in a container: mount /proc/sys read-write)"
    )]
    Setting {
        /// The path of the file.
        path: &'static str,
        /// The value that could not be written.
        value: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The network namespaces and the links between them.
#[derive(Debug)]
pub struct Network {
    /// Where connections come from.
    pub clients: Namespace,
    /// The load balancer, and the fabric between nodes.
    pub load_balancer: Namespace,
    /// One for each node.
    pub nodes: Vec<Namespace>,
}

/// Settings of the load balancer's and the nodes' namespaces.
const FORWARDING: [(&str, &str); 2] = [
    ("/proc/sys/net/ipv4/ip_forward", "1"),
    ("/proc/sys/net/ipv4/conf/all/rp_filter", "0"),
];
/// More ports, for a client that opens hundreds of connections a second.
const CLIENT_PORTS: [(&str, &str); 1] = [("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535")];

impl Network {
    /// Builds it for this many nodes, at most [`addresses::MAX_NODES`]. No backend is in rotation yet.
    ///
    /// # Errors
    /// Root or user namespaces, `ip`, `nft` or nftables in the kernel are missing.
    pub async fn build(nodes: usize) -> Result<Self, NetworkError> {
        let network = Self {
            clients: Namespace::create()?,
            load_balancer: Namespace::create()?,
            nodes: (0..nodes).map(|_| Namespace::create()).collect::<Result<_, _>>()?,
        };
        let paths: Vec<_> = network.nodes.iter().map(Namespace::path).collect();
        let commands = addresses::load_balancer_commands(&network.clients.path(), &paths);
        configure(
            &network.load_balancer,
            &FORWARDING,
            commands,
            Some(ruleset::load_balancer()),
        )
        .await?;
        configure(&network.clients, &CLIENT_PORTS, addresses::client_commands(), None).await?;
        for (index, node) in network.nodes.iter().enumerate() {
            configure(node, &FORWARDING, addresses::node_commands(index, nodes), None).await?;
        }
        Ok(network)
    }
}

async fn configure(
    namespace: &Namespace,
    settings: &'static [(&'static str, &'static str)],
    commands: String,
    ruleset: Option<String>,
) -> Result<(), NetworkError> {
    let mut configuring = namespace.spawn("configure", move || async move {
        for (path, value) in settings {
            std::fs::write(path, value).map_err(|source| NetworkError::Setting { path, value, source })?;
        }
        tool::ip(&commands).await?;
        if let Some(ruleset) = ruleset {
            tool::nft(&ruleset).await?;
        }
        Ok(())
    })?;
    configuring.join().await?
}
