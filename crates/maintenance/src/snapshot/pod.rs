//! A pod, as far as maintenances are concerned.

use std::collections::BTreeMap;

use headgate_core::node::MAINTENANCE_TAINT;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use crate::api::PodType;
use crate::api::names::{MIRROR_ANNOTATION, evacuator_class};
use crate::drain_plan::{DrainTargets, Labels};

/// Kubernetes' default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(30);

/// Limit of the bytes of the labels that are kept of a pod. Kubernetes has none, and who creates pods chooses them; a selector does not find
/// those beyond it.
const MAX_LABEL_BYTES: usize = 16 << 10;
/// The finalizers that are kept of a pod, whose number has no limit either.
const MAX_FINALIZERS: usize = 16;

/// What is read of a pod. The other fields are never kept in memory.
#[derive(Clone, Debug, Default, Deserialize, Serialize, Resource)]
#[resource(inherit = Pod)]
pub struct PodObject {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    spec: PodFields,
    #[serde(default)]
    status: PodStatusFields,
}

impl PodObject {
    /// A pod on a node of which nothing else is known.
    pub(crate) fn on_node(metadata: ObjectMeta, node: &str) -> Self {
        let spec = PodFields {
            node_name: Some(node.to_owned()),
            ..PodFields::default()
        };
        let status = PodStatusFields::default();
        Self { metadata, spec, status }
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodFields {
    #[serde(default)]
    node_name: Option<String>,
    #[serde(default)]
    priority: Option<i32>,
    #[serde(default)]
    tolerations: Option<Vec<Toleration>>,
    #[serde(default)]
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct PodStatusFields {
    #[serde(default)]
    phase: Option<String>,
    #[serde(default)]
    conditions: Option<Vec<PodCondition>>,
}

/// What controls a pod, from the owner reference with `controller: true`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Owner {
    /// Its API version, such as `apps/v1`.
    pub api_version: String,
    /// Its kind, such as `ReplicaSet`.
    pub kind: String,
    /// The `metadata.name`.
    pub name: String,
    /// The UID, which a later object of the same name does not have.
    pub uid: String,
}

impl Owner {
    /// Whether it is of this kind in the API group `apps`.
    pub(crate) fn is_apps(&self, kind: &str) -> bool {
        self.kind == kind && self.api_version.starts_with("apps/")
    }
}

/// A pod, as far as maintenances are concerned.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PodFacts {
    /// Namespace of the pod, and of its Evacuation.
    pub namespace: String,
    /// The `metadata.name` of the pod.
    pub name: String,
    /// UID of the pod, which finds its Evacuation.
    pub uid: String,
    /// The node it is bound to.
    pub node: String,
    /// The labels that drain plans and PodDisruptionBudgets match.
    pub labels: Labels,
    /// Its annotations that register evacuators.
    pub evacuators: BTreeMap<String, String>,
    /// `spec.priority`, 0 where unset.
    pub priority: i32,
    /// What created the pod: its controlling owner, or kubelet from a file.
    pub pod_type: PodType,
    /// Its controlling owner, if it has one.
    pub owner: Option<Owner>,
    /// Whether it tolerates the taint of a maintenance.
    pub tolerates_maintenance: bool,
    /// Whether its phase is `Pending`.
    pub is_pending: bool,
    /// Whether its phase is `Succeeded` or `Failed`.
    pub is_finished: bool,
    /// Whether its condition `Ready` is `True`.
    pub is_ready: bool,
    /// The time that its containers get to end.
    pub grace_period: SignedDuration,
    /// When it should be gone, for a pod that is terminating: `metadata.deletionTimestamp`.
    pub terminating_until: Option<Timestamp>,
    /// Its first finalizers, which may keep it after its containers have ended.
    pub finalizers: Vec<String>,
}

impl PodFacts {
    /// A DaemonSet that tolerates the maintenance would recreate the pod at once.
    pub fn is_exempt(&self) -> bool {
        self.pod_type == PodType::DaemonSet && self.tolerates_maintenance
    }

    /// Whether a drain waits for the pod. It waits neither for finished pods nor for those that the API cannot remove.
    pub fn has_to_leave(&self) -> bool {
        !self.is_finished && !self.is_exempt() && self.pod_type != PodType::Static
    }

    /// Whether the pod has to leave now.
    pub fn is_targeted(&self, targets: &DrainTargets) -> bool {
        self.has_to_leave() && targets.select(self.pod_type, self.priority, &self.labels)
    }
}

impl From<PodObject> for PodFacts {
    fn from(PodObject { metadata, spec, status }: PodObject) -> Self {
        let owner = controlling_owner(&metadata);
        let annotations = metadata.annotations.unwrap_or_default();
        let pod_type = if annotations.contains_key(MIRROR_ANNOTATION) {
            PodType::Static
        } else if owner.as_ref().is_some_and(|owner| owner.is_apps("DaemonSet")) {
            PodType::DaemonSet
        } else {
            PodType::Default
        };
        let evacuators = annotations
            .into_iter()
            .filter(|(key, _)| evacuator_class(key).is_some());
        let grace_period = spec.termination_grace_period_seconds;
        let mut conditions = status.conditions.iter().flatten();
        Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            node: spec.node_name.unwrap_or_default(),
            labels: bounded(metadata.labels.unwrap_or_default()),
            evacuators: evacuators.collect(),
            priority: spec.priority.unwrap_or(0),
            pod_type,
            owner,
            tolerates_maintenance: spec.tolerations.iter().flatten().any(tolerates_maintenance),
            is_pending: status.phase.as_deref() == Some("Pending"),
            is_finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            is_ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            grace_period: grace_period.map_or(DEFAULT_GRACE_PERIOD, SignedDuration::from_secs),
            terminating_until: metadata.deletion_timestamp.map(|time| time.0),
            finalizers: metadata.finalizers.into_iter().flatten().take(MAX_FINALIZERS).collect(),
        }
    }
}

