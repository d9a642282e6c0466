//! The status of a `NodeMaintenance`: what the controller did and what it waits for.
//!
//! A new leader continues from the status alone: `drainPlanIndex` and `drainTargets` are the only state of a drain. An object has to stay
//! below 1.5 MiB, so what each of 500 nodes has is short: messages are cut, long targets are in `targetSets`, once for all nodes
//! with the same, and blockers are listed while there is room. What a leader does not know, because a newer version wrote it before a
//! rollback, counts as missing and is computed anew; so enums of the status are open in the definition, too.

use std::fmt;

use headgate_core::telemetry::words;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::known::{known, known_items};
use super::node_maintenance::{DrainPlanEntry, Stage};
use super::schema;

/// What the controller did, and what it waits for.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenanceStatus {
    /// The generation that the status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The stages that were started, in order.
    #[schemars(length(max = 4))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[serde(default, deserialize_with = "known_items")]
    pub stage_statuses: Vec<StageStatus>,
    /// The whole drain plan: spec.drainPlan and the default entries.
    #[schemars(length(max = 44))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[serde(default)]
    pub drain_plan: Vec<DrainPlanEntry>,
    /// The entry of drainPlan that this maintenance has reached, from 0. Set from the Drain stage on. It begins anew when a node joins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 43))]
    pub drain_plan_index: Option<i32>,
    /// How many nodes the selector matches.
    #[serde(default)]
    pub selected_nodes: i32,
    /// How many of these nodes are drained. Set from the Drain stage on.
    #[serde(default)]
    pub drained_nodes: i32,
    /// How many pods have to leave these nodes.
    #[serde(default)]
    pub pods_left: i32,
    /// Targets of nodes that are too long for their entry in nodeStatuses.
    #[schemars(length(max = 500))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_sets: Vec<TargetSet>,
    /// One entry for each node under maintenance, and for as many as fit of those that wait for room, ordered by name.
    #[schemars(length(max = 500))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[serde(default)]
    pub node_statuses: Vec<NodeMaintenanceNodeStatus>,
    /// Conditions. Accepted: the controller works with the nodes that the selector matches. Progressing: it has something to do.
    /// LoadBalancerOut: reads confirm that all nodes are out of their load balancers. Drained: all pods have left. Blocked: something keeps
    /// pods or load balancers from going on, which needs someone. AllNodesSelected: the selector matches every node of the cluster.
    #[schemars(schema_with = "schema::conditions")]
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Targets that nodes have in common.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetSet {
    /// The pods that are evacuated now: those that any entry selects.
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub drain_targets: Vec<DrainPlanEntry>,
}

impl NodeMaintenanceStatus {
    /// The targets of one of its nodes.
    pub fn targets_of<'a>(&'a self, node: &'a NodeMaintenanceNodeStatus) -> &'a [DrainPlanEntry] {
        let set = node.target_set.and_then(|position| usize::try_from(position).ok());
        let set = set.and_then(|position| self.target_sets.get(position));
        set.map_or(&node.drain_targets, |set| &set.drain_targets)
    }
}

/// A stage that was started.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// Name of the stage: Cordon, Drain or Complete. Each stage is listed once at most.
    #[schemars(schema_with = "schema::open_enum")]
    pub name: Stage,
    /// When the controller started it.
    #[schemars(schema_with = "schema::time")]
    pub start_timestamp: Time,
}

/// A reference to a Node.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
pub struct NodeReference {
    /// Name of the Node, as in metadata.name.
    pub name: String,
}

/// How far one node is.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenanceNodeStatus {
    /// Reference to the Node that the entry is about.
    pub node_ref: NodeReference,
    /// The pods that are evacuated now: those that any entry selects. All maintenances of a node have the same.
    #[serde(default)]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub drain_targets: Vec<DrainPlanEntry>,
    /// Where the targets are long: their position in status.targetSets, from 0, in the place of drainTargets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 499))]
    pub target_set: Option<i32>,
    /// What happens on the node, or what this maintenance waits for.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub drain_message: String,
    /// Pods that have to leave and have no Evacuation yet, whatever their priority.
    #[serde(default)]
    pub pods_pending_evacuation: i32,
    /// Pods that have to leave and have an Evacuation.
    #[serde(default)]
    pub pods_evacuating: i32,
    /// Pods of DaemonSets that tolerate the maintenance. They would be recreated at once and are not waited for.
    #[serde(default)]
    pub pods_exempt: i32,
    /// Static pods. They cannot be removed through the API and are not waited for.
    #[serde(default)]
    pub pods_unsupported: i32,
    /// Whether the node is out of its load balancers. Set from the Drain stage on.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancerStatus>,
    /// What holds pods that leave on the node. The first five, by namespace and name, and fewer or none where a maintenance of many
    /// nodes has many blockers.
    #[serde(default, deserialize_with = "known_items")]
    #[schemars(length(max = 5))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub blockers: Vec<Blocker>,
    /// How many blockers there are.
    #[serde(default)]
    pub blockers_total: i32,
}

