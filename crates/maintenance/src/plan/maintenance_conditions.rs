//! The conditions of a NodeMaintenance (ST-02). It has all of them from the first status on, so that a client that reads one of them never
//! takes a missing one for an answer.

use std::collections::BTreeSet;

use headgate_core::node::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::{LoadBalancerState, NodeMaintenanceStatus, Stage};

use super::blockers::bounded;
use super::conditions::{self, Conditions};
use super::message::{counted, room_message};
use super::phase::{Maintenance, Phase};
use super::view::{View, is_isolated};

const NO_NODES_MESSAGE: &str = "the selector matches no node";

/// The conditions of a maintenance whose other status is `status`. `is_completing` says that something is still to be undone for it.
pub(super) fn conditions_of(
    view: &View<'_>,
    maintenance: &Maintenance<'_>,
    previous: &NodeMaintenanceStatus,
    status: &NodeMaintenanceStatus,
    is_completing: bool,
) -> Vec<Condition> {
    let generation = maintenance.object.metadata.generation;
    let mut conditions = Conditions::new(&previous.conditions, generation, view.now);
    let (progressing, reason) = match maintenance.phase {
        Phase::Idle => (false, conditions::IDLE),
        Phase::DryRun => (false, "DryRun"),
        Phase::Complete if !is_completing => (false, conditions::COMPLETED),
        Phase::Starting | Phase::Complete if maintenance.uncordons() => (true, conditions::UNCORDON),
        Phase::Starting => (true, "Starting"),
        Phase::Cordon => (true, "Cordon"),
        Phase::Drain => (true, "Drain"),
        Phase::Complete => (true, "Completing"),
    };
    let unchanged = unchanged_nodes(view, maintenance, status).filter(|_| progressing);
    let message = waiting_for_room(view, maintenance).or_else(|| unchanged.clone());
    conditions.set(
        conditions::PROGRESSING,
        progressing,
        reason,
        message.unwrap_or_default(),
    );
    accepted(view, maintenance, previous, &mut conditions);
    all_nodes_selected(view, maintenance, previous, &mut conditions);
    blocked(view, maintenance, status, unchanged, &mut conditions);
    match maintenance.phase {
        Phase::Drain if maintenance.nodes_selected == 0 && !are_gone(view, maintenance, previous) => {
            for kind in [conditions::DRAINED, conditions::LOAD_BALANCER_OUT] {
                conditions.set(kind, false, conditions::NO_NODES, NO_NODES_MESSAGE.to_owned());
            }
        }
        Phase::Drain => drain_conditions(view, maintenance, status, &mut conditions),
        Phase::Complete if maintenance.has_started(Stage::Drain) => {
            let drained = conditions::is_true(&previous.conditions, conditions::DRAINED);
            let reason = if drained { "DrainCompleted" } else { "Cancelled" };
            conditions.set(conditions::DRAINED, drained, reason, String::new());
            conditions.set(conditions::LOAD_BALANCER_OUT, false, reason, String::new());
        }
        _ => {
            for kind in [conditions::DRAINED, conditions::LOAD_BALANCER_OUT] {
                conditions.set(kind, false, "NotStarted", "the stage Drain has not begun".to_owned());
            }
        }
    }
    conditions.finish()
}

fn accepted(
    view: &View<'_>,
    maintenance: &Maintenance<'_>,
    previous: &NodeMaintenanceStatus,
    conditions: &mut Conditions<'_>,
) {
    // Nodes that wait for room are selected, too.
    if maintenance.phase != Phase::Complete && maintenance.nodes_selected == 0 && !are_gone(view, maintenance, previous)
    {
        conditions.set(
            conditions::ACCEPTED,
            false,
            conditions::NO_NODES,
            NO_NODES_MESSAGE.to_owned(),
        );
    } else {
        conditions.set(conditions::ACCEPTED, true, "Accepted", String::new());
    }
}

