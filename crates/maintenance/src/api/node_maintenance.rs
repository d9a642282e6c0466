//! `NodeMaintenance`: what an administrator asks for.
//!
//! The rules that the API server holds are here as CEL. Those that CEL cannot read (the finalizer, the nodes that a
//! selector matches) are the controller's and the admission policies'.

use headgate_core::telemetry::words;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;
use super::status::NodeMaintenanceStatus;
use crate::drain_plan::PodSelector;

/// The nodes to take out of service, how far, and in which order their pods leave.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "headgate.dev",
    version = "v1alpha1",
    kind = "NodeMaintenance",
    shortname = "hgnm",
    category = "headgate",
    status = "NodeMaintenanceStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A request to take nodes out of service: out of the load balancers first, then without pods.",
    printcolumn(name = "Stage", type_ = "string", json_path = ".spec.stage"),
    printcolumn(
        name = "Nodes",
        type_ = "integer",
        json_path = ".status.selectedNodes",
        description = "Nodes that the selector matches"
    ),
    printcolumn(
        name = "Pods left",
        type_ = "integer",
        json_path = ".status.podsLeft",
        description = "Pods that have to leave their nodes"
    ),
    printcolumn(
        name = "Drained",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Drained\")].status"
    ),
    printcolumn(
        name = "LB out",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"LoadBalancerOut\")].status",
        priority = "1"
    ),
    printcolumn(
        name = "Blocked",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Blocked\")].status",
        priority = "1"
    ),
    printcolumn(name = "Reason", type_ = "string", json_path = ".spec.reason", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.drainPlan == oldSelf.drainPlan")
        .message("drainPlan is immutable").field_path(".drainPlan").reason(Reason::FieldValueForbidden),
    validation = Rule::new("!self.dryRun || oldSelf.dryRun || oldSelf.stage == 'Idle'")
        .message("dryRun cannot be switched on after the Idle stage").field_path(".dryRun").reason(Reason::FieldValueForbidden),
)]
pub struct NodeMaintenanceSpec {
    /// The nodes of this maintenance.
    #[schemars(schema_with = "schema::node_selector")]
    pub node_selector: NodeSelector,
    /// How far the maintenance may go; it can only be moved forward. Idle: nothing is done yet. Cordon: the nodes are unschedulable, and
    /// autoscalers leave them alone. Drain: they also leave their load balancers, and then their pods leave. Complete: all of that is
    /// undone, unless another maintenance is in progress on the node.
    #[serde(default)]
    #[x_kube(validation = Rule::new(
        "oldSelf == 'Idle' || (oldSelf == 'Cordon' && self != 'Idle') || (oldSelf == 'Drain' && self in ['Drain', 'Complete']) || self == 'Complete'"
    ).message("the order of the stages is Idle, Cordon, Drain, Complete; a stage cannot be left backwards"))]
    pub stage: Stage,
    /// The order in which pods leave in the Drain stage: podType Default, DaemonSet, Static; ascending podPriority within
    /// a type; entries with a podSelector first where both are equal. Twelve default entries are added where they are
    /// missing; status.drainPlan shows the whole plan. Immutable.
    #[serde(default)]
    #[schemars(length(max = 32))]
    #[x_kube(
        merge_strategy = ListMerge::Atomic,
        validation = Rule::new("self.all(e, self.exists_one(o, o == e))").message("duplicate entries are not allowed"),
        validation = Rule::new(
            "self.map(e, (e.podType == 'Default' ? 0 : (e.podType == 'DaemonSet' ? 1 : 2)) * 10000000000 + int(e.podPriority) * 2 + (has(e.podSelector) ? 0 : 1)).isSorted()"
        ).message("entries have to be in the order of podType (Default, DaemonSet, Static), then of podPriority, those with a podSelector first"),
        validation = Rule::new(
            "self.all(e, !has(e.podSelector) || !has(e.podSelector.matchExpressions) || e.podSelector.matchExpressions.all(r, (r.operator in ['In', 'NotIn']) == (has(r.values) && size(r.values) > 0)))"
        ).message("operators In and NotIn need values, Exists and DoesNotExist take none"),
    )]
    pub drain_plan: Vec<DrainPlanEntry>,
    /// Why the maintenance takes place, for people.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// How the controller waits for the load balancers before the first pod leaves a node.
    #[serde(default)]
    pub load_balancer: LoadBalancerGate,
    /// How pods leave.
    #[serde(default)]
    pub evacuation: EvacuationPolicy,
    /// When the nodes are gone, whether or not their pods have left. Nothing waits longer: not for connections or evacuators, not for room, and
    /// for load balancers only where their confirmation is `Required`. After half of the time from the creation until then, all pods leave
    /// at once; and a pod that has less time left than its grace period gets what is left, until 5 min after the deadline: then it was wrong.
    /// PodDisruptionBudgets hold nevertheless. Autoscalers are not kept away from the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub deadline: Option<Time>,
    /// Show in the status what would be done, and change neither nodes nor pods.
    #[serde(default)]
    pub dry_run: bool,
}