/// Whether a node is out of its load balancers.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerStatus {
    /// How far the node is. Pending: no read has confirmed that it is out. Draining: one has, and open connections may go on. Out: the time
    /// for open connections is over. TimedOut: none has within confirmationTimeoutSeconds, and the maintenance goes on without.
    #[schemars(schema_with = "schema::open_enum")]
    pub state: LoadBalancerState,
    /// When the controller began to wait for the confirmation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub wait_start_time: Option<Time>,
    /// Since when the node is only kept in service because too few others are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub kept_in_service_time: Option<Time>,
    /// Since when the load balancers send no new connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub down_time: Option<Time>,
    /// When a read confirmed that first. A read that no longer confirms it resets this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub confirmed_time: Option<Time>,
}

words! {
    /// How far a node is on its way out of the load balancers.
    #[derive(Deserialize, JsonSchema, Serialize)]
    pub enum LoadBalancerState {
        /// No read has confirmed that the node is out.
        Pending = "Pending",
        /// A read confirmed it. Open connections may go on, connectionsDrainSeconds at least, and while the agent counts some.
        Draining = "Draining",
        /// A read confirmed it, and the time for open connections is over.
        Out = "Out",
        /// No read has confirmed it within confirmationTimeoutSeconds, and the maintenance goes on without.
        TimedOut = "TimedOut",
    }
}

/// What keeps one pod on its node.
#[derive(Clone, Debug, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// Reference to the pod.
    pub pod_ref: BlockedPod,
    /// The kind of reason. DisruptionBudget: a PodDisruptionBudget allows no disruption. MultipleDisruptionBudgets: several select the pod,
    /// which the Eviction API refuses. EvictionFailed: the Eviction API refused for another reason, or the
    /// Evacuation cannot be created. Terminating: the pod is terminating for longer than its grace period.
    #[schemars(schema_with = "schema::open_enum")]
    pub reason: BlockerReason,
    /// The reason in words.
    #[schemars(length(max = 256))]
    pub message: String,
    /// When the pod was first listed with this reason.
    #[schemars(schema_with = "schema::time")]
    pub first_observed_time: Time,
}

/// A reference to a pod that is kept on its node. As text `NAMESPACE/NAME`.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub struct BlockedPod {
    /// Namespace of the pod.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub name: String,
    /// UID of the pod.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub uid: String,
}

impl fmt::Display for BlockedPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

words! {
    /// A kind of reason that keeps a pod on its node.
    #[derive(Deserialize, JsonSchema, Ord, PartialOrd, Serialize)]
    pub enum BlockerReason {
        /// A PodDisruptionBudget allows no disruption.
        DisruptionBudget = "DisruptionBudget",
        /// Several PodDisruptionBudgets select the pod, and the Eviction API refuses that.
        MultipleDisruptionBudgets = "MultipleDisruptionBudgets",
        /// The Eviction API refused for another reason, or the Evacuation cannot be created.
        EvictionFailed = "EvictionFailed",
        /// The pod is terminating for longer than its grace period.
        Terminating = "Terminating",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_a_newer_version_count_as_missing() {
        let time = "2026-11-21T10:00:00Z";
        let node = |state: &str, reason: &str| {
            json!({"nodeRef": {"name": "n"}, "loadBalancer": {"state": state, "confirmedTime": time},
                "blockers": [{"podRef": {"namespace": "a", "name": "b"}, "reason": reason, "message": "", "firstObservedTime": time}], "blockersTotal": 1})
        };
        let status = json!({
            "stageStatuses": [{"name": "Reboot", "startTimestamp": time}, {"name": "Drain", "startTimestamp": time}],
            "nodeStatuses": [node("Moving", "Weather"), node("Out", "Terminating")]});
        let status: NodeMaintenanceStatus = serde_json::from_value(status).unwrap();
        let stages: Vec<_> = status.stage_statuses.iter().map(|stage| stage.name).collect();
        assert_eq!(stages, [Stage::Drain]);
        let [unknown, known] = &status.node_statuses[..] else {
            panic!("{status:?}")
        };
        assert_eq!((&unknown.load_balancer, unknown.blockers.len()), (&None, 0));
        assert_eq!(known.load_balancer.as_ref().unwrap().state, LoadBalancerState::Out);
        assert_eq!(known.blockers.len(), 1);
    }
}
