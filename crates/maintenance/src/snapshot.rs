//! What the plan is made from: plain data, read from the caches of the controller.
//!
//! Invariant: a snapshot is complete. It has every NodeMaintenance, Node and Evacuation, and every pod of every node that a
//! maintenance selects. A plan of an incomplete snapshot would cancel evacuations of pods that are not in it.

mod node;
mod pod;

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::api::{Evacuation, NodeMaintenance};
use crate::drain_plan::{Labels, PodSelector};

pub use node::{NodeFacts, TaintFacts};
pub use pod::PodFacts;

/// All that a plan depends on, but for the time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Every NodeMaintenance.
    pub maintenances: Vec<NodeMaintenance>,
    /// Every Node.
    pub nodes: Vec<NodeFacts>,
    /// The pods of nodes that a maintenance selects.
    pub pods: Vec<PodFacts>,
    /// Every Evacuation.
    pub evacuations: Vec<Evacuation>,
    /// The PodDisruptionBudgets, for blockers only.
    pub budgets: Vec<BudgetFacts>,
    /// What is known about the load balancers of each node, by name. A node that is missing is unknown.
    pub load_balancers: BTreeMap<String, LoadBalancerObservation>,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BudgetFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The pods that it is about.
    pub selector: PodSelector,
    /// `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
}

impl BudgetFacts {
    /// Whether the budget is about a pod with these labels.
    #[must_use]
    pub fn selects(&self, namespace: &str, labels: &Labels) -> bool {
        self.namespace == namespace && self.selector.matches(labels)
    }
}

/// What is known about the load balancers of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LoadBalancerObservation {
    /// There is no recent read.
    Unknown {
        /// Why not.
        reason: String,
    },
    /// The last read shows the node in service.
    In {
        /// Where.
        detail: String,
    },
    /// The node is kept in service, because too few others are.
    HeldBack {
        /// Where.
        detail: String,
    },
    /// The last read shows the node out of service everywhere.
    Out {
        /// Since when.
        since: Timestamp,
    },
    /// The last read shows the node in no load balancer.
    NotUsed,
}
