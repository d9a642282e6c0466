//! The maintenance controllers in a term: what the admin-state controller reads of the pools is what their gates wait for, or without Azure
//! what agents write after failed probes.
//!
//! They run only in a process that may write other Nodes. Their end is no end of the term.

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_controller::other_nodes::OtherNodes;
use headgate_core::changed;
use headgate_core::node::{Node, TrafficByNode};
use headgate_kubernetes::leader::{NodeSummary, Term};
use headgate_kubernetes::{Objects, TermStores};
use headgate_maintenance::controller::{LoadBalancerSource, MaintenanceContext, run as run_controllers};
use tokio::sync::watch;

use super::leader_election::LeaderContext;
use crate::config::MarkerWriter;

/// The setting that enables them.
const FEATURE: &str = "maintenance.enabled";

/// Runs the controllers, or does nothing if this process may not write other Nodes.
pub(super) async fn run(
    term: Term,
    context: &LeaderContext,
    stores: TermStores,
    traffic: watch::Receiver<Arc<TrafficByNode>>,
) {
    let source = LoadBalancerSource::Reads(traffic);
    if let Some(controllers_context) = controllers_context(context, stores, source) {
        run_controllers(term, controllers_context).await;
    }
}

/// Runs the controllers in a cluster whose load balancers no leader reads, until the term is handed over. Their gates follow what the agents
/// write after failed probes (`outOfLoadBalancers.failedProbes`).
pub(super) async fn run_by_probes(term: Term, context: &LeaderContext, stores: TermStores) {
    if !matches!(
        context.process.settings.out_of_load_balancers.writer(),
        MarkerWriter::Probes(_)
    ) {
        tracing::warn!(
            "neither Azure nor outOfLoadBalancers.source is configured: no drain is confirmed by load balancers"
        );
    }
    let handed_over = term.clone();
    let reports = report_nodes(&handed_over, &context.process.node_name, stores.nodes.objects.clone());
    let controllers = async {
        let source = LoadBalancerSource::Probes;
        if let Some(controllers_context) = controllers_context(context, stores, source) {
            run_controllers(term, controllers_context).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = controllers => {}
        () = reports => {}
        () = handed_over.handover_requested() => {}
    }
}

/// Reports the Nodes to the election whenever they change; never ends by itself. The admin-state controller does so where Azure is configured.
async fn report_nodes(term: &Term, own: &str, mut nodes: watch::Receiver<Objects<Arc<Node>>>) {
    loop {
        let reported = nodes.borrow_and_update().as_ref().map(|nodes| summary(nodes, own));
        term.report_nodes(reported);
        changed(&mut nodes).await;
    }
}

/// What the election needs to know of all Nodes, to the leader on the Node `own`.
fn summary(nodes: &BTreeMap<String, Arc<Node>>, own: &str) -> NodeSummary {
    NodeSummary::new(nodes.values(), own, |node| !node.signals.is_empty())
}

/// What the controllers need, or `None` if this process may not write other Nodes.
fn controllers_context(
    context: &LeaderContext,
    stores: TermStores,
    load_balancers: LoadBalancerSource,
) -> Option<MaintenanceContext> {
    let LeaderContext {
        process,
        metrics,
        events,
    } = context;
    let placement = process.role.candidate_placement();
    OtherNodes::new(events.clone(), placement).check(FEATURE).ok()?;
    let settings = &process.settings.maintenance;
    Some(MaintenanceContext {
        events: events.clone(),
        nodes: stores.nodes,
        services: stores.services,
        client: process.client.clone(),
        node_intents: stores.intents,
        metrics: metrics.maintenance.clone(),
        clock: process.clock.clone(),
        load_balancers,
        pauses_upgrades: settings.pauses_upgrades,
        automatic: settings.automatic.clone(),
        max_concurrent_nodes: Some(settings.max_concurrent_nodes),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_core::node::Signal;

    use super::*;

    #[test]
    fn a_healthy_peer_is_another_node_that_is_ready_and_has_no_signal() {
        for (name, ready, is_signalled, is_healthy_peer) in [
            ("own", true, false, false),
            ("other", true, false, true),
            ("other", false, false, false),
            ("other", true, true, false),
        ] {
            let signal = is_signalled.then_some((Signal::Deletion, Duration::ZERO));
            let node = Node {
                name: name.to_owned(),
                ready,
                signals: signal.into_iter().collect(),
                ..Node::default()
            };
            let expected = NodeSummary {
                nodes: 1,
                has_healthy_peer: is_healthy_peer,
            };
            let nodes = BTreeMap::from([(name.to_owned(), Arc::new(node))]);
            assert_eq!(summary(&nodes, "own"), expected, "{name} {ready} {is_signalled}");
        }
    }
}
