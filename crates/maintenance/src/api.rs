//! The kinds `NodeMaintenance` and `Evacuation` of `headgate.dev/v1alpha1`, and their CRDs.

#[allow(unreachable_pub, reason = "the derive repeats each type inside a function")]
#[allow(clippy::duplicated_attributes, reason = "two printer columns may have the same type")]
mod evacuation;
mod known;
pub mod names;
#[allow(unreachable_pub, reason = "the derive repeats each type inside a function")]
#[allow(clippy::duplicated_attributes, reason = "two printer columns may have the same type")]
#[allow(clippy::struct_field_names, reason = "the names of the KEP")]
mod node_maintenance;
mod schema;
#[allow(unreachable_pub, reason = "the derive repeats each type inside a function")]
mod status;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

pub use evacuation::{CancellationPolicy, Evacuation, EvacuationSpec, EvacuationStatus, Evacuator, PodReference};
pub use node_maintenance::{
    ConnectionsPolicy, DrainPlanEntry, EvacuationPolicy, LoadBalancerConfirmation, LoadBalancerGate, NodeMaintenance,
    NodeMaintenanceSpec, PodType, RolloutPolicy, Stage,
};
pub use status::{
    BlockedPod, Blocker, BlockerReason, LoadBalancerState, LoadBalancerStatus, NodeMaintenanceNodeStatus,
    NodeMaintenanceStatus, NodeReference, StageStatus, TargetSet,
};

/// The definitions of both kinds, as the manifests have them.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [NodeMaintenance::crd(), Evacuation::crd()].map(schema::completed)
}
