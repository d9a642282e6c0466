//! What is read of pods. The other fields are never kept in memory.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, PodStatus, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use crate::evacuation::daemon_set::DEFAULT_GRACE_PERIOD;
use crate::snapshot::PodFacts;

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
    use serde_json::json;

    use super::*;

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