words! {
    /// How far a maintenance may go.
    #[derive(Default, Deserialize, JsonSchema, Ord, PartialOrd, Serialize)]
    pub enum Stage {
        /// Nothing is done yet.
        #[default]
        Idle = "Idle",
        /// The nodes are unschedulable.
        Cordon = "Cordon",
        /// The nodes are unschedulable and out of their load balancers, and their pods leave.
        Drain = "Drain",
        /// The nodes are schedulable again, unless another maintenance is in progress on them.
        Complete = "Complete",
    }
}

impl NodeMaintenance {
    /// Whether pods leave its nodes: it is in the `Drain` stage, and is neither a dry run nor being deleted.
    pub fn is_draining(&self) -> bool {
        self.spec.stage == Stage::Drain && !self.spec.dry_run && self.metadata.deletion_timestamp.is_none()
    }
}

/// Pods that are selected together.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct DrainPlanEntry {
    /// Pods with these labels only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::label_selector")]
    pub pod_selector: Option<PodSelector>,
    /// Pods with this priority or a lower one.
    pub pod_priority: i32,
    /// Pods of this type. DaemonSet: those that a DaemonSet of the API group apps controls. Static: those that kubelet runs from a file.
    /// Default: all others.
    #[serde(default)]
    pub pod_type: PodType,
}

/// What created a pod.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
pub enum PodType {
    /// Anything but a DaemonSet or kubelet.
    #[default]
    Default,
    /// A DaemonSet of the API group `apps`, as the controlling owner.
    DaemonSet,
    /// kubelet, from a file.
    Static,
}

/// How the controller waits for the load balancers before the first pod leaves a node.
#[derive(Clone, Copy, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerGate {
    /// Whether a pod may leave before a read confirms that the node is out of its load balancers. Required: no pod, but where the node is
    /// only kept in service because too few others are; then after confirmationTimeoutSeconds. BestEffort: after
    /// confirmationTimeoutSeconds in any case.
    #[serde(default)]
    pub confirmation: LoadBalancerConfirmation,
    /// How long the controller waits for the confirmation where it may go on without, in seconds.
    #[serde(default = "LoadBalancerGate::default_confirmation_timeout_seconds")]
    #[schemars(range(min = 0, max = 86400))]
    pub confirmation_timeout_seconds: i32,
    /// How long open connections may go on between the confirmation and the first Evacuation at least, in seconds.
    #[serde(default = "LoadBalancerGate::default_connections_drain_seconds")]
    #[schemars(range(min = 0, max = 86400))]
    pub connections_drain_seconds: i32,
    /// Whether the first Evacuation also waits for the connections that the node's agent counts (connections.count). Wait: until it
    /// counts none, where it counts. Ignore: it does not wait.
    #[serde(default)]
    pub connections: ConnectionsPolicy,
    /// How much longer than connectionsDrainSeconds it waits for them at most, in seconds.
    #[serde(default = "LoadBalancerGate::default_connections_timeout_seconds")]
    #[schemars(range(min = 0, max = 86400))]
    pub connections_timeout_seconds: i32,
}

/// How the pods of a maintenance leave.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationPolicy {
    /// Whether headgate may restart the rollout of a Deployment, so that it starts a replacement elsewhere before a pod leaves that a
    /// PodDisruptionBudget protects because it needs all replicas. The Deployment needs maxSurge above 0 and maxUnavailable 0.
    #[serde(default)]
    pub rollout: RolloutPolicy,
}

/// Whether headgate may restart rollouts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum RolloutPolicy {
    /// Only those of Deployments with the annotation `headgate.dev/rollout: Allow`.
    #[default]
    Annotated,
    /// Those of every Deployment.
    Allow,
}

/// Whether a maintenance waits for connections.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum ConnectionsPolicy {
    /// Until the node's agent counts none, where it counts.
    #[default]
    Wait,
    /// It does not.
    Ignore,
}

/// Whether a read has to confirm that a node is out of its load balancers.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum LoadBalancerConfirmation {
    /// No Evacuation is created before.
    #[default]
    Required,
    /// Evacuations are created after confirmationTimeoutSeconds without.
    BestEffort,
}

impl LoadBalancerGate {
    /// Ten minutes: several rounds of probes and of writes to Azure.
    fn default_confirmation_timeout_seconds() -> i32 {
        600
    }

    /// Half a minute, the default grace period of a pod.
    fn default_connections_drain_seconds() -> i32 {
        30
    }

    /// Five minutes, the default of cloud load balancers for deregistration.
    fn default_connections_timeout_seconds() -> i32 {
        300
    }
}

impl Default for LoadBalancerGate {
    fn default() -> Self {
        Self {
            confirmation: LoadBalancerConfirmation::default(),
            confirmation_timeout_seconds: Self::default_confirmation_timeout_seconds(),
            connections_drain_seconds: Self::default_connections_drain_seconds(),
            connections: ConnectionsPolicy::default(),
            connections_timeout_seconds: Self::default_connections_timeout_seconds(),
        }
    }
}