fn all_nodes_selected(
    view: &View<'_>,
    maintenance: &Maintenance<'_>,
    previous: &NodeMaintenanceStatus,
    conditions: &mut Conditions<'_>,
) {
    let all = if maintenance.phase == Phase::Complete {
        // What changes after its end is not its own any more.
        conditions::is_true(&previous.conditions, conditions::ALL_NODES_SELECTED)
    } else {
        maintenance.nodes_selected > 0 && maintenance.nodes_selected == view.nodes.len()
    };
    let (reason, message) = if all {
        ("SelectorMatchesAll", "the selector matches every node of the cluster")
    } else {
        ("SelectorMatchesSome", "")
    };
    conditions.set(conditions::ALL_NODES_SELECTED, all, reason, message.to_owned());
}

/// What needs someone: pods that cannot leave, Nodes that cannot be changed, and load balancers that nothing confirmed within
/// `confirmationTimeoutSeconds`, or in half of the time until the deadline.
fn blocked(
    view: &View<'_>,
    maintenance: &Maintenance<'_>,
    status: &NodeMaintenanceStatus,
    unchanged: Option<String>,
    conditions: &mut Conditions<'_>,
) {
    let nodes = status
        .node_statuses
        .iter()
        .filter(|_| maintenance.phase != Phase::Complete);
    let pods: i32 = nodes.clone().map(|node| node.blockers_total).sum();
    let first = nodes.clone().find_map(|node| Some((node, node.blockers.first()?)));
    if let Some((node, blocker)) = first {
        let what = counted(usize::try_from(pods).unwrap_or_default());
        let message = format!(
            "{what} cannot leave, first {} on {}: {}",
            blocker.pod_ref, node.node_ref.name, blocker.message
        );
        conditions.set(conditions::BLOCKED, true, blocker.reason.as_str(), message);
        return;
    }
    if let Some(message) = unchanged.filter(|_| maintenance.phase != Phase::Complete) {
        conditions.set(conditions::BLOCKED, true, "NodeWriteFailed", message);
        return;
    }
    let is_late = |node: &&str| {
        view.gates
            .get(&(*node, maintenance.name))
            .is_some_and(|gate| gate.is_late)
    };
    let late: Vec<_> = maintenance.nodes.iter().map(String::as_str).filter(is_late).collect();
    if late.is_empty() {
        conditions.set(conditions::BLOCKED, false, "NotBlocked", String::new());
    } else {
        let timeout = maintenance.object.spec.load_balancer.confirmation_timeout_seconds;
        let has_deadline = |node: &&str| view.deadlines.contains_key(node) || view.overdue.contains_key(node);
        let or_half = if late.iter().any(has_deadline) {
            ", or half of the time until the deadline"
        } else {
            ""
        };
        let what = format!("not confirmed out of the load balancers within {timeout} s{or_half}");
        let message = first_of(&what, &late);
        conditions.set(conditions::BLOCKED, true, "LoadBalancerNotConfirmed", message);
    }
}

/// The nodes that the API server does not let be changed for a maintenance, and why the first one; `None` if there is none.
fn unchanged_nodes(view: &View<'_>, maintenance: &Maintenance<'_>, status: &NodeMaintenanceStatus) -> Option<String> {
    let refused = &view.snapshot.refused_nodes;
    let is_changed = |node: &Node| match maintenance.phase {
        Phase::Cordon => node.unschedulable,
        Phase::Drain => is_isolated(node),
        // Whatever is left is to be undone.
        Phase::Complete => false,
        Phase::Idle | Phase::DryRun | Phase::Starting => true,
    };
    let undone = status
        .node_statuses
        .iter()
        .filter(|_| maintenance.phase == Phase::Complete);
    let undone = undone.map(|node| &node.node_ref.name);
    let nodes: BTreeSet<_> = undone.chain(&maintenance.nodes).map(String::as_str).collect();
    let unchanged = nodes.into_iter().filter(|node| {
        let known = view.nodes.get(node).filter(|node| !is_changed(node));
        known.is_some() && refused.contains_key(*node)
    });
    let unchanged: Vec<_> = unchanged.collect();
    let why = refused.get(*unchanged.first()?)?;
    let nodes = first_of("Nodes that cannot be changed", &unchanged);
    Some(bounded(format!("{nodes}: {why}")))
}

