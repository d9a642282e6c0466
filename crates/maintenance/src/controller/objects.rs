//! The fields of Nodes and pods that are read. The other fields are never kept in memory.

use headgate_node::DRAINING_TAINT;
use headgate_spot::NoticeRecord;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{
    Node, NodeCondition, NodeSpec, NodeStatus, Pod, PodCondition, PodSpec, PodStatus, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::probe_markers::ProbeMarker;
use crate::evacuation::daemon_set::DEFAULT_GRACE_PERIOD;
use crate::snapshot::{NodeFacts, PodFacts};

/// A Node, reduced.
#[derive(Clone, Debug, Default, Deserialize, Serialize, Resource)]
#[resource(inherit = Node)]
pub(super) struct NodeObject {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    spec: NodeFields,
    #[serde(default)]
    status: NodeStatusFields,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct NodeFields {
    #[serde(default)]
    unschedulable: Option<bool>,
    #[serde(default)]
    taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct NodeStatusFields {
    #[serde(default)]
    conditions: Option<Vec<NodeCondition>>,
}

/// A Node in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CachedNode {
    /// Identifies the Node in events.
    pub(super) uid: String,
    pub(super) facts: NodeFacts,
    /// The condition `headgate.dev/OutOfLoadBalancers`, if the Node has it.
    pub(super) marker: Option<ProbeMarker>,
}

impl From<NodeObject> for CachedNode {
    fn from(object: NodeObject) -> Self {
        let node = Node {
            metadata: object.metadata,
            spec: Some(NodeSpec {
                unschedulable: object.spec.unschedulable,
                taints: object.spec.taints,
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                conditions: object.status.conditions,
                ..NodeStatus::default()
            }),
        };
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
        Self {
            uid: node.metadata.uid.clone().unwrap_or_default(),
            facts: facts_of(&node),
            marker: conditions.and_then(ProbeMarker::find),
        }
    }
}

/// The facts of a Node, with the deadline of an eviction notice. A notice counts while its taint is there.
pub(super) fn facts_of(node: &Node) -> NodeFacts {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let has_notice = taints.any(|taint| taint.key == DRAINING_TAINT);
    let annotations = node.metadata.annotations.as_ref();
    let record = annotations.and_then(NoticeRecord::from_annotations);
    NodeFacts {
        deadline: record.filter(|_| has_notice).and_then(|record| record.not_before),
        ..NodeFacts::from(node)
    }
}

/// A pod, reduced.
#[derive(Clone, Debug, Default, Deserialize, Serialize, Resource)]
#[resource(inherit = Pod)]
pub(super) struct PodObject {
    pub(super) metadata: ObjectMeta,
    #[serde(default)]
    spec: PodFields,
    #[serde(default)]
    status: PodStatusFields,
}

impl PodObject {
    /// A pod on a node of which nothing else is known.
    pub(super) fn on_node(metadata: ObjectMeta, node: &str) -> Self {
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

/// A pod in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CachedPod {
    pub(super) facts: PodFacts,
    pub(super) grace_period: SignedDuration,
}

impl From<PodObject> for CachedPod {
    fn from(object: PodObject) -> Self {
        let grace_period = object.spec.termination_grace_period_seconds;
        let pod = Pod {
            metadata: object.metadata,
            spec: Some(PodSpec {
                node_name: object.spec.node_name,
                priority: object.spec.priority,
                tolerations: object.spec.tolerations,
                ..PodSpec::default()
            }),
            status: Some(PodStatus {
                phase: object.status.phase,
                conditions: object.status.conditions,
                ..PodStatus::default()
            }),
        };
        Self {
            facts: PodFacts::from(&pod),
            grace_period: grace_period.map_or(DEFAULT_GRACE_PERIOD, SignedDuration::from_secs),
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_node::SPOT_NOTICE_ANNOTATION;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

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
            let object: NodeObject = serde_json::from_value(json!({
                "metadata": {"name": "one", "uid": "u", "annotations": {SPOT_NOTICE_ANNOTATION: record}},
                "spec": {"taints": taints, "podCIDR": "10.0.0.0/24"}, "status": {"images": []},
            }))
            .unwrap();
            let node = CachedNode::from(object);
            let expected = expected.map(|time| time.parse::<Timestamp>().unwrap());
            assert_eq!(node.facts.deadline, expected, "{record}");
            assert_eq!((node.uid.as_str(), node.facts.name.as_str()), ("u", "one"));
        }
    }

    #[test]
    fn a_pod_has_the_grace_period_of_its_spec() {
        for (spec, seconds) in [
            (
                json!({"nodeName": "one", "terminationGracePeriodSeconds": 5, "containers": []}),
                5,
            ),
            (json!({"nodeName": "one"}), 30),
        ] {
            let object = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": spec,
                "status": {"phase": "Running"}});
            let pod = CachedPod::from(serde_json::from_value::<PodObject>(object).unwrap());
            assert_eq!(pod.grace_period.as_secs(), seconds);
            assert_eq!((pod.facts.node.as_str(), pod.facts.uid.as_str()), ("one", "u"));
        }
    }
}