/// The labels up to `MAX_LABEL_BYTES`, in the order of their keys.
fn bounded(labels: Labels) -> Labels {
    let mut bytes = 0;
    let is_within = |(key, value): &(String, String)| {
        bytes += key.len() + value.len();
        bytes <= MAX_LABEL_BYTES
    };
    labels.into_iter().take_while(is_within).collect()
}

/// The owner reference of an object that controls it.
pub(crate) fn controlling_owner(metadata: &ObjectMeta) -> Option<Owner> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(Owner {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    })
}

/// Whether a toleration covers the taint whatever its value is. One of a single value cannot be meant: it is a UID.
fn tolerates_maintenance(toleration: &Toleration) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    toleration.operator.as_deref() == Some("Exists")
        && matches!(key, "" | MAINTENANCE_TAINT)
        && matches!(effect, "" | "NoSchedule")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: &Value, spec: &Value, phase: &str) -> PodFacts {
        let mut pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": {"nodeName": "one"},
            "status": {"phase": phase}});
        for (part, fields) in [("metadata", metadata), ("spec", spec)] {
            for (field, value) in fields.as_object().unwrap() {
                pod[part][field] = value.clone();
            }
        }
        PodFacts::from(serde_json::from_value::<PodObject>(pod).unwrap())
    }

    fn owner(version: &str, kind: &str, controller: bool) -> Value {
        json!({"ownerReferences": [{"apiVersion": version, "kind": kind, "name": "o", "uid": "o", "controller": controller}]})
    }

    #[test]
    fn the_type_comes_from_the_owner() {
        for (metadata, pod_type) in [
            (json!({}), PodType::Default),
            (owner("apps/v1", "ReplicaSet", true), PodType::Default),
            (owner("apps/v1", "DaemonSet", true), PodType::DaemonSet),
            (owner("apps/v1", "DaemonSet", false), PodType::Default),
            (owner("apps.kruise.io/v1alpha1", "DaemonSet", true), PodType::Default),
            (json!({"annotations": {MIRROR_ANNOTATION: "hash"}}), PodType::Static),
        ] {
            assert_eq!(pod(&metadata, &json!({}), "Running").pod_type, pod_type, "{metadata}");
        }
    }

    #[test]
    fn only_a_daemon_set_that_tolerates_is_exempt() {
        let daemon_set = owner("apps/v1", "DaemonSet", true);
        let of_cordon = json!({"operator": "Exists", "key": "node.kubernetes.io/unschedulable"});
        for (toleration, exempt) in [
            (json!({"operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"operator": "Exists", "key": MAINTENANCE_TAINT}), true),
            (of_cordon, false),
            (json!({"key": MAINTENANCE_TAINT, "value": "x"}), false),
        ] {
            let spec = json!({"tolerations": [toleration]});
            let facts = pod(&daemon_set, &spec, "Running");
            assert_eq!(facts.is_exempt(), exempt, "{toleration}");
            assert_eq!(facts.has_to_leave(), !exempt, "{toleration}");
            let other = pod(&json!({}), &spec, "Running");
            assert!(other.has_to_leave(), "not of a DaemonSet: {toleration}");
        }
    }

    #[test]
    fn finished_and_static_pods_are_not_waited_for() {
        for phase in ["Pending", "Running", "Unknown", "Succeeded", "Failed"] {
            let waits = !["Succeeded", "Failed"].contains(&phase);
            let facts = pod(&json!({}), &json!({}), phase);
            assert_eq!(facts.has_to_leave(), waits, "{phase}");
            assert_eq!(facts.is_pending, phase == "Pending");
        }
        let mirror = json!({"annotations": {MIRROR_ANNOTATION: "hash"}});
        assert!(!pod(&mirror, &json!({}), "Running").has_to_leave());
    }

    #[test]
    fn labels_and_finalizers_are_kept_within_bounds() {
        for (count, labels, finalizers) in [(3, 3, 3), (10_000, 1638, 16)] {
            let many: BTreeMap<_, _> = (0..count).map(|number| (format!("l{number:05}"), "text")).collect();
            let names: Vec<_> = (0..count).map(|number| format!("example.com/{number}")).collect();
            let facts = pod(&json!({"labels": many, "finalizers": names}), &json!({}), "Running");
            assert_eq!((facts.labels.len(), facts.finalizers.len()), (labels, finalizers));
            assert_eq!(facts.labels.get("l00000").map(String::as_str), Some("text"));
        }
    }

    #[test]
    fn priority_grace_period_and_evacuators() {
        let key = format!("{}a.example", crate::api::names::EVACUATOR_ANNOTATION_PREFIXES[0]);
        let metadata = json!({"annotations": {&key: "5", "other": "6"}});
        let spec = json!({"priority": -7, "terminationGracePeriodSeconds": 5, "containers": []});
        let facts = pod(&metadata, &spec, "Running");
        assert_eq!((facts.priority, facts.grace_period.as_secs()), (-7, 5));
        assert_eq!((facts.node.as_str(), facts.uid.as_str()), ("one", "u"));
        assert_eq!(facts.evacuators, BTreeMap::from([(key, "5".to_owned())]));
        let facts = pod(&json!({}), &json!({}), "Running");
        assert_eq!((facts.priority, facts.grace_period.as_secs()), (0, 30));
    }
}
