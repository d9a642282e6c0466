//! The maintenance controllers in a term: what the admin-state controller reads of the pools is what their gates wait for.
//!
//! They run only in a process that may write other Nodes. Their end is no end of the term.

use std::sync::Arc;

use headgate_controller::admin_state::{NodeRead, NodeReads};
use headgate_controller::other_nodes::OtherNodes;
use headgate_kubernetes::ClusterEventRecorder;
use headgate_leader::Term;
use headgate_maintenance::controller::{LoadBalancerObservations, MaintenanceContext, Metrics, run as run_controllers};
use headgate_maintenance::snapshot::LoadBalancerObservation;
use tokio::sync::watch;

use super::leader_election::LeaderContext;

/// The setting that enables them.
const FEATURE: &str = "maintenance.enabled";

/// Runs the controllers, or does nothing if this process may not write other Nodes.
pub(super) async fn run(
    term: Term,
    context: &LeaderContext,
    metrics: Metrics,
    mut reads: watch::Receiver<Arc<NodeReads>>,
) {
    let (client, node_name) = (context.client.clone(), context.node_name.clone());
    let other_nodes = OtherNodes::new(client.clone(), node_name.clone(), context.placement);
    if other_nodes.check(FEATURE).await.is_err() {
        return;
    }
    let observed = watch::Sender::new(Arc::default());
    let controllers = run_controllers(
        term,
        MaintenanceContext {
            events: ClusterEventRecorder::new(client.clone(), node_name),
            client,
            metrics,
            clock: context.clock.clone(),
            load_balancers: observed.subscribe(),
        },
    );
    let follow = async {
        loop {
            let observations = observations(&reads.borrow_and_update());
            observed.send_replace(Arc::new(observations));
            if reads.changed().await.is_err() {
                return;
            }
        }
    };
    futures::future::join(controllers, follow).await;
}

/// What the reads mean for gates.
fn observations(reads: &NodeReads) -> LoadBalancerObservations {
    let observation = |read: &NodeRead| match read {
        NodeRead::Unknown { reason } => LoadBalancerObservation::Unknown { reason: reason.clone() },
        NodeRead::In { detail } => LoadBalancerObservation::In { detail: detail.clone() },
        NodeRead::HeldBack { detail } => LoadBalancerObservation::HeldBack { detail: detail.clone() },
        NodeRead::Out { since } => LoadBalancerObservation::Out { since: *since },
        NodeRead::NotUsed => LoadBalancerObservation::NotUsed,
    };
    reads
        .iter()
        .map(|(node, read)| (node.clone(), observation(read)))
        .collect()
}
