//! What a plan asks for. Each action is one request to the API server, and may be repeated.

use crate::api::{Evacuation, NodeMaintenanceStatus};

/// One thing to do. A plan lists them in the order in which they are to be done; the rest waits where one fails.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Add the completion finalizer to a maintenance. Nothing else is done for it before.
    AddFinalizer {
        /// The maintenance.
        maintenance: String,
    },
    /// Set `spec.stage` of a maintenance that is being deleted to `Complete`.
    SetStageComplete {
        /// The maintenance.
        maintenance: String,
    },
    /// Write the status of a maintenance.
    UpdateStatus {
        /// The maintenance.
        maintenance: String,
        /// All of it.
        status: Box<NodeMaintenanceStatus>,
    },
    /// Change a Node, all of it in one request.
    UpdateNode {
        /// The Node.
        node: String,
        /// What changes.
        change: NodeChange,
    },
    /// Set and remove conditions in a Node's status.
    UpdateNodeConditions {
        /// The Node.
        node: String,
        /// Conditions that become `True`.
        set: Vec<NodeConditionChange>,
        /// Types of conditions that are removed.
        remove: Vec<String>,
    },
    /// Create an Evacuation.
    CreateEvacuation {
        /// All of it.
        evacuation: Box<Evacuation>,
    },
    /// Add the instigator finalizer to an Evacuation of another instigator.
    AddInstigator {
        /// The Evacuation.
        evacuation: EvacuationKey,
    },
    /// Remove the instigator finalizer from an Evacuation, and nothing else.
    RemoveInstigator {
        /// The Evacuation.
        evacuation: EvacuationKey,
    },
    /// Delete an Evacuation, then remove the instigator finalizer.
    DeleteEvacuation {
        /// The Evacuation.
        evacuation: EvacuationKey,
    },
    /// Remove the completion finalizer from a maintenance: it is done.
    RemoveFinalizer {
        /// The maintenance.
        maintenance: String,
    },
    /// Record an event about a maintenance.
    RecordEvent(Event),
}

/// An Evacuation, and no later one of the same name.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EvacuationKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What changes on a Node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeChange {
    /// `spec.unschedulable` becomes this.
    pub unschedulable: Option<bool>,
    /// The annotation with the value before the first maintenance.
    pub remembered: Option<Change<bool>>,
    /// The value of the maintenance taint.
    pub taint: Option<Change<String>>,
}

impl NodeChange {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A field is set or removed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change<T> {
    /// It becomes this.
    Set(T),
    /// It is removed.
    Remove,
}

/// A Node condition that becomes `True`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeConditionChange {
    /// Its type, of KEP-5683.
    pub kind: &'static str,
    /// Its reason, of KEP-5683.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
}

/// An event about a maintenance.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// The maintenance.
    pub maintenance: String,
    /// The node that it is about, if it is about one.
    pub node: Option<String>,
    /// The reason, for machines.
    pub reason: EventReason,
    /// What happened, in words.
    pub note: String,
}

/// The reason of an event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EventReason {
    /// A node's targets were beyond the maintenance's own plan when it began (DT-05).
    FastForwarded,
    /// Every node is selected (NM-06).
    AllNodesSelected,
    /// The first pods are evacuated without a confirmation by the load balancers.
    LoadBalancerNotConfirmed,
    /// A stage began.
    StageStarted,
    /// All pods have left.
    Drained,
    /// The maintenance is over.
    Completed,
}

impl EventReason {
    /// The reason in the Event object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FastForwarded => "FastForwarded",
            Self::AllNodesSelected => "AllNodesSelected",
            Self::LoadBalancerNotConfirmed => "LoadBalancerNotConfirmed",
            Self::StageStarted => "StageStarted",
            Self::Drained => "Drained",
            Self::Completed => "Completed",
        }
    }

    /// Whether the event is a `Warning`.
    #[must_use]
    pub fn is_warning(self) -> bool {
        matches!(
            self,
            Self::FastForwarded | Self::AllNodesSelected | Self::LoadBalancerNotConfirmed
        )
    }
}
