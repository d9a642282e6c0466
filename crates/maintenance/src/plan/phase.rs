//! What is done for a maintenance: its stage, with deletion, dry runs and the finalizer (NM-07 to NM-09).

use std::borrow::Borrow;
use std::collections::BTreeSet;

use headgate_core::node::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::names::is_completion_finalizer;
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
    /// Nothing was done yet: the finalizer is missing, and comes first.
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
    /// The nodes that its selector matches, but for those that wait for room.
    pub nodes: BTreeSet<String>,
    /// The nodes that its selector matches and that wait for room: [`maintenances`](super::concurrency::maintenances) decides.
    pub waiting_for_room: BTreeSet<String>,
    /// How many nodes its selector matches.
    pub nodes_selected: usize,
    /// The entries of `spec.drainPlan` and the default entries of KEP-4212, in order.
    pub plan: DrainPlan,
}

impl<'a> Maintenance<'a> {
    /// What follows from the object and the nodes. No node waits for room.
    pub fn new(object: &'a NodeMaintenance, nodes: &[impl Borrow<Node>]) -> Self {
        Self::among(object, nodes.iter().map(Borrow::borrow))
    }

    /// The same, of nodes among which are all that its selector may match.
    pub(super) fn among<'b>(object: &'a NodeMaintenance, nodes: impl Iterator<Item = &'b Node>) -> Self {
        let nodes: BTreeSet<_> = nodes
            .filter(|node| selects(&object.spec.node_selector, &node.name, &node.labels))
            .map(|node| node.name.clone())
            .collect();
        Self {
            object,
            name: object.metadata.name.as_deref().unwrap_or_default(),
            phase: phase(object),
            nodes_selected: nodes.len(),
            nodes,
            waiting_for_room: BTreeSet::new(),
            plan: DrainPlan::effective(&object.spec.drain_plan),
        }
    }

    /// Its UID, the value of its taint.
    pub fn uid(&self) -> &'a str {
        self.object.metadata.uid.as_deref().unwrap_or_default()
    }

    /// When it was created, and its name: the order of maintenances by age.
    pub fn age(&self) -> (Option<&'a Time>, &'a str) {
        (self.object.metadata.creation_timestamp.as_ref(), self.name)
    }

    /// Whether it is being deleted.
    pub fn is_deleted(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has the completion finalizer.
    pub(crate) fn has_finalizer(&self) -> bool {
        has_finalizer(self.object)
    }

    /// Whether the status says that a stage was started.
    pub(crate) fn has_started(&self, stage: Stage) -> bool {
        let status = self.object.status.as_ref();
        status.is_some_and(|status| has_started(status, stage))
    }

    /// Whether the status says that everything is undone.
    pub(crate) fn is_completed(&self) -> bool {
        self.object.status.as_ref().is_some_and(is_completed)
    }

    /// Whether it makes its nodes schedulable, once: it goes from `Idle` to `Complete`.
    pub(super) fn uncordons(&self) -> bool {
        !self.is_deleted() && uncordons(self.object)
    }
}

fn has_started(status: &NodeMaintenanceStatus, stage: Stage) -> bool {
    status.stage_statuses.iter().any(|started| started.name == stage)
}

/// Whether a status says that everything is undone.
pub(crate) fn is_completed(status: &NodeMaintenanceStatus) -> bool {
    progressing_reason(status) == Some(conditions::COMPLETED)
}

/// Whether it is `Complete`, and the status says that it was `Idle` before.
fn uncordons(object: &NodeMaintenance) -> bool {
    let reason = object.status.as_ref().and_then(progressing_reason);
    object.spec.stage == Stage::Complete && matches!(reason, Some(conditions::IDLE | conditions::UNCORDON))
}

fn progressing_reason(status: &NodeMaintenanceStatus) -> Option<&str> {
    let progressing = conditions::find(&status.conditions, conditions::PROGRESSING);
    progressing.map(|condition| condition.reason.as_str())
}

fn has_finalizer(object: &NodeMaintenance) -> bool {
    let mut finalizers = object.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| is_completion_finalizer(finalizer))
}

/// Whether the status says that any stage was started.
fn has_begun(object: &NodeMaintenance) -> bool {
    let status = object.status.as_ref();
    status.is_some_and(|status| !status.stage_statuses.is_empty())
}

fn phase(object: &NodeMaintenance) -> Phase {
    let is_deleted = object.metadata.deletion_timestamp.is_some();
    match object.spec.stage {
        Stage::Idle => Phase::Idle,
        _ if object.spec.dry_run => Phase::DryRun,
        // Without the finalizer there may be nothing to undo, and it cannot be added any more.
        _ if is_deleted => Phase::Complete,
        // It has begun, is over, or has done nothing: a dry run, or a copy without its status, which no controller has seen before.
        Stage::Complete if !uncordons(object) => Phase::Complete,
        // One that loses it midway keeps its nodes.
        _ if !has_finalizer(object) && !has_begun(object) => Phase::Starting,
        Stage::Cordon => Phase::Cordon,
        Stage::Drain => Phase::Drain,
        Stage::Complete => Phase::Complete,
    }
}
