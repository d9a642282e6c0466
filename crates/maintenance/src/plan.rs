//! The plan: from all that is known to what is to be done, as one pure function.
//!
//! [`plan`] is level-triggered. It compares what the maintenances want with what is there, and gives the difference: a plan that
//! was executed is empty the next time, and a leader that continues with the statuses of another one repeats nothing.
//! The caller executes the actions in order and makes a new plan when one fails.

pub mod action;
pub mod blockers;
pub mod concurrency;
pub mod conditions;
pub mod evacuations;
pub mod events;
pub mod gate;
pub mod isolation;
mod maintenance_conditions;
pub mod message;
pub mod phase;
pub mod progress;
mod starting;
mod status;
pub mod status_changes;
mod status_size;
pub mod upgrade_status;
mod view;

use std::collections::{BTreeMap, BTreeSet};

use headgate_core::clock::whole_seconds;
use headgate_core::node::Node;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::api::Stage;
use crate::api::names::NODE_LABEL;
use crate::automatic;
use crate::automatic::is_automatic_of;
use crate::deadline::hurries_from;
use crate::machine::DeletedMachine;
use crate::snapshot::{PodFacts, Snapshot};

use action::Action;
use conditions::NodePhase;
use isolation::Isolation;
use phase::{Maintenance, Phase};
use view::View;

/// What is to be done now, and when to look again where nothing else changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In the order in which they are to be done.
    pub actions: Vec<Action>,
    /// The next time at which the passing of time alone changes the plan.
    pub wake_at: Option<Timestamp>,
}

/// What is to be done now.
pub fn plan(snapshot: &Snapshot, now: Timestamp) -> Plan {
    let view = View::new(snapshot, whole_seconds(now));
    let nodes = node_changes(&view);
    let (requests, cancellations) = evacuation_changes(&view);
    let mut plan = Plan {
        actions: automatic::changes(snapshot, &view.nodes, view.now),
        wake_at: None,
    };
    for maintenance in &view.maintenances {
        let is_in_progress = matches!(maintenance.phase, Phase::Starting | Phase::Cordon | Phase::Drain);
        if is_in_progress && !maintenance.has_finalizer() {
            plan.actions.push(Action::AddFinalizer {
                maintenance: maintenance.name.to_owned(),
            });
        }
        if maintenance.is_deleted() && matches!(maintenance.object.spec.stage, Stage::Cordon | Stage::Drain) {
            plan.actions.push(Action::SetStageComplete {
                maintenance: maintenance.name.to_owned(),
            });
        }
    }
    let mut done = Vec::new();
    for maintenance in &view.maintenances {
        let is_completing = is_completing(maintenance, &nodes, &cancellations);
        let status = status::status(&view, maintenance, is_completing);
        plan.actions.extend(events::events(&view, maintenance, &status));
        let is_recorded = maintenance.object.status.as_ref() == Some(&status);
        if !is_recorded {
            plan.actions.push(Action::UpdateStatus {
                maintenance: maintenance.name.to_owned(),
                status: Box::new(status),
            });
        }
        let is_over = match maintenance.phase {
            Phase::Complete => !is_completing,
            Phase::Idle | Phase::DryRun => true,
            _ => false,
        };
        // The status keeps the finalizer from coming back, so it is written first.
        if maintenance.has_finalizer() && is_over && is_recorded {
            done.push(Action::RemoveFinalizer {
                maintenance: maintenance.name.to_owned(),
            });
        }
    }
    plan.actions.extend(nodes.into_values().flatten());
    plan.actions.extend(cancellations.into_iter().map(|(_, action)| action));
    plan.actions.extend(requests);
    plan.actions.extend(released_machines(&view));
    plan.actions.extend(done);
    let gates = view.gates.values().filter_map(|gate| gate.wake_at);
    let drained = view.maintenances.iter().filter(|one| one.phase == Phase::Drain);
    let hurried = drained.filter_map(|one| hurries_from(one.object));
    let hurried = hurried.filter(|from| *from > view.now);
    let leaving = view.progress.nodes().flat_map(|(node, _)| view.pods_of(node));
    let terminating = leaving
        .filter(|pod| pod.has_to_leave())
        .filter_map(|pod| pod.terminating_until);
    // A pod that is still there then is a blocker.
    let overdue = terminating.filter_map(|until| until.checked_add(SignedDuration::from_secs(1)).ok());
    let overdue = overdue.filter(|at| *at > view.now);
    plan.wake_at = gates.chain(hurried).chain(overdue).chain(view.starting_until).min();
    plan
}

