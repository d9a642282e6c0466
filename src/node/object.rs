//! The slice of a Node object that signals are made of, and nothing else of it.

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::signal::Facts;

/// Words in the Ready condition's message by which kubelet announces a graceful node shutdown
/// (kubelet `nodeshutdown`: "node is shutting down").
const SHUTTING_DOWN: &str = "node is shutting down";

/// A Node without images, addresses, capacity and the like.
#[derive(Clone, Debug, Deserialize, Serialize, Resource)]
#[resource(inherit = Node)]
pub struct SlimNode {
    /// Name, UID and deletion time.
    pub metadata: ObjectMeta,
    /// The taints.
    #[serde(default)]
    pub spec: SlimSpec,
    /// The conditions.
    #[serde(default)]
    pub status: SlimStatus,
}

/// The part of a Node's spec that is read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SlimSpec {
    /// Taints, by key only.
    #[serde(default)]
    pub taints: Vec<SlimTaint>,
}

/// A taint's key.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlimTaint {
    /// The key; value and effect never matter here.
    pub key: String,
}

/// The part of a Node's status that is read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SlimStatus {
    /// Conditions, of which only Ready is looked at.
    #[serde(default)]
    pub conditions: Vec<NodeCondition>,
}

impl SlimNode {
    /// What the object says about the node going away.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let shutting_down = self.status.conditions.iter().any(|condition| {
            condition.type_ == "Ready"
                && condition.status == "False"
                && condition.reason.as_deref() == Some("KubeletNotReady")
                && condition
                    .message
                    .as_deref()
                    .is_some_and(|message| message.contains(SHUTTING_DOWN))
        });
        Facts {
            uid: self.metadata.uid.clone().unwrap_or_default(),
            deleting: self.metadata.deletion_timestamp.is_some(),
            shutting_down,
            taints: self.spec.taints.iter().map(|taint| taint.key.clone()).collect(),
        }
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
    fn a_bare_node_says_nothing() {
        assert_eq!(
            facts(&json!({"metadata": {"uid": "u"}})),
            Facts {
                uid: "u".into(),
                ..Facts::default()
            }
        );
    }

    #[test]
    fn taints_and_deletion_are_read() {
        let node = json!({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "value": "v", "effect": "NoExecute"}]}});
        let facts = facts(&node);
        assert!(facts.deleting);
        assert_eq!(facts.taints, ["a", "b"]);
    }

    #[test]
    fn only_kubelets_shutdown_condition_counts() {
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