/// Whether the selector matches no node any more because the nodes were deleted.
fn are_gone(view: &View<'_>, maintenance: &Maintenance<'_>, previous: &NodeMaintenanceStatus) -> bool {
    let known = &previous.node_statuses;
    let was_drained = || conditions::is_true(&previous.conditions, conditions::DRAINED);
    previous.observed_generation == maintenance.object.metadata.generation
        && (!known.is_empty() || was_drained())
        && known
            .iter()
            .all(|node| !view.nodes.contains_key(node.node_ref.name.as_str()))
}

fn drain_conditions(
    view: &View<'_>,
    maintenance: &Maintenance<'_>,
    status: &NodeMaintenanceStatus,
    conditions: &mut Conditions<'_>,
) {
    let waiting = |holds: &dyn Fn(&str) -> bool| -> Vec<&str> {
        maintenance
            .nodes
            .iter()
            .map(String::as_str)
            .filter(|node| !holds(node))
            .collect()
    };
    let not_drained = waiting(&|node| view.is_drained(node, maintenance.name));
    match (status.pods_left, not_drained.as_slice()) {
        (_, []) if let Some(why) = waiting_for_room(view, maintenance) => {
            conditions.set(conditions::DRAINED, false, "WaitingForRoom", why);
        }
        (_, []) => conditions.set(conditions::DRAINED, true, "DrainCompleted", String::new()),
        (0, nodes) => conditions.set(
            conditions::DRAINED,
            false,
            "LoadBalancer",
            first_of("in a load balancer", nodes),
        ),
        (pods, nodes) => {
            let verb = if pods == 1 { "has" } else { "have" };
            let pods = counted(usize::try_from(pods).unwrap_or_default());
            let message = first_of(&format!("{pods} {verb} to leave"), nodes);
            conditions.set(conditions::DRAINED, false, "PodsLeft", message);
        }
    }
    let state = |node: &str| view.gates.get(&(node, maintenance.name)).map(|gate| gate.status.state);
    let not_out = waiting(&|node| matches!(state(node), Some(LoadBalancerState::Out | LoadBalancerState::Draining)));
    let timed_out = not_out
        .iter()
        .any(|node| state(node) == Some(LoadBalancerState::TimedOut));
    match not_out.as_slice() {
        [] if let Some(why) = waiting_for_room(view, maintenance) => {
            conditions.set(conditions::LOAD_BALANCER_OUT, false, "WaitingForRoom", why);
        }
        [] => conditions.set(conditions::LOAD_BALANCER_OUT, true, "Confirmed", String::new()),
        nodes => {
            let reason = if timed_out { "TimedOut" } else { "Waiting" };
            conditions.set(
                conditions::LOAD_BALANCER_OUT,
                false,
                reason,
                first_of("not confirmed", nodes),
            );
        }
    }
}

/// The nodes that wait for room, and for which; `None` if none does.
fn waiting_for_room(view: &View<'_>, maintenance: &Maintenance<'_>) -> Option<String> {
    let nodes: Vec<_> = maintenance.waiting_for_room.iter().map(String::as_str).collect();
    let why = room_message(view.snapshot.max_concurrent_nodes, maintenance);
    (!nodes.is_empty()).then(|| first_of(&why, &nodes))
}

/// A message with the first nodes that it is about.
fn first_of(what: &str, nodes: &[&str]) -> String {
    const NAMED: usize = 5;
    let first = nodes[..nodes.len().min(NAMED)].join(", ");
    match nodes.len() {
        more if more > NAMED => format!("{what}: {first} and {} more nodes", more - NAMED),
        _ => format!("{what}: {first}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_five_nodes_at_most() {
        let nodes = ["a", "b", "c", "d", "e", "f", "g"];
        for (count, expected) in [
            (1, "late: a"),
            (5, "late: a, b, c, d, e"),
            (7, "late: a, b, c, d, e and 2 more nodes"),
        ] {
            assert_eq!(first_of("late", &nodes[..count]), expected);
        }
    }
}
