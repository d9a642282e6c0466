//! A Node, as far as maintenances are concerned.

use headgate_core::node::{
    CONNECTIONS_CONDITION, DRAINING_TAINT, MAINTENANCE_TAINT, MarkerFact, NodeObject, Taint, recorded_not_before,
};
use jiff::Timestamp;

use crate::api::names::CORDON_ANNOTATION;
use crate::drain_plan::Labels;

/// Of the message about connections; the status of a maintenance has one for each node.
const MAX_CONNECTIONS_BYTES: usize = 256;

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
    /// The message of the condition `headgate.dev/ConnectionsDrained` while that says that connections pass through the node.
    pub connections: Option<String>,
    /// The conditions that are `True`: type and message.
    pub conditions: Vec<(String, String)>,
}

/// The taint of a maintenance, of which only the value is needed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TaintFacts {
    /// Its value; may be empty.
    pub value: String,
}

impl From<&NodeObject> for NodeFacts {
    /// A notice of an eviction counts while its taint is there.
    fn from(node: &NodeObject) -> Self {
        let NodeObject { metadata, spec, status } = node;
        let annotations = metadata.annotations.as_ref();
        let conditions = status.conditions.iter();
        let conditions: Vec<_> = conditions
            .filter(|condition| condition.status == "True")
            .map(|condition| (condition.type_.clone(), condition.message.clone().unwrap_or_default()))
            .collect();
        let has_notice = spec.taints.iter().any(|taint| taint.key == DRAINING_TAINT);
        let own = |taint: &&Taint| taint.key == MAINTENANCE_TAINT && taint.effect == "NoSchedule";
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            labels: metadata.labels.clone().unwrap_or_default(),
            is_unschedulable: spec.unschedulable,
            maintenance_taint: spec.taints.iter().find(own).map(|taint| TaintFacts {
                value: taint.value.clone().unwrap_or_default(),
            }),
            was_unschedulable: annotations
                .and_then(|annotations| annotations.get(CORDON_ANNOTATION))
                .map(|value| value == "true"),
            is_ready: conditions.iter().any(|(kind, _)| kind == "Ready"),
            connections: MarkerFact::find(&status.conditions, CONNECTIONS_CONDITION)
                .filter(MarkerFact::is_pending)
                .map(|fact| fact.message[..fact.message.floor_char_boundary(MAX_CONNECTIONS_BYTES)].to_owned()),
            deadline: annotations.filter(|_| has_notice).and_then(recorded_not_before),
            conditions,
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_core::node::SPOT_NOTICE_ANNOTATION;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_node_says() {
        let node: NodeObject = serde_json::from_value(json!({
            "metadata": {"name": "one", "labels": {"pool": "a"}, "annotations": {CORDON_ANNOTATION: "false"}},
            "spec": {"unschedulable": true, "taints": [
                {"key": MAINTENANCE_TAINT, "value": "by-hand", "effect": "NoExecute"},
                {"key": MAINTENANCE_TAINT, "value": "uid", "effect": "NoSchedule"}]},
            "status": {"conditions": [
                {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"},
                {"type": "Drained", "status": "False"},
                {"type": CONNECTIONS_CONDITION, "status": "False", "reason": "ConnectionsOpen", "message": "é".repeat(200)}]},
        }))
        .unwrap();
        let facts = NodeFacts::from(&node);
        assert_eq!(facts.name, "one");
        assert!(facts.is_unschedulable && facts.is_ready);
        assert_eq!(facts.was_unschedulable, Some(false));
        assert_eq!(facts.maintenance_taint.unwrap().value, "uid");
        assert_eq!(facts.conditions.len(), 1);
        assert_eq!(facts.connections.unwrap(), "é".repeat(128));
    }

    #[test]
    fn a_notice_is_a_deadline_while_its_taint_is_there() {
        let notice = r#"{"eventId": "A1", "notBefore": "2026-01-02T03:04:05Z"}"#;
        for (taints, record, expected) in [
            (
                json!([{"key": DRAINING_TAINT, "effect": "NoSchedule"}]),
                notice,
                Some("2026-01-02T03:04:05Z"),
            ),
            (json!([]), notice, None),
            (json!([{"key": DRAINING_TAINT, "effect": "NoSchedule"}]), "{}", None),
        ] {
            let node: NodeObject = serde_json::from_value(json!({
                "metadata": {"name": "one", "uid": "u", "annotations": {SPOT_NOTICE_ANNOTATION: record}},
                "spec": {"taints": taints, "podCIDR": "10.0.0.0/24"}, "status": {"images": []},
            }))
            .unwrap();
            let facts = NodeFacts::from(&node);
            let expected = expected.map(|time| time.parse::<Timestamp>().unwrap());
            assert_eq!((facts.name.as_str(), facts.deadline), ("one", expected), "{record}");
        }
    }
}
