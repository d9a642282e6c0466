//! The size of the election: how many candidates there are, and whether another one is better placed to lead.
//!
//! The leader's work observes the Nodes and reports them ([`Term::report_nodes`](super::Term::report_nodes)); what
//! follows for the election is decided here.

use std::sync::Arc;

use headgate_core::node::Node;

/// The candidates of a cluster that runs headgate as a Deployment. Its replicas cannot be counted from the Nodes.
const REPLICAS: u32 = 2;

/// What the work of a term observes of the cluster's Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSummary {
    /// The number of Nodes that can have an agent, whether or not its `DaemonSet` selects them.
    pub nodes: usize,
    /// Whether a Node other than the leader's own is ready and has no signal.
    pub has_healthy_peer: bool,
}

impl NodeSummary {
    /// What a leader on the Node `own` observes of all Nodes.
    pub fn new<'a>(
        nodes: impl IntoIterator<Item = &'a Arc<Node>>,
        own: &str,
        has_signal: impl Fn(&Node) -> bool,
    ) -> Self {
        let mut summary = Self {
            nodes: 0,
            has_healthy_peer: false,
        };
        for node in nodes.into_iter().filter(|node| !node.lacks_agent) {
            summary.nodes += 1;
            // One is enough: each look at the signals of a Node costs a search.
            if !summary.has_healthy_peer {
                summary.has_healthy_peer = node.name != own && node.ready && !has_signal(node);
            }
        }
        summary
    }
}

/// Where the candidates run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidatePlacement {
    /// One on every node, as a `DaemonSet` runs them.
    EveryNode,
    /// The few replicas of a `Deployment`.
    Replicas,
}

/// All candidates together, as the leader knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fleet {
    /// The number of candidates, this one included. The leader publishes it: the more candidates, the more rarely each
    /// one reads the Lease.
    pub(super) candidates: u32,
    /// Whether another candidate's node has no signal, so that it could take over from a signalled leader.
    pub(super) has_healthy_peer: bool,
}

impl Fleet {
    /// The candidates at `placement`; `None` if only Nodes that nobody has reported could tell how many there are.
    pub(super) fn new(placement: CandidatePlacement, nodes: Option<NodeSummary>) -> Option<Self> {
        let candidates = match placement {
            CandidatePlacement::EveryNode => u32::try_from(nodes?.nodes).unwrap_or(u32::MAX).max(1),
            CandidatePlacement::Replicas => REPLICAS,
        };
        Some(Self {
            candidates,
            has_healthy_peer: nodes.is_some_and(|nodes| nodes.has_healthy_peer),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn signals_are_looked_up_until_a_healthy_peer_is_found() {
        let nodes = ["own", "signalled", "healthy", "other"].map(|name| {
            Arc::new(Node {
                name: name.to_owned(),
                ready: true,
                ..Node::default()
            })
        });
        let looked_up = RefCell::new(Vec::new());
        let has_signal = |node: &Node| {
            looked_up.borrow_mut().push(node.name.clone());
            node.name == "signalled"
        };
        let summary = NodeSummary::new(&nodes, "own", has_signal);
        assert_eq!((summary.nodes, summary.has_healthy_peer), (4, true));
        assert_eq!(looked_up.into_inner(), ["signalled", "healthy"]);
    }

    #[test]
    fn every_node_has_a_candidate_unless_replicas_are_the_candidates() {
        for (placement, nodes, candidates) in [
            (CandidatePlacement::EveryNode, 0, 1),
            (CandidatePlacement::EveryNode, 5000, 5000),
            (CandidatePlacement::EveryNode, usize::MAX, u32::MAX),
            (CandidatePlacement::Replicas, 5000, 2),
        ] {
            for has_healthy_peer in [false, true] {
                let nodes = NodeSummary {
                    nodes,
                    has_healthy_peer,
                };
                let fleet = Fleet::new(placement, Some(nodes)).unwrap();
                assert_eq!(fleet.candidates, candidates);
                assert_eq!(fleet.has_healthy_peer, has_healthy_peer);
            }
        }
        assert_eq!(Fleet::new(CandidatePlacement::EveryNode, None), None);
        let replicas = Fleet::new(CandidatePlacement::Replicas, None).unwrap();
        assert_eq!((replicas.candidates, replicas.has_healthy_peer), (2, false));
    }
}
