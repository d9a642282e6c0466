//! The part of a Node object that facts are read from. Other fields are not decoded, so they take no memory.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::signal::Facts;

/// The text in the Ready condition's message by which kubelet reports a graceful node shutdown (upstream:
/// `nodeshutdown` in kubelet).
const SHUTDOWN_MESSAGE: &str = "node is shutting down";

/// The prefix of the annotations that headgate writes.
const OWN_ANNOTATION_PREFIX: &str = "headgate.dev/";
/// Longer values are ignored: headgate writes none, and they would fill the remembered state.
const MAX_ANNOTATION_BYTES: usize = 4096;

/// A Node without images, addresses, capacity and other fields that headgate does not read.
#[derive(Clone, Debug, Deserialize, Serialize, Resource)]
#[resource(inherit = Node)]
pub struct SlimNode {
    /// Read for name, UID, deletion timestamp and annotations.
    pub metadata: ObjectMeta,
    /// The Node's spec, reduced.
    #[serde(default)]
    pub spec: SlimSpec,
    /// The Node's status, reduced.
    #[serde(default)]
    pub status: SlimStatus,
}

/// The fields of a Node's spec that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SlimSpec {
    /// The taints, reduced to their keys.
    #[serde(default)]
    pub taints: Vec<SlimTaint>,
    /// The cloud's name for the machine.
    #[serde(default, rename = "providerID")]
    pub provider_id: String,
}

/// A taint without value and effect.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlimTaint {
    /// The key, which alone decides whether the taint is a signal.
    pub key: String,
}

/// The fields of a Node's status that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SlimStatus {
    /// The conditions; only Ready is read.
    #[serde(default)]
    pub conditions: Vec<NodeCondition>,
    /// kubelet's description of the machine, reduced.
    #[serde(default, rename = "nodeInfo")]
    pub node_info: SlimNodeInfo,
}

/// The fields of a Node's `status.nodeInfo` that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SlimNodeInfo {
    /// The ID of the present boot.
    #[serde(default, rename = "bootID")]
    pub boot_id: String,
}

impl SlimNode {
    /// The facts in this object.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let shutting_down = self.status.conditions.iter().any(|condition| {
            condition.type_ == "Ready"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("KubeletNotReady")
                && condition
                    .message
                    .as_deref()
                    .is_some_and(|message| message.contains(SHUTDOWN_MESSAGE))
        });
        Facts {
            uid: self.metadata.uid.clone().unwrap_or_default(),
            deleting: self.metadata.deletion_timestamp.is_some(),
            shutting_down,
            taints: self.spec.taints.iter().map(|taint| taint.key.clone()).collect(),
            provider_id: self.spec.provider_id.clone(),
            boot_id: self.status.node_info.boot_id.clone(),
            annotations: self.own_annotations(),
        }
    }

    fn own_annotations(&self) -> BTreeMap<String, String> {
        let all = self.metadata.annotations.iter().flatten();
        let own =
            all.filter(|(key, value)| key.starts_with(OWN_ANNOTATION_PREFIX) && value.len() <= MAX_ANNOTATION_BYTES);
        own.map(|(key, value)| (key.clone(), value.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(node: &serde_json::Value) -> Facts {
        serde_json::from_value::<SlimNode>(node.clone()).unwrap().facts()
    }

    #[test]
    fn bare_node_has_no_facts_but_its_uid() {
        assert_eq!(
            facts(&json!({"metadata": {"uid": "u"}})),
            Facts {
                uid: "u".into(),
                ..Facts::default()
            }
        );
    }

    #[test]
    fn taints_and_deletion_are_facts() {
        let node = json!({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "value": "v", "effect": "NoExecute"}]}});
        let facts = facts(&node);
        assert!(facts.deleting);
        assert_eq!(facts.taints, ["a", "b"]);
    }

    #[test]
    fn machine_and_own_annotations_are_facts() {
        let node = json!({"metadata": {"annotations": {"headgate.dev/a": "1", "other.dev/b": "2", "headgate.dev/c": "x".repeat(5000)}},
            "spec": {"providerID": "azure:///x"}, "status": {"nodeInfo": {"bootID": "b", "machineID": "m"}}});
        let facts = facts(&node);
        assert_eq!(
            (facts.provider_id.as_str(), facts.boot_id.as_str()),
            ("azure:///x", "b")
        );
        assert_eq!(
            facts.annotations,
            [("headgate.dev/a".to_owned(), "1".to_owned())].into()
        );
        let earlier = r#"{"uid":"u","deleting":false,"shuttingDown":false,"taints":[]}"#;
        assert_eq!(
            serde_json::from_str::<Facts>(earlier).unwrap().provider_id,
            "",
            "a state that was written before the field existed"
        );
    }

    #[test]
    fn only_the_shutdown_condition_of_kubelet_counts() {
        let condition = |type_: &str, status: &str, reason: &str, message: &str| {
            let node = json!({"metadata": {}, "status": {"conditions": [
                {"type": type_, "status": status, "reason": reason, "message": message}]}});
            facts(&node).shutting_down
        };
        assert!(condition("Ready", "False", "KubeletNotReady", "node is shutting down"));
        assert!(condition(
            "Ready",
            "False",
            "KubeletNotReady",
            "[PLEG is not healthy, node is shutting down]"
        ));
        assert!(!condition("Ready", "True", "KubeletReady", "node is shutting down"));
        assert!(!condition(
            "Ready",
            "Unknown",
            "NodeStatusUnknown",
            "node is shutting down"
        ));
        assert!(!condition(
            "Ready",
            "False",
            "KubeletNotReady",
            "container runtime is down"
        ));
        assert!(!condition("Ready", "False", "Other", "node is shutting down"));
        assert!(!condition(
            "DiskPressure",
            "False",
            "KubeletNotReady",
            "node is shutting down"
        ));
    }
}
