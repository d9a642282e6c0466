//! What is done for a maintenance: its stage, with deletion, dry runs and the finalizer (NM-07 to NM-09).

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::names::{COMPLETION_FINALIZER, MAX_NODES};
use crate::api::{NodeMaintenance, NodeMaintenanceStatus, Stage};
use crate::drain_plan::DrainPlan;
use crate::selection::selects;
use crate::snapshot::NodeFacts;

/// What is done for a maintenance.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// Neither nodes nor pods are changed.
    Idle,
    /// Only the status shows what would be done.
    DryRun,
    /// The finalizer is missing, and comes first.
    Starting,
    /// Its nodes are kept unschedulable.
    Cordon,
    /// And their pods leave.
    Drain,
    /// What was done is undone.
    Complete,
}

/// A maintenance with what follows from its object and the nodes that exist.
#[derive(Clone, Debug)]
pub struct Maintenance<'a> {
    /// The NodeMaintenance as it was last read.
    pub object: &'a NodeMaintenance,
    /// The `metadata.name`, empty where it is missing.
    pub name: &'a str,
    /// What is done for it.
    pub phase: Phase,
    /// The nodes that its selector matches, at most [`MAX_NODES`].
    pub nodes: BTreeSet<String>,
    /// How many nodes its selector matches.
    pub nodes_selected: usize,
    /// The entries of `spec.drainPlan` and the default entries of KEP-4212, in order.
    pub plan: DrainPlan,
}

impl<'a> Maintenance<'a> {
    /// What follows from the object and the nodes.
    #[must_use]
    pub fn new(object: &'a NodeMaintenance, nodes: &[NodeFacts]) -> Self {
        let selected: BTreeSet<_> = nodes
            .iter()
            .filter(|node| selects(&object.spec.node_selector, &node.name, &node.labels))
            .map(|node| node.name.clone())
            .collect();
        let nodes_selected = selected.len();
        Self {
            object,
            name: object.metadata.name.as_deref().unwrap_or_default(),
            phase: phase(object),
            nodes: at_most(MAX_NODES, selected, object.status.as_ref()),
            nodes_selected,
            plan: DrainPlan::effective(&object.spec.drain_plan),
        }
    }

    /// Its UID, the value of its taint.
    #[must_use]
    pub fn uid(&self) -> &'a str {
        self.object.metadata.uid.as_deref().unwrap_or_default()
    }

    /// When it was created, and its name: the order of maintenances by age.
    #[must_use]
    pub fn age(&self) -> (Option<&'a Time>, &'a str) {
        (self.object.metadata.creation_timestamp.as_ref(), self.name)
    }

    /// Whether its nodes are kept out of service.
    #[must_use]
    pub fn is_in_progress(&self) -> bool {
        matches!(self.phase, Phase::Cordon | Phase::Drain)
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has the completion finalizer.
    #[must_use]
    pub fn has_finalizer(&self) -> bool {
        has_finalizer(self.object)
    }

    /// Whether the status says that a stage was started.
    #[must_use]
    pub fn has_started(&self, stage: Stage) -> bool {
        let status = self.object.status.as_ref();
        status.is_some_and(|status| status.stage_statuses.iter().any(|started| started.name == stage))
    }
}

fn has_finalizer(object: &NodeMaintenance) -> bool {
    let mut finalizers = object.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == COMPLETION_FINALIZER)
}

fn phase(object: &NodeMaintenance) -> Phase {
    let is_deleted = object.metadata.deletion_timestamp.is_some();
    match object.spec.stage {
        Stage::Idle => Phase::Idle,
        _ if object.spec.dry_run => Phase::DryRun,
        // Without the finalizer there may be nothing to undo, and it cannot be added any more.
        _ if !has_finalizer(object) && !is_deleted => Phase::Starting,
        _ if is_deleted => Phase::Complete,
        Stage::Cordon => Phase::Cordon,
        Stage::Drain => Phase::Drain,
        Stage::Complete => Phase::Complete,
    }
}

/// The nodes that are in the status already, then the first by name: a node that joins never displaces another.
fn at_most(most: usize, selected: BTreeSet<String>, status: Option<&NodeMaintenanceStatus>) -> BTreeSet<String> {
    if selected.len() <= most {
        return selected;
    }
    let known: BTreeSet<_> = status
        .iter()
        .flat_map(|status| &status.node_statuses)
        .map(|node| node.node_ref.name.as_str())
        .collect();
    let (first, rest): (Vec<_>, Vec<_>) = selected.into_iter().partition(|node| known.contains(node.as_str()));
    first.into_iter().chain(rest).take(most).collect()
}
