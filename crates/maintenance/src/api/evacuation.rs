//! `Evacuation`: a request to remove one pod from its node, and the progress of its evacuators.
//!
//! The first shape of KEP-4563, which KEP-4212 builds on, with its admission rules as CEL.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::schema;

/// The pod to evacuate, and who evacuates it.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[kube(
    group = "headgate.dev",
    version = "v1alpha1",
    kind = "Evacuation",
    shortname = "evac",
    category = "headgate",
    namespaced,
    status = "EvacuationStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A request to remove one pod from its node.",
    validation = Rule::new(
        "self.metadata.name.startsWith(self.spec.podRef.uid + '-') && (self.spec.podRef.uid + '-' + (size(self.spec.podRef.name) <= 150 ? self.spec.podRef.name : self.spec.podRef.name.substring(0, 150))).startsWith(self.metadata.name) && (self.spec.podRef.uid + '-' + (size(self.spec.podRef.name) <= 150 ? self.spec.podRef.name : self.spec.podRef.name.substring(0, 150))).substring(size(self.metadata.name)).matches('^[-.]*$')"
    ).message("the name has to be podRef.uid, a hyphen, and podRef.name, of which only 150 characters count, without '-' and '.' at the end")
        .field_path(".metadata.name"),
    validation = Rule::new("!has(self.metadata.generateName) || self.metadata.generateName == ''")
        .message("generateName is not allowed").field_path(".metadata.generateName"),
    printcolumn(name = "Pod", type_ = "string", json_path = ".spec.podRef.name"),
    printcolumn(name = "Node", type_ = "string", json_path = ".metadata.labels.headgate\\.dev/node"),
    printcolumn(name = "Evacuator", type_ = "string", json_path = ".status.activeEvacuatorClass"),
    printcolumn(name = "Failed evictions", type_ = "integer", json_path = ".status.failedEvictionCounter"),
    printcolumn(name = "Cancellation", type_ = "string", json_path = ".status.evacuationCancellationPolicy", priority = "1"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.evacuators) || (has(self.evacuators) && self.evacuators == oldSelf.evacuators)")
        .message("evacuators is immutable once it is set").field_path(".evacuators").reason(Reason::FieldValueForbidden),
)]
pub struct EvacuationSpec {
    /// Reference to the pod to remove, which is in the namespace of the Evacuation.
    #[x_kube(validation = Rule::new("self == oldSelf").message("podRef is immutable").reason(Reason::FieldValueForbidden))]
    pub pod_ref: PodReference,
    /// Who may evacuate the pod, from the pod's annotations. The controller fills it in where it is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    #[x_kube(
        merge_strategy = ListMerge::Map(vec!["evacuatorClass".into()]),
        validation = Rule::new("self.all(e, (has(e.role) && e.role == 'controller') == (e.priority == 10000))")
            .message("the role controller has priority 10000, and nothing else has"),
        validation = Rule::new("self.filter(e, e.priority == 10000).size() <= 1")
            .message("at most one evacuator has the role controller"),
    )]
    pub evacuators: Option<Vec<Evacuator>>,
    /// How long the active evacuator may go without progress before the next one has its turn, in seconds. Immutable.
    #[serde(default = "default_progress_deadline_seconds")]
    #[schemars(range(min = 600, max = 21600))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("progressDeadlineSeconds is immutable").reason(Reason::FieldValueForbidden))]
    pub progress_deadline_seconds: i32,
}

fn default_progress_deadline_seconds() -> i32 {
    super::names::PROGRESS_DEADLINE_SECONDS
}

/// One pod, and no other of the same name.
#[derive(Clone, Debug, Default, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
pub struct PodReference {
    /// Name of the pod, 1 to 253 characters.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub name: String,
    /// UID of the pod, which a later pod of the same name does not have.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
}

/// Who may evacuate a pod.
#[derive(Clone, Debug, Deserialize, Eq, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evacuator {
    /// A DNS name that only this evacuator uses, perhaps with a slash and a name, as in `headgate.dev/daemonset`.
    #[schemars(
        length(min = 1, max = 54),
        regex(
            pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(/[a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"
        )
    )]
    pub evacuator_class: String,
    /// The highest is first.
    #[schemars(range(min = 0, max = 100_000))]
    pub priority: i32,
    /// `controller` for the one that created the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub role: Option<String>,
}

/// What the evacuators did. The active one writes it, and the controller where it switches to the next or finds a time far ahead.
#[derive(Clone, Debug, Default, Deserialize, KubeSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationStatus {
    /// The class whose turn it is. Other evacuators do nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 54))]
    pub active_evacuator_class: Option<String>,
    /// The active evacuator can do no more.
    #[serde(default)]
    pub active_evacuator_completed: bool,
    /// When the active evacuator made progress last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub evacuation_progress_timestamp: Option<Time>,
    /// When the active evacuator expects to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub expected_evacuation_finish_time: Option<Time>,
    /// Whether the evacuation can be cancelled. The active evacuator writes it. Allow: the Evacuation ends when it is deleted or its last
    /// instigator leaves. Forbid: it goes on until the pod is gone.
    #[serde(default, deserialize_with = "known_policy")]
    pub evacuation_cancellation_policy: CancellationPolicy,
    /// How many times the Eviction API refused.
    #[schemars(range(min = 0))]
    #[x_kube(validation = Rule::new("self >= oldSelf").message("failedEvictionCounter can only increase"))]
    #[serde(default)]
    pub failed_eviction_counter: i32,
    /// What happens, for people.
    #[schemars(length(max = 4000))]
    #[serde(default)]
    pub message: String,
    /// Conditions, of the types EvictionFailed and RolloutRestarted.
    #[schemars(schema_with = "schema::conditions")]
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// What a newer version may have written forbids the cancellation: it could be undone otherwise.
fn known_policy<'de, D: Deserializer<'de>>(from: D) -> Result<CancellationPolicy, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).unwrap_or(CancellationPolicy::Forbid))
}

/// Whether an evacuation can be cancelled.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum CancellationPolicy {
    /// The Evacuation ends when it is deleted or its last instigator leaves.
    #[default]
    Allow,
    /// It goes on until the pod is gone.
    Forbid,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn policy_of_a_newer_version_forbids_the_cancellation() {
        for (value, expected) in [
            (json!({}), CancellationPolicy::Allow),
            (
                json!({"evacuationCancellationPolicy": "Allow"}),
                CancellationPolicy::Allow,
            ),
            (
                json!({"evacuationCancellationPolicy": "Forbid"}),
                CancellationPolicy::Forbid,
            ),
            (
                json!({"evacuationCancellationPolicy": "Ask"}),
                CancellationPolicy::Forbid,
            ),
        ] {
            let status: EvacuationStatus = serde_json::from_value(value).unwrap();
            assert_eq!(status.evacuation_cancellation_policy, expected);
        }
    }
}
