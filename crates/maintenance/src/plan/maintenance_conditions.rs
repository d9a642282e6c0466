//! Which conditions a NodeMaintenance has (ST-02).

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::names::MAX_NODES;
use crate::api::{LoadBalancerState, NodeMaintenanceStatus, Stage};

use super::conditions::{self, Conditions};
use super::message::counted;
use super::phase::{Maintenance, Phase};
use super::view::View;

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
        Phase::Idle => (false, "Idle"),
        Phase::DryRun => (false, "DryRun"),
        Phase::TooManyNodes => (false, conditions::TOO_MANY_NODES),
        Phase::Starting => (true, "Starting"),
        Phase::Cordon => (true, "Cordon"),
        Phase::Drain => (true, "Drain"),
        Phase::Complete if is_completing => (true, "Completing"),
        Phase::Complete => (false, conditions::COMPLETED),
    };
    let message = match maintenance.phase {
        Phase::TooManyNodes => too_many(maintenance),
        _ => String::new(),
    };
    conditions.set(conditions::PROGRESSING, progressing, reason, message);
    match maintenance.phase {
        Phase::TooManyNodes if maintenance.object.spec.stage == Stage::Drain => {
            not_drained(maintenance, &mut conditions);
        }
        Phase::Drain if maintenance.has_too_many_nodes() => not_drained(maintenance, &mut conditions),
        Phase::Drain if maintenance.nodes.is_empty() && !are_gone(view, maintenance, previous) => {
            not_drained(maintenance, &mut conditions);
        }
        Phase::Drain => drain_conditions(view, maintenance, status, &mut conditions),
        Phase::Complete => {
            let drained = conditions::is_true(&previous.conditions, conditions::DRAINED);
            if maintenance.has_started(Stage::Drain) {
                conditions.set(
                    conditions::DRAINED,
                    drained,
                    if drained { "DrainCompleted" } else { "Cancelled" },
                    String::new(),
                );
            }
        }
        _ => {}
    }
    if maintenance.phase != Phase::Complete {
        let all: BTreeSet<_> = view.nodes.keys().copied().collect();
        if maintenance.nodes_selected > 0 && maintenance.nodes_selected == all.len() {
            let message = "the selector matches every node of the cluster".to_owned();
            conditions.set(conditions::ALL_NODES_SELECTED, true, "SelectorMatchesAll", message);
        }
        if maintenance.has_too_many_nodes() {
            conditions.set(conditions::TOO_MANY_NODES, true, "LimitExceeded", too_many(maintenance));
        }
    }
    conditions.finish()
}

/// The conditions of a drain that does not have the nodes that its selector asks for.
fn not_drained(maintenance: &Maintenance<'_>, conditions: &mut Conditions<'_>) {
    let (reason, message) = if maintenance.has_too_many_nodes() {
        (conditions::TOO_MANY_NODES, too_many(maintenance))
    } else {
        (conditions::NO_NODES, "the selector matches no node".to_owned())
    };
    conditions.set(conditions::DRAINED, false, reason, message.clone());
    conditions.set(conditions::LOAD_BALANCER_OUT, false, reason, message);
}

fn too_many(maintenance: &Maintenance<'_>) -> String {
    let what = if maintenance.nodes.is_empty() {
        "none is maintained".to_owned()
    } else {
        format!("only the {} that it had stay in maintenance", maintenance.nodes.len())
    };
    let selected = maintenance.nodes_selected;
    format!("the selector matches {selected} nodes, and {MAX_NODES} are allowed; {what}")
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
    let not_drained = waiting(&|node| view.is_drained(node));
    match (status.pods_left, not_drained.as_slice()) {
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
    let state = |node: &str| view.gates.get(&(maintenance.name, node)).map(|gate| gate.status.state);
    let not_out = waiting(&|node| matches!(state(node), Some(LoadBalancerState::Out | LoadBalancerState::Draining)));
    let timed_out = not_out
        .iter()
        .any(|node| state(node) == Some(LoadBalancerState::TimedOut));
    match not_out.as_slice() {
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

/// A message with the first nodes that it is about.
fn first_of(what: &str, nodes: &[&str]) -> String {
    const NAMED: usize = 5;
    let first = nodes[..nodes.len().min(NAMED)].join(", ");
    match nodes.len() {
        more if more > NAMED => format!("{what}: {first} and {} more nodes", more - NAMED),
        _ => format!("{what}: {first}"),
    }
}