/// What has to change on each Node. One with an empty list changes later.
fn node_changes<'a>(view: &View<'a>) -> BTreeMap<&'a str, Vec<Action>> {
    let uids: BTreeSet<_> = view.maintenances.iter().map(Maintenance::uid).collect();
    let mut wanted: BTreeMap<&str, (Isolation<'_>, NodePhase<'_>)> = BTreeMap::new();
    // Expected to be so at the deadline of their drain, whatever others say.
    let mut gone: BTreeSet<&str> = BTreeSet::new();
    for maintenance in &view.maintenances {
        for node in &maintenance.nodes {
            let drains = match maintenance.phase {
                // It is not why anything on the node is as it is.
                Phase::Idle | Phase::DryRun | Phase::Starting => continue,
                // What an undecodable one wants there is not its to undo.
                Phase::Complete if maintenance.is_completed() => continue,
                Phase::Complete => {
                    wanted.entry(node).or_default().0.is_uncordoned |= maintenance.uncordons();
                    continue;
                }
                Phase::Cordon => false,
                Phase::Drain => true,
            };
            let (isolation, phase) = wanted.entry(node).or_default();
            isolation.is_cordoned = true;
            let has_deadline = maintenance.object.spec.deadline.is_some();
            isolation.is_kept_from_scale_down |= !has_deadline;
            if has_deadline && drains {
                gone.insert(node);
            }
            if drains {
                isolation.drained_by.push(maintenance.uid());
            }
            let names = if !drains {
                &mut phase.cordoned_by
            } else if view.is_drained(node, maintenance.name) {
                &mut phase.drained
            } else {
                &mut phase.draining
            };
            names.push(maintenance.name);
        }
    }
    let starting = view.maintenances.iter();
    let starting = starting.filter(|one| starting::waited_for_until(one, view.now).is_some());
    let kept: BTreeSet<_> = starting.flat_map(|one| &one.nodes).map(String::as_str).collect();
    let undecodable = &view.snapshot.undecodable_maintenances;
    let pauses_upgrades = view.snapshot.pauses_upgrades;
    let mut changes = BTreeMap::new();
    for (name, node) in &view.nodes {
        let known = wanted.remove(name);
        let taint = node.maintenance_taint.as_ref();
        let is_tainted_by_unknown = taint.is_some_and(|taint| undecodable.contains_key(taint));
        let unknown = undecodable.values().map(String::as_str);
        let unknown: Vec<_> = unknown.filter(|name| conditions::is_named(node, name)).collect();
        // Nothing is undone that an undecodable maintenance may want.
        let is_isolated = known.as_ref().is_some_and(|(isolation, _)| isolation.is_cordoned);
        let is_of_unknown = is_tainted_by_unknown || !unknown.is_empty();
        if !undecodable.is_empty() && !is_isolated && (known.is_none() || is_of_unknown) {
            continue;
        }
        // A maintenance that is about to start takes it over: pods that came in between would have to leave again.
        if kept.contains(name) && !is_isolated && node.was_unschedulable.is_some() {
            changes.insert(*name, Vec::new());
            continue;
        }
        let (mut isolation, mut phase) = known.unwrap_or_default();
        isolation.is_kept_from_scale_down &= !gone.contains(*name);
        phase.unknown = unknown;
        let mut change = isolation.change(node, &uids);
        if is_tainted_by_unknown {
            change.taint = None;
        }
        let mut actions = Vec::new();
        if !change.is_empty() {
            let node = node.name.clone();
            actions.push(Action::UpdateNode { node, change });
        }
        actions.extend(conditions::node_conditions(node, &phase));
        actions.extend(
            upgrade_status::change(node, pauses_upgrades).map(|is_paused| Action::SetUpgradePaused {
                node: node.name.clone(),
                is_paused,
            }),
        );
        if !actions.is_empty() {
            changes.insert(*name, actions);
        }
    }
    changes
}

