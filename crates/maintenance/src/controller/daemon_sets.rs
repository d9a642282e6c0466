//! The loop of the evacuator `headgate.dev/daemonset`. What it does for one Evacuation is `evacuation::daemon_set`'s to decide.
//!
//! Targets are those in the statuses of maintenances in the `Drain` stage, which the maintenance controller wrote.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use headgate_core::clock::whole_seconds;
use kube::ResourceExt as _;
use tokio::time::{Instant, sleep_until};

use super::caches::Caches;
use super::evacuation_span::evacuation_span;
use super::evacuations::failed_status;
use super::grace_periods::GracePeriodCut;
use super::writer::{WriteError, Writer};
use crate::api::names::is_daemon_set_evacuator;
use crate::api::{Evacuation, EvacuationStatus, NodeMaintenance};
use crate::deadline;
use crate::drain_plan::DrainTargets;
use crate::evacuation::daemon_set::{DaemonSetStep, NodeState, evacuate};
use crate::evacuation::eviction::EvictionFailure;
use crate::snapshot::PodFacts;

/// Between two turns, so that changes in quick succession share one.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// Pods that are deleted at the same time: one whose deletion hangs delays no other.
const MAX_DELETIONS: usize = 8;
/// Until a pod that does not terminate is deleted again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Until an Evacuation that has changed meanwhile is worked on again. The cache shows the change by then.
const CONFLICT_INTERVAL: Duration = Duration::from_secs(1);
const RESYNC_INTERVAL: Duration = Duration::from_mins(5);

/// The evacuator.
pub(super) struct DaemonSetEvacuator {
    caches: Caches,
    writer: Writer,
    /// When the pod of an Evacuation, by UID, may be deleted again.
    repeat_at: HashMap<String, Instant>,
    /// The UIDs of the Evacuations whose pods are being deleted.
    working: BTreeSet<String>,
}

/// A pod to delete.
struct Deletion {
    evacuation: Evacuation,
    status: EvacuationStatus,
    pod: PodFacts,
    cut: Option<GracePeriodCut>,
}

/// What maintenances want of a node.
#[derive(Default)]
struct DrainedNode<'a> {
    targets: DrainTargets,
    /// The reason of the oldest one.
    reason: &'a str,
}

impl DaemonSetEvacuator {
    pub(super) fn new(caches: Caches, writer: Writer) -> Self {
        Self {
            caches,
            writer,
            repeat_at: HashMap::new(),
            working: BTreeSet::new(),
        }
    }

    /// Runs until it is aborted.
    pub(super) async fn run(mut self) {
        let mut deletions = FuturesUnordered::new();
        let mut turn_at = Instant::now();
        let mut next_turn_from = turn_at;
        loop {
            let caches = &mut self.caches;
            let is_changed = tokio::select! {
                Some((uid, repeat_at)) = deletions.next() => {
                    self.working.remove(&uid);
                    self.repeat_at.insert(uid, repeat_at);
                    true
                }
                Ok(()) = caches.evacuations.changed() => true,
                Ok(()) = caches.maintenances.changed() => true,
                Ok(()) = caches.nodes.changed() => true,
                Ok(()) = caches.pods.changed() => true,
                () = sleep_until(turn_at) => {
                    // What finds no place is due again when a deletion has ended.
                    for deletion in self.due().into_iter().take(MAX_DELETIONS - self.working.len()) {
                        let uid = deletion.evacuation.uid().unwrap_or_default();
                        if self.working.insert(uid) {
                            deletions.push(delete(self.writer.clone(), deletion));
                        }
                    }
                    let wake_at = self.repeat_at.values().min().copied();
                    let now = Instant::now();
                    next_turn_from = now + MIN_INTERVAL;
                    turn_at = wake_at.unwrap_or(now + RESYNC_INTERVAL).max(next_turn_from);
                    false
                }
            };
            if is_changed {
                turn_at = turn_at.min(next_turn_from);
            }
        }
    }

