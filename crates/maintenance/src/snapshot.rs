//! What the plan is made from: plain data, read from the caches of the controller.
//!
//! Invariant: a snapshot is complete. It has every NodeMaintenance, Node and Evacuation, and every pod of every node that a
//! maintenance selects and that does not wait for room. A plan of an incomplete snapshot would cancel evacuations of pods that are not in it.

mod pod;

use std::collections::BTreeMap;
use std::sync::Arc;

use headgate_core::node::{Node, TrafficByNode};
use headgate_core::settings::IntOrPercent;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::api::{Evacuation, NodeMaintenance};
use crate::automatic::AutomaticMaintenances;
use crate::drain_plan::PodSelector;
use crate::machine::DeletedMachine;

pub(crate) use pod::controlling_owner;
pub use pod::{Owner, PodFacts, PodObject};

/// All that a plan depends on, but for the time.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Every NodeMaintenance of the cluster, in any order.
    pub maintenances: Vec<NodeMaintenance>,
    /// The names of those that exist and cannot be decoded, by UID. Their nodes are unknown, and so what is undone for them is unknown, too.
    pub undecodable_maintenances: BTreeMap<String, String>,
    /// Every Node of the cluster, in any order. Shared with the cache.
    pub nodes: Vec<Arc<Node>>,
    /// The pods of nodes that a maintenance selects and that do not wait for room.
    pub pods: Vec<PodFacts>,
    /// Every Evacuation of the cluster, in any order.
    pub evacuations: Vec<Evacuation>,
    /// Why the Evacuation of a pod could not be created, by the pod's UID, for blockers only.
    pub refused_evacuations: BTreeMap<String, String>,
    /// Why a Node could not be changed that a plan wants changed, by name, for messages only.
    pub refused_nodes: BTreeMap<String, String>,
    /// The PodDisruptionBudgets, for blockers only.
    pub budgets: Vec<BudgetFacts>,
    /// Whether nodes under maintenance are kept out of upgrades of AKS.
    pub pauses_upgrades: bool,
    /// The Machines of Cluster API that are being deleted; `None` while they are not listed, as where Cluster API is not installed.
    pub machines: Option<Vec<DeletedMachine>>,
    /// Which nodes get a maintenance by themselves.
    pub automatic: AutomaticMaintenances,
    /// What is known about the load balancers of each node, by name. A node that is missing is unknown.
    pub load_balancers: TrafficByNode,
    /// How many nodes may be under maintenance at once, of the Nodes that are here. `None` holds nothing back.
    pub max_concurrent_nodes: Option<IntOrPercent>,
}

/// A PodDisruptionBudget, as far as blockers depend on it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BudgetFacts {
    /// Namespace of the budget, and of the pods that it is about.
    pub namespace: String,
    /// The `metadata.name` of the budget.
    pub name: String,
    /// The pods that it is about.
    pub selector: PodSelector,
    /// How many more pods may be evicted now, from `status.disruptionsAllowed`.
    pub disruptions_allowed: i32,
    /// Whether it needs all pods that it is about: it allows no disruption although all are healthy.
    pub needs_all: bool,
    /// Whether its pods that are not Ready may be evicted without room.
    pub lets_unready_go: bool,
}

impl BudgetFacts {
    /// The facts of a budget, or `None` for one without a selector, which is about no pod.
    pub fn read(budget: &PodDisruptionBudget) -> Option<Self> {
        let spec = budget.spec.as_ref()?;
        let selector = spec.selector.as_ref()?;
        let status = budget.status.as_ref();
        Some(Self {
            namespace: budget.metadata.namespace.clone().unwrap_or_default(),
            name: budget.metadata.name.clone().unwrap_or_default(),
            selector: selector.clone().into(),
            disruptions_allowed: status.map_or(0, |status| status.disruptions_allowed),
            // Before it is counted, a status is all zeros.
            needs_all: status
                .is_some_and(|status| status.expected_pods > 0 && status.desired_healthy >= status.expected_pods),
            lets_unready_go: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow")
                || status.is_some_and(|status| {
                    status.desired_healthy > 0 && status.current_healthy >= status.desired_healthy
                }),
        })
    }

    /// Whether the budget selects the pod.
    pub(crate) fn selects(&self, pod: &PodFacts) -> bool {
        self.namespace == pod.namespace && self.selector.matches(&pod.labels)
    }

    /// Whether the Eviction API asks the budget about the pod. It asks none about one whose phase is `Pending`.
    pub fn is_about(&self, pod: &PodFacts) -> bool {
        !pod.is_pending && self.selects(pod)
    }

    /// Whether the budget, if it is the only one of the pod, lets the pod go now.
    pub(crate) fn has_room_for(&self, pod: &PodFacts) -> bool {
        self.disruptions_allowed > 0 || (self.lets_unready_go && !pod.is_ready)
    }
}
