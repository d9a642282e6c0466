//! The spans of a turn and of its writes.

use std::collections::{BTreeMap, BTreeSet};

use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled};
use headgate_kubernetes::leader::Term;

use crate::plan::action::Action;
use crate::snapshot::PodFacts;

/// What a write of an Evacuation writes.
pub(in crate::controller) const EVACUATION: &str = "evacuation";

/// The span of a turn, which counts the Nodes that it changes.
pub(super) fn turn_span(term: &Term, actions: &[Action]) -> ReconcileSpan {
    ReconcileSpan::start(Reconciled::Maintenances, || {
        let nodes: BTreeSet<_> = actions.iter().filter_map(Action::changed_node).collect();
        Reconcile {
            term: Some(term.number()),
            nodes: Some(nodes.len()),
            ..Reconcile::default()
        }
    })
}

/// The span of one write, with the pod of an Evacuation if it is on a maintained node.
pub(super) fn action_span(term: &Term, action: &Action, pods: &BTreeMap<&str, &PodFacts>) -> ReconcileSpan {
    let mut reconcile = Reconcile {
        term: Some(term.number()),
        ..Reconcile::default()
    };
    let mut reconciled = Reconciled::Maintenance;
    let (_, name) = written_object(action);
    match action {
        Action::ChangeEvacuation { evacuation, .. } => {
            let pod = pods.get(evacuation.spec.pod_ref.uid.as_str());
            reconciled = Reconciled::Evacuation;
            reconcile.evacuation = Some(name);
            reconcile.namespace = evacuation.metadata.namespace.as_deref();
            reconcile.node = pod.map(|pod| pod.node.as_str());
            reconcile.pod = pod.map(|pod| pod.name.as_str());
        }
        Action::ReleaseMachine(_) => {}
        _ => reconcile.maintenance = Some(name),
    }
    ReconcileSpan::start(reconciled, || reconcile)
}

/// What an action writes, for the log, and the name of its object.
pub(super) fn written_object(action: &Action) -> (&'static str, &str) {
    match action {
        Action::CreateMaintenance { maintenance, .. } => {
            ("creation", maintenance.metadata.name.as_deref().unwrap_or_default())
        }
        Action::SetDeadline { maintenance, .. } => ("deadline", maintenance),
        Action::DeleteMaintenance { maintenance } => ("deletion", maintenance),
        Action::AddFinalizer { maintenance } | Action::RemoveFinalizer { maintenance } => ("finalizer", maintenance),
        Action::SetStageComplete { maintenance } => ("stage", maintenance),
        Action::UpdateStatus { maintenance, .. } => ("status", maintenance),
        Action::RecordEvent(event) => ("event", &event.maintenance),
        Action::ReleaseMachine(machine) => ("machine", &machine.name),
        Action::UpdateNode { node, .. }
        | Action::UpdateNodeConditions { node, .. }
        | Action::SetUpgradePaused { node, .. } => ("node", node),
        Action::ChangeEvacuation { evacuation, .. } => {
            (EVACUATION, evacuation.metadata.name.as_deref().unwrap_or_default())
        }
    }
}

/// What identifies a write while plans ask for it: what it writes, and the name of its object, for an Evacuation the UID of its pod.
pub(in crate::controller) fn write_key(action: &Action) -> (&'static str, String) {
    let (what, name) = written_object(action);
    (what, action.evacuated_pod().unwrap_or(name).to_owned())
}
