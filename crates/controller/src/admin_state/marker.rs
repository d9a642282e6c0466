//! The marker: the Node condition `headgate.dev/OutOfLoadBalancers`, by which other tools wait until a node has left its load balancers.
//!
//! Invariants: the condition is `True` only while the Node has a signal and every managed pool was read with the node `Down` or without
//! it, from reads after the signal and a list that ended in the last 45 s. It follows from the present state alone, so a new leader writes
//! it without a memory, and a condition that someone else changed is written again. A Node that has neither a signal nor the condition is
//! never written. A change of the status costs one write; what else changes waits for the next confirmation.
//!
//! [`evaluate`] decides, [`publish_markers`] hands it to the writer of Nodes. That a condition becomes `Unknown` when no leader confirms it
//! is left to the agent (`headgate_kubernetes::expire_marker`).

use std::sync::Arc;

use headgate_core::changed;
use headgate_kubernetes::FieldIntents;
use headgate_kubernetes::MarkerState;
use tokio::sync::watch;

use crate::other_nodes::OtherNodes;

mod evaluation;

pub(super) use evaluation::{MarkerInputs, Markers, TAKEOVER_TIME, evaluate};

/// Keeps the conditions published, or does nothing if this process may not write other Nodes; never ends by itself.
pub(super) async fn publish_markers(
    other_nodes: OtherNodes,
    intents: FieldIntents,
    mut markers: watch::Receiver<Arc<Markers>>,
) {
    if other_nodes.check("outOfLoadBalancers.source").is_err() {
        return std::future::pending().await;
    }
    loop {
        let states = Arc::clone(&markers.borrow_and_update());
        let confirmed = states.values().filter(|state| state.is_confirmed()).count();
        let intent = |(name, state): (&String, &MarkerState)| (name.clone(), state.intent(confirmed));
        intents.publish(states.iter().map(intent).collect());
        changed(&mut markers).await;
    }
}
