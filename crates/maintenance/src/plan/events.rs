//! The events of a maintenance: each is recorded once, with the status that shows the same.

use crate::api::{LoadBalancerState, NodeMaintenanceStatus};
use crate::drain_plan::DrainTargets;

use super::action::{Action, Event, EventReason};
use super::conditions::{self, is_true};
use super::message::named;
use super::phase::{Maintenance, Phase, is_completed};
use super::view::{View, previous_status};

/// What became new with `status`.
pub(super) fn events(view: &View<'_>, maintenance: &Maintenance<'_>, status: &NodeMaintenanceStatus) -> Vec<Action> {
    let before = maintenance.object.status.clone().unwrap_or_default();
    let mut events = Vec::new();
    let mut record = |node: Option<&str>, reason, note| {
        events.push(Action::RecordEvent(Event {
            maintenance: maintenance.name.to_owned(),
            node: node.map(str::to_owned),
            reason,
            note,
        }));
    };
    for stage in &status.stage_statuses {
        if !before.stage_statuses.iter().any(|started| started.name == stage.name) {
            let waiting = match maintenance.waiting_for_room.len() {
                0 => String::new(),
                nodes => format!(" ({nodes} waiting for room)"),
            };
            let note = format!(
                "Stage {} started on {} nodes{waiting}",
                stage.name.as_str(),
                maintenance.nodes.len()
            );
            record(None, EventReason::StageStarted, note);
        }
    }
    let became = |kind| is_true(&status.conditions, kind) && !is_true(&before.conditions, kind);
    if became(conditions::ALL_NODES_SELECTED) {
        let note =
            "The selector matches every node of the cluster, which may leave it in a state that cannot be recovered";
        record(None, EventReason::AllNodesSelected, note.to_owned());
    }
    if maintenance.phase == Phase::Drain {
        fast_forwards(view, maintenance, &mut record);
        let is_timed_out = |state| state == LoadBalancerState::TimedOut;
        for node in &status.node_statuses {
            let name = node.node_ref.name.as_str();
            let now = node
                .load_balancer
                .as_ref()
                .is_some_and(|status| is_timed_out(status.state));
            let reason = view
                .gates
                .get(&(name, maintenance.name))
                .and_then(|gate| gate.opened_without.as_deref());
            let Some(reason) = reason else { continue };
            let (kind, note) = if now {
                let note = format!("Pods leave node {name} without a confirmation; it waited for {reason}");
                (EventReason::LoadBalancerNotConfirmed, note)
            } else {
                let note = format!("Pods leave node {name} after connectionsTimeoutSeconds: {reason}");
                (EventReason::ConnectionsNotDrained, note)
            };
            record(Some(name), kind, note);
        }
        if became(conditions::DRAINED) {
            let note = match status.selected_nodes {
                0 => "All pods have left; the nodes are gone".to_owned(),
                nodes => format!("All pods have left {nodes} nodes"),
            };
            record(None, EventReason::Drained, note);
        }
    }
    if is_completed(status) && !is_completed(&before) {
        record(None, EventReason::Completed, "The maintenance is over".to_owned());
    }
    events
}

/// A maintenance that is new on a node which is further on than its own plan (DT-05).
fn fast_forwards(
    view: &View<'_>,
    maintenance: &Maintenance<'_>,
    record: &mut impl FnMut(Option<&str>, EventReason, String),
) {
    let Some(own) = view.progress.participant(maintenance.name) else {
        return;
    };
    for node in &own.nodes {
        let is_new = previous_status(maintenance, node)
            .is_none_or(|status| status.drain_targets.is_empty() && status.target_set.is_none());
        let position = view.progress.targets(node).and_then(DrainTargets::position);
        if is_new && position > Some(own.position()) {
            let others = view.progress.on(node).filter(|other| other.name != own.name);
            let ahead: Vec<_> = others.filter(|other| Some(other.position()) >= position).collect();
            // The maintenance that raised the targets may be gone.
            let because = if ahead.is_empty() {
                String::new()
            } else {
                format!(", because of {}", named(&ahead, own))
            };
            let note = format!(
                "Node {node} is further on than this drain plan{because}; pods of earlier entries leave at once"
            );
            record(Some(node), EventReason::FastForwarded, note);
        }
    }
}
