//! The loop of the evacuator `headgate.dev/daemonset`. What it does for one Evacuation is `evacuation::daemon_set`'s to decide.
//!
//! Targets are those in the statuses of maintenances in the `Drain` stage, which the maintenance controller wrote.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use headgate_core::clock::{Clock, whole_seconds};
use kube::ResourceExt as _;
use tokio::time::{Instant, sleep, sleep_until};

use super::MaintenanceContext;
use super::caches::Caches;
use super::evacuation_span::evacuation_span;
use super::grace_periods::GracePeriodCut;
use super::writer::{WriteError, Writer};
use crate::api::names::is_daemon_set_evacuator;
use crate::api::{Evacuation, EvacuationStatus, NodeMaintenance, Stage};
use crate::deadline;
use crate::drain_plan::DrainTargets;
use crate::evacuation::daemon_set::{DaemonSetStep, NodeState, evacuate};
use crate::snapshot::PodFacts;

/// Between two turns, so that changes in quick succession share one.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// Until a pod that does not terminate is deleted again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(15);
const RESYNC_INTERVAL: Duration = Duration::from_mins(5);

/// The evacuator.
pub(super) struct DaemonSetEvacuator {
    caches: Caches,
    writer: Writer,
    clock: Clock,
    /// When the pod of an Evacuation, by UID, may be deleted again.
    repeat_at: HashMap<String, Instant>,
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
    pub(super) fn new(caches: Caches, writer: Writer, context: &MaintenanceContext) -> Self {
        Self {
            caches,
            writer,
            clock: context.clock.clone(),
            repeat_at: HashMap::new(),
        }
    }

    /// Runs until it is aborted.
    pub(super) async fn run(mut self) {
        loop {
            let due = self.due();
            for deletion in due {
                self.delete(deletion).await;
            }
            let wake_at = self.repeat_at.values().min().copied();
            let wake_at = wake_at.unwrap_or_else(|| Instant::now() + RESYNC_INTERVAL);
            sleep(MIN_INTERVAL).await;
            let caches = &mut self.caches;
            tokio::select! {
                Ok(()) = caches.evacuations.changed() => {}
                Ok(()) = caches.maintenances.changed() => {}
                Ok(()) = caches.nodes.changed() => {}
                Ok(()) = caches.pods.changed() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    fn due(&mut self) -> Vec<Deletion> {
        let now = self.clock.now();
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
            if self.repeat_at.contains_key(&evacuation.uid().unwrap_or_default()) {
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

    /// Writes the progress, then deletes the pod.
    async fn delete(&mut self, deletion: Deletion) {
        let Deletion {
            evacuation,
            status,
            pod,
            cut,
        } = deletion;
        let deleted = async {
            self.writer.write_evacuation_status(&evacuation, status).await?;
            self.writer.delete_pod(&pod, cut).await
        };
        let span = evacuation_span(self.writer.term.number(), &evacuation, Some(&pod));
        let deleted = span.run(deleted).await;
        match deleted {
            Ok(()) => {
                tracing::info!(
                    namespace = pod.namespace,
                    pod = pod.name,
                    node = pod.node,
                    "pod of the DaemonSet deleted"
                );
                if let Some(cut) = cut {
                    self.writer.events.grace_period_cut(&pod, cut);
                }
                let repeat_at = Instant::now() + REPEAT_INTERVAL;
                self.repeat_at.insert(evacuation.uid().unwrap_or_default(), repeat_at);
            }
            // The cache will show another Evacuation or pod.
            Err(WriteError::Conflict | WriteError::Gone) => {}
            Err(error) => {
                span.fail(error.outcome().as_str(), &error);
                tracing::info!(namespace = pod.namespace, pod = pod.name, %error, "pod of the DaemonSet not deleted; retrying");
                let repeat_at = Instant::now() + REPEAT_INTERVAL;
                self.repeat_at.insert(evacuation.uid().unwrap_or_default(), repeat_at);
            }
        }
    }
}

fn is_our_turn(evacuation: &Evacuation) -> bool {
    let status = evacuation.status.as_ref();
    let active = status.and_then(|status| status.active_evacuator_class.as_deref());
    active.is_some_and(is_daemon_set_evacuator)
}

/// The nodes that are drained, with their targets.
fn drained_nodes<'a>(maintenances: impl Iterator<Item = &'a NodeMaintenance>) -> BTreeMap<&'a str, DrainedNode<'a>> {
    let mut draining: Vec<_> = maintenances
        .filter(|one| one.spec.stage == Stage::Drain && !one.spec.dry_run && one.metadata.deletion_timestamp.is_none())
        .collect();
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