/// Evacuations that are to exist, and those of ours that are not, with the node of their pod where it is known.
fn evacuation_changes<'a>(view: &View<'a>) -> (Vec<Action>, Vec<(Option<&'a str>, Action)>) {
    let pods: BTreeMap<&str, &PodFacts> = view.snapshot.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
    let mut requests = Vec::new();
    for (node, _) in view.progress.nodes().filter(|(node, _)| view.is_open(node)) {
        for pod in view.pods_of(node).filter(|pod| view.is_targeted(pod)) {
            let existing = view.evacuations.get(pod.uid.as_str()).copied();
            requests.extend(evacuations::request(pod, existing, &view.snapshot.budgets));
        }
    }
    let mut cancellations = Vec::new();
    for (uid, evacuation) in &view.evacuations {
        let pod = pods.get(uid);
        // The Evacuation of a pod that has ended is the Evacuation controller's to remove. One that somebody deleted is created again.
        let is_ending = evacuations::is_ending(evacuation);
        let is_wanted = pod.is_some_and(|pod| pod.is_finished || (view.is_targeted(pod) && !is_ending));
        // An undecodable maintenance may want what no known one does.
        let is_known = pod.is_some() || view.snapshot.undecodable_maintenances.is_empty();
        if evacuations::is_ours(evacuation) && !is_wanted && is_known {
            let label = || evacuation.labels().get(NODE_LABEL);
            let node = pod.map(|pod| &pod.node).or_else(label);
            cancellations.push((node.map(String::as_str), evacuations::cancel(evacuation)));
        }
    }
    (requests, cancellations)
}

/// The Machines that wait for headgate no longer: their nodes are out of the load balancers, as the gates say, or gone.
fn released_machines<'a>(view: &'a View<'_>) -> impl Iterator<Item = Action> + 'a {
    // Whoever completes the maintenance of a node that is taken does not wait for it. One that is deleted is created again.
    let is_completed = |node: &Node| {
        let mut maintenances = view.maintenances.iter();
        maintenances.any(|one| one.phase == Phase::Complete && !one.is_deleted() && is_automatic_of(one.object, node))
    };
    let is_released = move |machine: &DeletedMachine| {
        let node = machine.node.as_str();
        let Some(known) = view.nodes.get(node).filter(|node| machine.is_of(node)) else {
            return true;
        };
        let has_gate = view.gates_of(node).next().is_some();
        (has_gate && view.is_open(node)) || is_completed(known)
    };
    let machines = view.snapshot.machines.iter().flatten();
    let released = machines.filter(move |machine| machine.is_held && is_released(machine));
    released.cloned().map(Action::ReleaseMachine)
}

/// Whether anything is still to be undone for a maintenance in the `Complete` stage. Once nothing was, what changes on its nodes is not its own.
fn is_completing(
    maintenance: &Maintenance<'_>,
    changes: &BTreeMap<&str, Vec<Action>>,
    cancellations: &[(Option<&str>, Action)],
) -> bool {
    let status = maintenance
        .object
        .status
        .iter()
        .flat_map(|status| &status.node_statuses);
    let nodes: BTreeSet<_> = status
        .map(|node| node.node_ref.name.as_str())
        .chain(maintenance.nodes.iter().map(String::as_str))
        .collect();
    // One without a status has done nothing, unless the status could not be written before it was deleted.
    let has_begun = maintenance.object.status.is_some() || maintenance.is_deleted();
    maintenance.phase == Phase::Complete
        && has_begun
        && !maintenance.is_completed()
        && (nodes.iter().any(|node| changes.contains_key(node))
            || cancellations
                .iter()
                .any(|(node, _)| node.is_none_or(|node| nodes.contains(node))))
}
