//! Names in Node objects that several crates read or write: taints, labels, annotations and conditions.

/// The taint with which Cluster Autoscaler announces the deletion of a node.
pub const AUTOSCALER_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
/// The taint of a node that Cluster Autoscaler may delete soon.
pub const CANDIDATE_TAINT: &str = "DeletionCandidateOfClusterAutoscaler";
/// Set by Kubernetes' node lifecycle controller, with its time, soon after a node is cordoned.
pub(super) const CORDON_TAINT: &str = "node.kubernetes.io/unschedulable";
/// The taint of a node whose machine an operator declares dead. cloud-controller-manager removes it with the effect `NoExecute` from
/// a Node that is ready.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";
/// The taint of a node whose machine is shut down.
pub(crate) const SHUTDOWN_TAINT: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// The taint of a node that Karpenter removes.
pub const KARPENTER_TAINT: &str = "karpenter.sh/disrupted";
/// The taint of a node that medik8s' Node Maintenance Operator drains.
pub(crate) const MEDIK8S_TAINT: &str = "medik8s.io/drain";
/// The taint that headgate sets when Azure announces the eviction of the VM.
pub const DRAINING_TAINT: &str = "cloudprovider.azure.microsoft.com/draining";
/// The value of [`DRAINING_TAINT`] for an eviction, as in cloud-provider-azure's design.
pub const EVICTION_TAINT_VALUE: &str = "spot-eviction";
/// The taint of a node in the stage `Drain` of a maintenance, effect `NoSchedule`. Its value is the UID of a maintenance, also of one
/// that is gone where the Node has the annotation of the cordon; another value belongs to another writer.
pub const MAINTENANCE_TAINT: &str = "headgate.dev/maintenance";

/// Kubernetes' label that excludes a Node from load balancers; its value does not matter.
pub const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The annotation that contains the [`NodeHold`](crate::node::NodeHold) as JSON. A policy lets only the leader's service account write it.
pub const HOLD_ANNOTATION: &str = "headgate.dev/hold";
/// The annotation that keeps `spec.unschedulable` as it was before the first maintenance: `true` or `false`.
pub const CORDON_ANNOTATION: &str = "headgate.dev/unschedulable-before-maintenance";
/// The annotations with which Cluster Autoscaler and Karpenter leave a node alone, both with the value `true`.
pub const AUTOSCALER_ANNOTATIONS: [&str; 2] = [
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "karpenter.sh/do-not-disrupt",
];
/// The annotation that keeps [`AUTOSCALER_ANNOTATIONS`] as they were before the first maintenance, as JSON: the value, or `null`.
pub const SCALE_DOWN_ANNOTATION: &str = "headgate.dev/scale-down-before-maintenance";
/// The label of AKS that says how a node takes part in an upgrade.
pub const UPGRADE_STATUS_LABEL: &str = "kubernetes.azure.com/upgrade-status";
/// The annotation of a Node that has [`UPGRADE_STATUS_LABEL`] from headgate.
pub const UPGRADE_PAUSED_ANNOTATION: &str = "headgate.dev/upgrade-paused";
/// The annotation with which Cluster Autoscaler waits. It compares the prefix; the name after it is headgate's.
pub const DELETION_DELAY_ANNOTATION: &str = "delay-deletion.cluster-autoscaler.kubernetes.io/headgate";
/// The annotations with which Cluster API names the Machine of a Node: its namespace, and its name.
pub const CLUSTER_API_ANNOTATIONS: [&str; 2] = ["cluster.x-k8s.io/cluster-namespace", "cluster.x-k8s.io/machine"];
/// The annotation that contains the record of an eviction notice as JSON.
pub const SPOT_NOTICE_ANNOTATION: &str = "headgate.dev/spot-notice";

/// The condition that says whether the node is out of its load balancers.
pub const MARKER_CONDITION: &str = "headgate.dev/OutOfLoadBalancers";
/// The condition that says whether connections still pass through a node that is to go.
pub const CONNECTIONS_CONDITION: &str = "headgate.dev/ConnectionsDrained";
/// The conditions of KEP-5683 that maintenances set.
pub const MAINTENANCE_CONDITIONS: [&str; 4] = [
    "MaintenancePlanned",
    "MaintenanceInProgress",
    "DrainInProgress",
    "Drained",
];
