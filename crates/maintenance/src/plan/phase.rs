//! What is done for a maintenance: its stage, with deletion, dry runs and the finalizer (NM-07 to NM-09).

use std::borrow::Borrow;
use std::collections::BTreeSet;

use headgate_core::node::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::names::{MAX_NODES, is_completion_finalizer};
use crate::api::{NodeMaintenance, NodeMaintenanceStatus, Stage};
use crate::drain_plan::DrainPlan;
use crate::selection::selects;

use super::conditions;

/// What is done for a maintenance.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// Neither nodes nor pods are changed.
    Idle,
    /// Only the status shows what would be done.
    DryRun,
    /// Nothing has begun, because its selector matches more than [`MAX_NODES`] nodes.
    TooManyNodes,
    /// The finalizer is missing, and comes first.
    Starting,
    /// Its nodes are kept unschedulable.
    Cordon,
    /// And their pods leave.
    Drain,
    /// What was done is undone. Without the finalizer nothing is left of it.
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
    /// The nodes that its selector matches. Where these are more than [`MAX_NODES`], only those of a maintenance that has begun.
    pub nodes: BTreeSet<String>,
    /// How many nodes its selector matches.
    pub nodes_selected: usize,
    /// The entries of `spec.drainPlan` and the default entries of KEP-4212, in order.
    pub plan: DrainPlan,
}

impl<'a> Maintenance<'a> {
    /// What follows from the object and the nodes.
    #[must_use]
    pub fn new(object: &'a NodeMaintenance, nodes: &[impl Borrow<Node>]) -> Self {
        let selected: BTreeSet<_> = nodes
            .iter()
            .map(Borrow::borrow)
            .filter(|node| selects(&object.spec.node_selector, &node.name, &node.labels))
            .map(|node| node.name.clone())
            .collect();
        let nodes_selected = selected.len();
        let nodes = maintained(selected, object.status.as_ref());
        Self {
            object,
            name: object.metadata.name.as_deref().unwrap_or_default(),
            phase: phase(object, nodes_selected > MAX_NODES && nodes.is_empty()),
            nodes,
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

    /// Whether its selector matches more nodes than a maintenance may have.
    #[must_use]
    pub fn has_too_many_nodes(&self) -> bool {
        self.nodes_selected > MAX_NODES
    }

    /// Whether the status says that a stage was started.
    #[must_use]
    pub fn has_started(&self, stage: Stage) -> bool {
        let status = self.object.status.as_ref();
        status.is_some_and(|status| has_started(status, stage))
    }

    /// Whether the status says that everything is undone.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.object.status.as_ref().is_some_and(is_completed)
    }
}

fn has_started(status: &NodeMaintenanceStatus, stage: Stage) -> bool {
    status.stage_statuses.iter().any(|started| started.name == stage)
}

/// Whether a status says that everything is undone.
#[must_use]
pub fn is_completed(status: &NodeMaintenanceStatus) -> bool {
    let progressing = conditions::find(&status.conditions, conditions::PROGRESSING);
    progressing.is_some_and(|condition| condition.reason == conditions::COMPLETED)
}

fn has_finalizer(object: &NodeMaintenance) -> bool {
    let mut finalizers = object.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| is_completion_finalizer(finalizer))
}

fn phase(object: &NodeMaintenance, is_refused: bool) -> Phase {
    let is_deleted = object.metadata.deletion_timestamp.is_some();
    match object.spec.stage {
        Stage::Idle => Phase::Idle,
        Stage::Cordon | Stage::Drain if is_refused && !is_deleted => Phase::TooManyNodes,
        _ if object.spec.dry_run => Phase::DryRun,
        // Without the finalizer there may be nothing to undo, and it cannot be added any more.
        _ if is_deleted => Phase::Complete,
        // It is over, or no controller has seen it before: a copy without its status has done nothing.
        Stage::Complete if object.status.as_ref().is_none_or(is_completed) => Phase::Complete,
        _ if !has_finalizer(object) => Phase::Starting,
        Stage::Cordon => Phase::Cordon,
        Stage::Drain => Phase::Drain,
        Stage::Complete => Phase::Complete,
    }
}

/// All nodes that are selected. If these are more than [`MAX_NODES`], those that a maintenance in progress has already: a node
/// that joins does not give back the others, on which someone may be working.
fn maintained(selected: BTreeSet<String>, status: Option<&NodeMaintenanceStatus>) -> BTreeSet<String> {
    if selected.len() <= MAX_NODES {
        return selected;
    }
    let known: BTreeSet<_> = status
        .filter(|status| has_started(status, Stage::Cordon))
        .iter()
        .flat_map(|status| &status.node_statuses)
        .map(|node| node.node_ref.name.as_str())
        .collect();
    let mut selected = selected;
    selected.retain(|node| known.contains(node.as_str()));
    selected
}
