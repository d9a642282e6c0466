//! What a plan asks for. Each action is one request to the API server, and may be repeated.

use headgate_core::telemetry::words;
use jiff::Timestamp;

use crate::api::{Evacuation, NodeMaintenance, NodeMaintenanceStatus};
use crate::machine::DeletedMachine;

/// One thing to do. A plan lists them in the order in which they are to be done: of several of one object the first comes now, and the rest
/// with a later plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create the maintenance of a node that is taken.
    CreateMaintenance {
        /// The `metadata.name` of the Node.
        node: String,
        /// The whole object as it is sent.
        maintenance: Box<NodeMaintenance>,
    },
    /// Set `spec.deadline` of a maintenance that headgate created.
    SetDeadline {
        /// The `metadata.name` of the NodeMaintenance.
        maintenance: String,
        /// When its node is gone.
        deadline: Timestamp,
    },
    /// Delete a maintenance that headgate created: its node is gone, or is no longer taken.
    DeleteMaintenance {
        /// The `metadata.name` of the NodeMaintenance.
        maintenance: String,
    },
    /// Add the completion finalizer to a maintenance. Nothing else is done for it before.
    AddFinalizer {
        /// The `metadata.name` of the NodeMaintenance.
        maintenance: String,
    },
    /// Set `spec.stage` of a maintenance that is being deleted to `Complete`.
    SetStageComplete {
        /// The `metadata.name` of the NodeMaintenance.
        maintenance: String,
    },
    /// Write the status of a maintenance.
    UpdateStatus {
        /// The `metadata.name` of the NodeMaintenance.
        maintenance: String,
        /// The whole status, which replaces the one before.
        status: Box<NodeMaintenanceStatus>,
    },
    /// Change a Node, all of it in one request.
    UpdateNode {
        /// The `metadata.name` of the Node.
        node: String,
        /// The fields to set and to remove; all others stay.
        change: NodeChange,
    },
    /// Set and remove conditions in a Node's status.
    UpdateNodeConditions {
        /// The `metadata.name` of the Node.
        node: String,
        /// Conditions that become `True`, where no other writer has made them `True`.
        set: Vec<NodeConditionChange>,
        /// Types of own conditions that are removed.
        remove: Vec<String>,
    },
    /// Keep a Node out of upgrades of AKS (`true`), or no longer (`false`).
    SetUpgradePaused {
        /// The `metadata.name` of the Node.
        node: String,
        /// Whether it is kept out.
        is_paused: bool,
    },
    /// Remove headgate's hooks from a Machine of Cluster API.
    ReleaseMachine(DeletedMachine),
    /// Create or change the Evacuation of one pod.
    ChangeEvacuation {
        /// What is done.
        change: EvacuationChange,
        /// The whole object as it is sent, with its instigator finalizer, where it is created; otherwise as it was read.
        evacuation: Box<Evacuation>,
    },
    /// Remove the completion finalizer from a maintenance: it is done.
    RemoveFinalizer {
        /// The `metadata.name` of the NodeMaintenance.
        maintenance: String,
    },
    /// Record an event about a maintenance.
    RecordEvent(Event),
}

impl Action {
    /// The UID of the pod whose Evacuation is written.
    pub(crate) fn evacuated_pod(&self) -> Option<&str> {
        match self {
            Self::ChangeEvacuation { evacuation, .. } => Some(&evacuation.spec.pod_ref.uid),
            _ => None,
        }
    }

    /// The name of the Node that is changed.
    pub(crate) fn changed_node(&self) -> Option<&str> {
        match self {
            Self::UpdateNode { node, .. }
            | Self::UpdateNodeConditions { node, .. }
            | Self::SetUpgradePaused { node, .. } => Some(node),
            _ => None,
        }
    }
}

/// What is done to an Evacuation, and to no later one of the same name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EvacuationChange {
    /// Create it.
    Create,
    /// Add the instigator finalizer to one of another instigator.
    AddInstigator,
    /// Remove the instigator finalizer, and nothing else.
    RemoveInstigator,
    /// Delete it, then remove the instigator finalizer.
    Delete,
}

/// What changes on a Node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeChange {
    /// The new value of `spec.unschedulable`; `None` leaves it as it is.
    pub unschedulable: Option<bool>,
    /// The annotation with the value before the first maintenance.
    pub remembered: Option<Change<bool>>,
    /// The value of the maintenance taint.
    pub taint: Option<Change<String>>,
    /// Whether autoscalers are kept away from the node (`true`), or their annotations become again what they were (`false`).
    pub keep_from_scale_down: Option<bool>,
}

impl NodeChange {
    /// Whether every field is `None`, so that no request is needed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A field is set or removed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change<T> {
    /// The field gets this value.
    Set(T),
    /// The field is removed from the object.
    Remove,
}

/// A Node condition that becomes `True`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeConditionChange {
    /// Its type, of KEP-5683.
    pub kind: &'static str,
    /// Its reason, of KEP-5683.
    pub reason: &'static str,
    /// The text of `message`, with the prefix that marks conditions of the controller.
    pub message: String,
}

/// An event about a maintenance.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// The `metadata.name` of the NodeMaintenance.
    pub maintenance: String,
    /// The node that it is about, if it is about one.
    pub node: Option<String>,
    /// The reason, for machines.
    pub reason: EventReason,
    /// What happened, in words.
    pub note: String,
}

words! {
    /// The reason of an event.
    pub enum EventReason {
        /// A node's targets were beyond the maintenance's own plan when it began (DT-05).
        FastForwarded = "FastForwarded",
        /// Every node is selected (NM-06).
        AllNodesSelected = "AllNodesSelected",
        /// The first pods are evacuated without a confirmation by the load balancers.
        LoadBalancerNotConfirmed = "LoadBalancerNotConfirmed",
        /// The first pods are evacuated while connections pass through their node.
        ConnectionsNotDrained = "ConnectionsNotDrained",
        /// The status lists a stage that it did not list before.
        StageStarted = "MaintenanceStageStarted",
        /// All pods have left.
        Drained = "NodesDrained",
        /// The maintenance is over.
        Completed = "MaintenanceCompleted",
    }
}

impl EventReason {
    /// Whether the event is a `Warning`.
    pub fn is_warning(self) -> bool {
        matches!(
            self,
            Self::FastForwarded | Self::AllNodesSelected | Self::LoadBalancerNotConfirmed | Self::ConnectionsNotDrained
        )
    }
}
