//! The view of the cluster that the controllers of one term share: what is stored of it, and what its Nodes should be.
//!
//! A term begins with empty stores and a Node writer of its own; nothing of an earlier term is read or written in it.

use std::sync::Arc;

use headgate_core::clock::Clock;
use headgate_core::node::{Node, NodeObject};
use kube::Client;

use crate::leader::Term;
use crate::load_balancer_services::{ServiceStore, service_store};
use crate::node_writer::{NodeIntents, NodeWriteMetrics, NodeWriter};
use crate::store::{NodeStore, Store};
use crate::watch::WatchReporter;

/// What each term of a process reads and writes with.
pub struct TermAccess<R> {
    /// A client of the API server that does not retry by itself.
    pub client: Client,
    /// Wall and monotonic time.
    pub clock: Clock,
    /// What is kept of a Node.
    pub read_node: R,
    /// For the watch of Nodes.
    pub node_reporter: WatchReporter,
    /// For the watch of Services.
    pub service_reporter: WatchReporter,
    /// Counts the writes of Nodes.
    pub node_writes: NodeWriteMetrics,
}

/// What is known of the cluster in one term, and where its controllers publish what Nodes should be.
#[derive(Clone)]
pub struct TermStores {
    /// All Nodes.
    pub nodes: NodeStore,
    /// The Services of type `LoadBalancer`.
    pub services: ServiceStore,
    /// What Nodes should be.
    pub intents: NodeIntents,
}

impl Term {
    /// The stores of this term, and what fills them and writes Nodes with permits of this term; that never ends by itself.
    pub fn stores<R>(&self, access: TermAccess<R>) -> (TermStores, impl Future<Output = ()> + use<R>)
    where
        R: Fn(NodeObject) -> Node,
    {
        let TermAccess {
            client,
            clock,
            read_node,
            node_reporter,
            service_reporter,
            node_writes,
        } = access;
        let (nodes, watch_nodes) = Store::new(&client, None, node_reporter, move |node| {
            Some(Arc::new(read_node(node)))
        });
        let (services, watch_services) = service_store(&client, service_reporter);
        let intents = NodeIntents::default();
        let writer = NodeWriter::new(client, node_writes, clock).in_term(self);
        let write_nodes = writer.run(intents.clone());
        let run = async move {
            tokio::select! {
                () = watch_nodes => {}
                () = watch_services => {}
                () = write_nodes => {}
            }
        };
        let stores = TermStores {
            nodes,
            services,
            intents,
        };
        (stores, run)
    }
}
