//! The part of a Node object that facts are read from. Other fields are not decoded, so they take no memory.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::deletion_delay::AutoscalerFacts;
use super::matcher::SignalRules;
use super::signal::Facts;

/// A Node without images, addresses, capacity and other fields that headgate does not read.
#[derive(Clone, Debug, Default, Deserialize, Serialize, Resource)]
#[resource(inherit = Node)]
pub struct SlimNode {
    /// Read for name, UID, deletion timestamp, labels and annotations.
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
    /// The taints, without their effects.
    #[serde(default)]
    pub taints: Vec<SlimTaint>,
    /// Whether the node is cordoned.
    #[serde(default)]
    pub unschedulable: bool,
    /// The cloud's name for the machine.
    #[serde(default, rename = "providerID")]
    pub provider_id: String,
}

/// A taint without its effect.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlimTaint {
    /// The key, which alone decides whether the taint is a signal.
    pub key: String,
    /// The value; Cluster Autoscaler's taint has its time there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// The fields of a Node's status that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SlimStatus {
    /// The conditions; Ready is read, and those that a matcher names.
    #[serde(default)]
    pub conditions: Vec<SlimCondition>,
    /// kubelet's description of the machine, reduced.
    #[serde(default, rename = "nodeInfo")]
    pub node_info: SlimNodeInfo,
}

/// A condition without the time of its last transition.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SlimCondition {
    /// The condition's type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason, one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The message, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The time of the last heartbeat. Kept as text, because it is only compared.
    #[serde(default, rename = "lastHeartbeatTime", skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<String>,
}

/// The fields of a Node's `status.nodeInfo` that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SlimNodeInfo {
    /// The ID of the present boot.
    #[serde(default, rename = "bootID")]
    pub boot_id: String,
}

impl SlimNode {
    /// The facts in this object; the rules decide which labels, annotations and conditions are kept.
    #[must_use]
    pub fn facts(&self, rules: &SignalRules) -> Facts {
        let taints = self.spec.taints.iter().map(|taint| taint.key.clone()).collect();
        let (cordon, conditions) = (self.spec.unschedulable, &self.status.conditions);
        Facts {
            provider_id: self.spec.provider_id.clone(),
            boot_id: self.status.node_info.boot_id.clone(),
            autoscaler: AutoscalerFacts::read(self),
            ..Facts::read(&self.metadata, taints, cordon, conditions, rules)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(node: &serde_json::Value) -> Facts {
        serde_json::from_value::<SlimNode>(node.clone())
            .unwrap()
            .facts(&SignalRules::default_health())
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
