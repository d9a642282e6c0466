//! The spans of a turn and of its writes.

use std::collections::{BTreeMap, BTreeSet};

use headgate_core::telemetry::{Reconcile, ReconcileSpan, Reconciled};
use headgate_kubernetes::leader::Term;

use super::evacuation_writes::name_of;
use crate::plan::action::Action;
use crate::snapshot::PodFacts;

/// The span of a turn, which counts the Nodes that it changes.
pub(super) fn turn_span(term: &Term, actions: &[Action]) -> ReconcileSpan {
    ReconcileSpan::start(Reconciled::Maintenances, || {
        let nodes: BTreeSet<_> = actions.iter().filter_map(node_of).collect();
        Reconcile {
            term: Some(term.number()),
            nodes: Some(nodes.len()),
            ..Reconcile::default()
        }
    })
}

/// The span of one write for a maintenance.
pub(super) fn action_span(term: &Term, action: &Action) -> ReconcileSpan {
    let maintenance = match action {
        Action::CreateMaintenance { maintenance, .. } => maintenance.metadata.name.as_deref(),
        Action::AddFinalizer { maintenance }
        | Action::SetDeadline { maintenance, .. }
        | Action::DeleteMaintenance { maintenance }
        | Action::SetStageComplete { maintenance }
        | Action::UpdateStatus { maintenance, .. }
        | Action::RemoveFinalizer { maintenance } => Some(maintenance.as_str()),
        _ => None,
    };
    span(term, maintenance)
}

/// The span of the removal of a finalizer.
pub(super) fn finalizer_span(term: &Term, maintenance: &str) -> ReconcileSpan {
    span(term, Some(maintenance))
}

fn span(term: &Term, maintenance: Option<&str>) -> ReconcileSpan {
    ReconcileSpan::start(Reconciled::Maintenance, || Reconcile {
        term: Some(term.number()),
        maintenance,
        ..Reconcile::default()
    })
}

/// The span of one write of an Evacuation; its pod is known if it is created.
pub(super) fn evacuation_span(term: &Term, action: &Action, pods: &BTreeMap<&str, &PodFacts>) -> ReconcileSpan {
    ReconcileSpan::start(Reconciled::Evacuation, || {
        let (namespace, pod) = match action {
            Action::CreateEvacuation { evacuation } => {
                let pod = pods.get(evacuation.spec.pod_ref.uid.as_str());
                (evacuation.metadata.namespace.as_deref(), pod)
            }
            Action::AddInstigator { evacuation }
            | Action::RemoveInstigator { evacuation }
            | Action::DeleteEvacuation { evacuation } => (Some(evacuation.namespace.as_str()), None),
            _ => (None, None),
        };
        Reconcile {
            term: Some(term.number()),
            node: pod.map(|pod| pod.node.as_str()),
            namespace,
            evacuation: Some(name_of(action)),
            pod: pod.map(|pod| pod.name.as_str()),
            ..Reconcile::default()
        }
    })
}

fn node_of(action: &Action) -> Option<&str> {
    match action {
        Action::UpdateNode { node, .. }
        | Action::UpdateNodeConditions { node, .. }
        | Action::SetUpgradePaused { node, .. } => Some(node),
        _ => None,
    }
}
