//! The evacuator `headgate.dev/daemonset`, whose loop is that of the Evacuation controller. What it does for one Evacuation is
//! `evacuation::daemon_set`'s to decide.
//!
//! Targets are those in the statuses of maintenances in the `Drain` stage, which the maintenance controller wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::whole_seconds;
use headgate_core::node::Node;
use headgate_core::telemetry::ReconcileSpan;
use jiff::Timestamp;
use kube::ResourceExt as _;

use super::evacuations::failed_status;
use super::grace_periods::GracePeriodCut;
use super::writer::{WriteError, Writer};
use crate::api::{Evacuation, EvacuationStatus, NodeMaintenance};
use crate::drain_plan::DrainTargets;
use crate::evacuation::daemon_set::{NodeState, evacuate};
use crate::evacuation::eviction::EvictionFailure;
use crate::snapshot::PodFacts;

/// Until a pod that does not terminate is deleted again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Until an Evacuation that has changed meanwhile is worked on again. The cache shows the change by then.
const CONFLICT_INTERVAL: Duration = Duration::from_secs(1);

/// What maintenances want of a node.
#[derive(Default)]
pub(super) struct DrainedNode<'a> {
    targets: DrainTargets,
    /// The reason of the oldest one.
    reason: &'a str,
}

/// The status to write before the pod is deleted, if it is to be.
pub(super) fn deletion(
    evacuation: &Evacuation,
    pod: &PodFacts,
    node: &Arc<Node>,
    is_hurried: bool,
    drained: &BTreeMap<&str, DrainedNode<'_>>,
    cut: Option<GracePeriodCut>,
    now: Timestamp,
) -> Option<EvacuationStatus> {
    let wanted = drained.get(pod.node.as_str());
    let state = NodeState {
        node,
        targets: wanted.map(|wanted| &wanted.targets),
        is_hurried,
        reason: wanted.map_or("", |wanted| wanted.reason),
    };
    let grace_period = cut.map_or(pod.grace_period, GracePeriodCut::granted);
    evacuate(evacuation, pod, state, grace_period, whole_seconds(now))
}

/// Writes the progress, then deletes the pod. Returns the time until it may be deleted again.
pub(super) async fn delete(
    writer: &Writer,
    evacuation: &Evacuation,
    status: EvacuationStatus,
    (pod, cut): (&PodFacts, Option<GracePeriodCut>),
    span: &ReconcileSpan,
) -> Duration {
    let deleted = async {
        let written = writer.write_evacuation_status(evacuation, status).await?;
        let deleted = writer.delete_pod(pod, cut).await;
        if let Err(error) = &deleted {
            write_failure(writer, &written, error).await;
        }
        deleted
    };
    match deleted.await {
        Ok(()) => {
            tracing::info!(
                namespace = pod.namespace,
                pod = pod.name,
                node = pod.node,
                "pod of the DaemonSet deleted"
            );
            if let Some(cut) = cut {
                writer.events.grace_period_cut(pod, cut);
            }
        }
        // The cache will show another Evacuation or pod.
        Err(WriteError::Conflict | WriteError::Gone) => return CONFLICT_INTERVAL,
        Err(error) => {
            span.fail(error.outcome().as_str(), &error);
            tracing::info!(namespace = pod.namespace, pod = pod.name, %error, "pod of the DaemonSet not deleted; retrying");
        }
    }
    REPEAT_INTERVAL
}

/// Writes a deletion that failed to the status, as an eviction that failed: the pod is a blocker from then on.
async fn write_failure(writer: &Writer, evacuation: &Evacuation, error: &WriteError) {
    let (reason, message) = match error {
        WriteError::Refused(message) => (EvictionFailure::Forbidden, message),
        WriteError::Failed(message) => (EvictionFailure::Other, message),
        WriteError::Conflict | WriteError::Gone | WriteError::NotPermitted(_) => return,
    };
    let status = failed_status(
        evacuation,
        reason,
        message.clone(),
        whole_seconds(writer.clock.now().wall),
    );
    if let Err(error) = writer.write_evacuation_status(evacuation, status).await {
        tracing::info!(namespace = evacuation.namespace(), name = evacuation.name_any(), %error, "Evacuation not written");
    }
}

/// The nodes that are drained, with their targets.
pub(super) fn drained_nodes<'a>(
    maintenances: impl Iterator<Item = &'a NodeMaintenance>,
) -> BTreeMap<&'a str, DrainedNode<'a>> {
    let mut draining: Vec<_> = maintenances.filter(|one| one.is_draining()).collect();
    draining.sort_by_key(|one| (one.metadata.creation_timestamp.clone(), one.metadata.name.clone()));
    let mut nodes: BTreeMap<&str, DrainedNode<'_>> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for maintenance in draining {
        let statuses = maintenance.status.iter();
        for (all, status) in statuses.flat_map(|all| all.node_statuses.iter().map(move |status| (all, status))) {
            let name = status.node_ref.name.as_str();
            let node = nodes.entry(name).or_default();
            node.targets.join(&all.targets_of(status).iter().collect());
            if known.insert(name) {
                node.reason = &maintenance.spec.reason;
            }
        }
    }
    nodes
}
