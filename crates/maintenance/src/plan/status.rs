//! The status of a NodeMaintenance (ST-01, ST-02, DT-07).

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::names::MAX_NODES;
use crate::api::{
    BlockedPod, BlockerReason, NodeMaintenanceNodeStatus, NodeMaintenanceStatus, NodeReference, Stage, StageStatus,
};
use crate::deadline;
use crate::drain_plan::DrainTargets;
use crate::snapshot::PodFacts;

use super::blockers::{blocker, bounded, listed};
use super::maintenance_conditions::conditions_of;
use super::message::{counted, drain_message, hurried_message, room_message};
use super::phase::{Maintenance, Phase};
use super::status_size::{list_blockers_while_there_is_room, share_long_targets};
use super::view::{View, previous_status};

/// The status of a maintenance now. `is_completing` says that something is still to be undone for it.
pub(super) fn status(view: &View<'_>, maintenance: &Maintenance<'_>, is_completing: bool) -> NodeMaintenanceStatus {
    let previous = maintenance.object.status.clone().unwrap_or_default();
    let (node_statuses, target_sets) = match maintenance.phase {
        // Still needed to know what is to be undone.
        Phase::Complete if is_completing => (previous.node_statuses.clone(), previous.target_sets.clone()),
        Phase::Idle | Phase::Starting | Phase::Complete => (Vec::new(), Vec::new()),
        Phase::DryRun | Phase::Cordon | Phase::Drain => {
            let nodes = listed_nodes(maintenance).into_iter();
            let mut statuses: Vec<_> = nodes.map(|node| node_status(view, maintenance, node)).collect();
            let target_sets = share_long_targets(&mut statuses);
            (statuses, target_sets)
        }
    };
    let pods_left = node_statuses
        .iter()
        .map(|node| node.pods_pending_evacuation + node.pods_evacuating)
        .sum();
    let is_drained = |node: &&String| maintenance.phase == Phase::Drain && view.is_drained(node, maintenance.name);
    let participant = view.progress.participant(maintenance.name);
    let mut status = NodeMaintenanceStatus {
        observed_generation: maintenance.object.metadata.generation,
        stage_statuses: stage_statuses(view, maintenance, &previous),
        drain_plan: maintenance.plan.entries().to_vec(),
        drain_plan_index: participant.and_then(|one| i32::try_from(one.cursor).ok()),
        selected_nodes: count(maintenance.nodes_selected),
        drained_nodes: count(maintenance.nodes.iter().filter(is_drained).count()),
        pods_left,
        target_sets,
        node_statuses,
        conditions: Vec::new(),
    };
    list_blockers_while_there_is_room(&mut status);
    status.conditions = conditions_of(view, maintenance, &previous, &status, is_completing);
    status
}

fn stage_statuses(view: &View<'_>, maintenance: &Maintenance<'_>, before: &NodeMaintenanceStatus) -> Vec<StageStatus> {
    // Cordon always runs before Drain, even where it was not asked for.
    let started: &[Stage] = match maintenance.phase {
        Phase::Idle | Phase::Starting | Phase::DryRun => &[],
        Phase::Cordon => &[Stage::Cordon],
        Phase::Drain => &[Stage::Cordon, Stage::Drain],
        Phase::Complete => &[Stage::Complete],
    };
    let mut stages = before.stage_statuses.clone();
    for stage in started {
        if !stages.iter().any(|before| before.name == *stage) {
            stages.push(StageStatus {
                name: *stage,
                start_timestamp: Time(view.now),
            });
        }
    }
    stages
}

/// The nodes that the status has an entry of: those under maintenance, and as many as fit of those that wait for room.
fn listed_nodes<'a>(maintenance: &'a Maintenance<'_>) -> BTreeSet<&'a String> {
    let room = MAX_NODES.saturating_sub(maintenance.nodes.len());
    let waiting = maintenance.waiting_for_room.iter().take(room);
    maintenance.nodes.iter().chain(waiting).collect()
}

