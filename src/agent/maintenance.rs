//! The maintenance controllers in a term: what the admin-state controller reads of the pools is what their gates wait for, or without Azure
//! what agents write after failed probes.
//!
//! They run only in a process that may write other Nodes. Their end is no end of the term.

use std::sync::Arc;

use headgate_controller::other_nodes::OtherNodes;
use headgate_core::node::TrafficByNode;
use headgate_kubernetes::TermStores;
use headgate_kubernetes::leader::Term;
use headgate_maintenance::controller::{LoadBalancerSource, MaintenanceContext, Metrics, run as run_controllers};
use tokio::sync::watch;

use super::leader_election::LeaderContext;
use crate::config::MarkerWriter;

/// The setting that enables them.
const FEATURE: &str = "maintenance.enabled";

/// Runs the controllers, or does nothing if this process may not write other Nodes.
pub(super) async fn run(
    term: Term,
    context: &LeaderContext,
    metrics: Metrics,
    stores: TermStores,
    traffic: watch::Receiver<Arc<TrafficByNode>>,
) {
    let source = LoadBalancerSource::Reads(traffic);
    if let Some(controllers_context) = controllers_context(context, metrics, stores, source) {
        run_controllers(term, controllers_context).await;
    }
}

/// Runs the controllers in a cluster whose load balancers no leader reads, until the term is handed over. Their gates follow what the agents
/// write after failed probes (`outOfLoadBalancers.failedProbes`).
pub(super) async fn run_by_probes(term: Term, context: &LeaderContext, metrics: Metrics, stores: TermStores) {
    if !matches!(context.settings.out_of_load_balancers.writer(), MarkerWriter::Probes(_)) {
        tracing::warn!(
            "neither Azure nor outOfLoadBalancers.source is configured: no drain is confirmed by load balancers"
        );
    }
    let handed_over = term.clone();
    let controllers = async {
        let source = LoadBalancerSource::Probes;
        if let Some(controllers_context) = controllers_context(context, metrics, stores, source) {
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
    stores: TermStores,
    load_balancers: LoadBalancerSource,
) -> Option<MaintenanceContext> {
    let events = context.events.clone();
    OtherNodes::new(events.clone(), context.placement).check(FEATURE).ok()?;
    Some(MaintenanceContext {
        events,
        nodes: stores.nodes,
        services: stores.services,
        client: context.client.clone(),
        node_intents: stores.intents,
        metrics,
        clock: context.clock.clone(),
        load_balancers,
        pauses_upgrades: context.settings.maintenance.pauses_upgrades,
        automatic: context.settings.maintenance.automatic.clone(),
        max_concurrent_nodes: Some(context.settings.maintenance.max_concurrent_nodes),
    })
}