    fn due(&mut self) -> Vec<Deletion> {
        let now = self.writer.clock.now();
        self.repeat_at.retain(|_, at| *at > now.mono);
        let maintenances = self.caches.maintenances.borrow_and_update();
        let nodes = self.caches.nodes.borrow_and_update();
        let evacuations = self.caches.evacuations.borrow_and_update();
        let pods = self.caches.pods.borrow_and_update();
        let (Some(maintenances), Some(nodes), Some(evacuations)) =
            (maintenances.as_ref(), nodes.as_ref(), evacuations.as_ref())
        else {
            return Vec::new();
        };
        let (drained, pods) = (drained_nodes(maintenances.values()), pods.by_uid());
        let mut due = Vec::new();
        for evacuation in evacuations.values().filter(|evacuation| is_our_turn(evacuation)) {
            let uid = evacuation.uid().unwrap_or_default();
            if self.repeat_at.contains_key(&uid) || self.working.contains(&uid) {
                continue;
            }
            let Some(pod) = pods.get(evacuation.spec.pod_ref.uid.as_str()).copied() else {
                continue;
            };
            let Some(node) = nodes.get(&pod.node) else {
                continue;
            };
            let wanted = drained.get(pod.node.as_str());
            let state = NodeState {
                node,
                targets: wanted.map(|wanted| &wanted.targets),
                is_hurried: deadline::hurries(node, maintenances.values(), now.wall),
                reason: wanted.map_or("", |wanted| wanted.reason),
            };
            let cut = GracePeriodCut::of(pod, deadline::announced_for_node(node, maintenances.values()), now.wall);
            let grace_period = cut.map_or(pod.grace_period, GracePeriodCut::granted);
            match evacuate(evacuation, pod, state, grace_period, whole_seconds(now.wall)) {
                DaemonSetStep::Leave => {}
                DaemonSetStep::Delete(status) => due.push(Deletion {
                    evacuation: evacuation.clone(),
                    status: *status,
                    pod: pod.clone(),
                    cut,
                }),
            }
        }
        due
    }
}

/// Writes the progress, then deletes the pod. Returns the UID of the Evacuation, and when it may be worked on again.
async fn delete(writer: Writer, deletion: Deletion) -> (String, Instant) {
    let Deletion {
        evacuation,
        status,
        pod,
        cut,
    } = deletion;
    let deleted = async {
        let written = writer.write_evacuation_status(&evacuation, status).await?;
        let deleted = writer.delete_pod(&pod, cut).await;
        if let Err(error) = &deleted {
            write_failure(&writer, &written, error).await;
        }
        deleted
    };
    let span = evacuation_span(writer.term.number(), &evacuation, Some(&pod));
    let deleted = span.run(deleted).await;
    let mut interval = REPEAT_INTERVAL;
    match deleted {
        Ok(()) => {
            tracing::info!(
                namespace = pod.namespace,
                pod = pod.name,
                node = pod.node,
                "pod of the DaemonSet deleted"
            );
            if let Some(cut) = cut {
                writer.events.grace_period_cut(&pod, cut);
            }
        }
        // The cache will show another Evacuation or pod.
        Err(WriteError::Conflict | WriteError::Gone) => interval = CONFLICT_INTERVAL,
        Err(error) => {
            span.fail(error.outcome().as_str(), &error);
            tracing::info!(namespace = pod.namespace, pod = pod.name, %error, "pod of the DaemonSet not deleted; retrying");
        }
    }
    (evacuation.uid().unwrap_or_default(), Instant::now() + interval)
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

fn is_our_turn(evacuation: &Evacuation) -> bool {
    let status = evacuation.status.as_ref();
    let active = status.and_then(|status| status.active_evacuator_class.as_deref());
    active.is_some_and(is_daemon_set_evacuator)
}

/// The nodes that are drained, with their targets.
fn drained_nodes<'a>(maintenances: impl Iterator<Item = &'a NodeMaintenance>) -> BTreeMap<&'a str, DrainedNode<'a>> {
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