fn node_status(view: &View<'_>, maintenance: &Maintenance<'_>, node: &str) -> NodeMaintenanceNodeStatus {
    if maintenance.waiting_for_room.contains(node) {
        // Its pods are not read before it is under maintenance.
        return NodeMaintenanceNodeStatus {
            node_ref: NodeReference { name: node.to_owned() },
            drain_message: room_message(view.snapshot.max_concurrent_nodes, maintenance),
            ..NodeMaintenanceNodeStatus::default()
        };
    }
    let pods: Vec<_> = view.pods_of(node).collect();
    let has_evacuation = |pod: &&PodFacts| view.evacuations.contains_key(pod.uid.as_str());
    let (evacuating, pending): (Vec<&PodFacts>, Vec<_>) = pods
        .iter()
        .copied()
        .filter(|pod| pod.has_to_leave())
        .partition(has_evacuation);
    let previous = previous_status(maintenance, node);
    let gate = view.gates.get(&(node, maintenance.name));
    let targets = match maintenance.phase {
        Phase::Drain => view.progress.targets(node).cloned().unwrap_or_default(),
        // What a drain would begin with.
        Phase::DryRun => maintenance.plan.targets(0),
        _ => DrainTargets::default(),
    };
    let (blockers, blockers_total) = match maintenance.phase {
        Phase::Drain => {
            // One that terminates for another reason may have no Evacuation, as where its namespace is being deleted.
            let refused = &view.snapshot.refused_evacuations;
            let is_leaving = |pod: &&&PodFacts| pod.terminating_until.is_some() || refused.contains_key(&pod.uid);
            let leaving: Vec<_> = evacuating
                .iter()
                .chain(pending.iter().filter(is_leaving))
                .copied()
                .collect();
            blockers(view, node, &leaving, previous)
        }
        Phase::DryRun => blockers(view, node, &pending, previous),
        _ => (Vec::new(), 0),
    };
    NodeMaintenanceNodeStatus {
        node_ref: NodeReference { name: node.to_owned() },
        drain_targets: targets.entries().collect(),
        target_set: None,
        drain_message: bounded(message(view, maintenance, node, pending.len() + evacuating.len())),
        pods_pending_evacuation: count(pending.len()),
        pods_evacuating: count(evacuating.len()),
        pods_exempt: count(pods.iter().filter(|pod| pod.is_exempt()).count()),
        pods_unsupported: count(
            pods.iter()
                .filter(|pod| pod.pod_type == crate::api::PodType::Static)
                .count(),
        ),
        load_balancer: gate.map(|gate| gate.status.clone()),
        blockers,
        blockers_total,
    }
}

fn message(view: &View<'_>, maintenance: &Maintenance<'_>, node: &str, pods: usize) -> String {
    match (maintenance.phase, view.progress.participant(maintenance.name)) {
        (Phase::DryRun, _) => format!("Dry run: {} would leave", counted(pods)),
        (Phase::Drain, Some(own)) => {
            let gone_at = || deadline::of_node(view.nodes.get(node)?, &view.snapshot.maintenances);
            let waiting = view.progress.on(node).find_map(|one| {
                let gate = view.gates.get(&(node, one.name.as_str()))?;
                (!gate.is_open).then_some((one.name.as_str(), gate.waiting_for.as_str()))
            });
            match waiting.filter(|_| !view.is_open(node)) {
                // Pods that leave already go on; a closed gate holds the others.
                Some((name, what)) if name == own.name => format!("Waiting for {what}"),
                Some((name, what)) => format!("Waiting for {what} ({name})"),
                None => match gone_at().filter(|_| view.hurried.contains(node) && pods > 0) {
                    Some(at) => hurried_message(at),
                    None => drain_message(&view.progress, own, node, &view.busy),
                },
            }
        }
        _ => String::new(),
    }
}

fn blockers(
    view: &View<'_>,
    node: &str,
    pods: &[&PodFacts],
    previous: Option<&NodeMaintenanceNodeStatus>,
) -> (Vec<crate::api::Blocker>, i32) {
    let is_ready = view.nodes.get(node).is_some_and(|node| node.ready);
    let found = pods
        .iter()
        .filter_map(|pod| {
            let evacuation = view.evacuations.get(pod.uid.as_str()).copied();
            let refused = view.snapshot.refused_evacuations.get(&pod.uid);
            let (reason, message) = match refused.filter(|_| evacuation.is_none() && pod.terminating_until.is_none()) {
                Some(why) => (BlockerReason::EvictionFailed, bounded(format!("no Evacuation: {why}"))),
                None => blocker(pod, evacuation, &view.snapshot.budgets, is_ready, view.now)?,
            };
            let pod_ref = BlockedPod {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
            };
            Some((pod_ref, reason, message))
        })
        .collect();
    listed(found, previous.map_or(&[], |previous| &previous.blockers), view.now)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
