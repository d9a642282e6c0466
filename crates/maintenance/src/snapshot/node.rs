//! A Node, as far as maintenances are concerned.

use headgate_node::MAINTENANCE_TAINT;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use crate::api::names::CORDON_ANNOTATION;
use crate::drain_plan::Labels;

/// A Node, as far as maintenances are concerned.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeFacts {
    /// The `metadata.name` of the Node.
    pub name: String,
    /// The labels that node selectors match.
    pub labels: Labels,
    /// Whether `spec.unschedulable` is true; an unset field counts as false.
    pub is_unschedulable: bool,
    /// The taint `headgate.dev/maintenance:NoSchedule`, with any value.
    pub maintenance_taint: Option<TaintFacts>,
    /// `spec.unschedulable` before the first maintenance, from the Node's annotation.
    pub was_unschedulable: Option<bool>,
    /// Whether the condition `Ready` is `True`.
    pub is_ready: bool,
    /// When the node is expected to be gone, for a node with an eviction notice.
    pub deadline: Option<Timestamp>,
    /// The conditions that are `True`: type and message.
    pub conditions: Vec<(String, String)>,
}

/// The taint of a maintenance, of which only the value is needed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TaintFacts {
    /// Its value; may be empty.
    pub value: String,
}

impl From<&Node> for NodeFacts {
    /// The deadline is not on the Node; the caller adds it.
    fn from(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let annotations = node.metadata.annotations.as_ref();
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let conditions: Vec<_> = conditions
            .filter(|condition| condition.status == "True")
            .map(|condition| (condition.type_.clone(), condition.message.clone().unwrap_or_default()))
            .collect();
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            is_unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            maintenance_taint: spec
                .iter()
                .flat_map(|spec| spec.taints.iter().flatten())
                .find(|taint| taint.key == MAINTENANCE_TAINT && taint.effect == "NoSchedule")
                .map(|taint| TaintFacts {
                    value: taint.value.clone().unwrap_or_default(),
                }),
            was_unschedulable: annotations
                .and_then(|annotations| annotations.get(CORDON_ANNOTATION))
                .map(|value| value == "true"),
            is_ready: conditions.iter().any(|(kind, _)| kind == "Ready"),
            deadline: None,
            conditions,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_node_says() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "one", "labels": {"pool": "a"}, "annotations": {CORDON_ANNOTATION: "false"}},
            "spec": {"unschedulable": true, "taints": [
                {"key": MAINTENANCE_TAINT, "value": "by-hand", "effect": "NoExecute"},
                {"key": MAINTENANCE_TAINT, "value": "uid", "effect": "NoSchedule"}]},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"},
                {"type": "Drained", "status": "False"}]},
        }))
        .unwrap();
        let facts = NodeFacts::from(&node);
        assert_eq!(facts.name, "one");
        assert!(facts.is_unschedulable && facts.is_ready);
        assert_eq!(facts.was_unschedulable, Some(false));
        assert_eq!(facts.maintenance_taint.unwrap().value, "uid");
        assert_eq!(facts.conditions.len(), 1);
    }
}
