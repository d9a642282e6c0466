//! The maintenance controllers in a term: what the admin-state controller reads of the pools is what their gates wait for, or without Azure
//! what agents write after failed probes.
//!
//! They run only in a process that may write other Nodes. Their end is no end of the term.

use std::sync::Arc;

use headgate_controller::admin_state::{NodeRead, NodeReads};
use headgate_controller::other_nodes::OtherNodes;
use headgate_leader::Term;
use headgate_maintenance::controller::{
    LoadBalancerObservations, LoadBalancerSource, MaintenanceContext, Metrics, run as run_controllers,
};
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
    let observed = watch::Sender::new(Arc::default());
    let source = LoadBalancerSource::Reads(observed.subscribe());
    let Some(controllers_context) = controllers_context(context, metrics, source) else {
        return;
    };
    let controllers = run_controllers(term, controllers_context);
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

/// Runs the controllers in a cluster whose load balancers no leader reads, until the term is handed over. Their gates follow what the agents
/// write after failed probes (`node.markerProbes`).
pub(super) async fn run_by_probes(term: Term, context: &LeaderContext, metrics: Metrics) {
    if context.settings.marker.probes == 0 {
        tracing::warn!("neither Azure nor node.markerProbes is configured: no drain is confirmed by load balancers");
    }
    let handed_over = term.clone();
    let controllers = async {
        if let Some(controllers_context) = controllers_context(context, metrics, LoadBalancerSource::Probes) {
            run_controllers(term, controllers_context).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = controllers => {}
        () = handed_over.handover_requested() => {}
    }
}

/// What the controllers need, or `None` if this process may not write other Nodes.
fn controllers_context(
    context: &LeaderContext,
    metrics: Metrics,
    load_balancers: LoadBalancerSource,
) -> Option<MaintenanceContext> {
    let events = context.events.clone();
    OtherNodes::new(events.clone(), context.placement).check(FEATURE).ok()?;
    Some(MaintenanceContext {
        events,
        client: context.client.clone(),
        metrics,
        clock: context.clock.clone(),
        load_balancers,
    })
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
