//! Eviction notices of Node events, as a part of the term's work: what `preempt_events` needs to know of the Nodes comes from
//! the watch that the admin states use.

use std::collections::BTreeSet;
use std::sync::Arc;

use headgate_core::node::DRAINING_TAINT;
use headgate_kubernetes::FieldIntents;
use tokio::sync::watch;

use super::target_states::TargetStates;
use crate::other_nodes::OtherNodes;
use crate::preempt_events::PreemptEvents;

/// The feature `evictionNotices`, and whether this process may write other Nodes.
#[derive(Clone)]
pub struct PreemptEventsFeature {
    /// The task.
    pub task: PreemptEvents,
    /// Checked at the start of each term.
    pub other_nodes: OtherNodes,
}

/// Runs the feature, or does nothing if this process may not write other Nodes; never ends by itself.
pub(super) async fn preempt_events(
    feature: PreemptEventsFeature,
    intents: FieldIntents,
    mut targets: watch::Receiver<Option<Arc<TargetStates>>>,
) {
    let PreemptEventsFeature { task, other_nodes } = feature;
    if other_nodes.check("evictionNotices").is_err() {
        return std::future::pending().await;
    }
    let tainted = watch::Sender::<BTreeSet<String>>::default();
    let follow = async {
        loop {
            let names = tainted_nodes(targets.borrow_and_update().as_deref());
            tainted.send_if_modified(|known| {
                let is_changed = *known != names;
                *known = names;
                is_changed
            });
            if targets.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    futures::future::join(follow, task.run(intents, tainted.subscribe())).await;
}

/// The names of the Nodes with the draining taint.
fn tainted_nodes(targets: Option<&TargetStates>) -> BTreeSet<String> {
    let nodes = targets.into_iter().flat_map(|targets| targets.nodes.iter());
    let tainted = nodes.filter(|node| node.taints.iter().any(|taint| taint.key == DRAINING_TAINT));
    tainted.map(|node| node.name.clone()).collect()
}
