//! The fields of a Node object that pools need. The other fields are never kept in memory.

use std::collections::BTreeMap;
use std::net::IpAddr;

use headgate_node::{
    DRAINING_TAINT, EVICTION_TAINT_VALUE, EXCLUDE_LABEL, Facts, MarkerFact, NodeHold, Signal, SignalRules,
    SlimCondition, recorded_not_before,
};
use headgate_spot::announces_preempt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::node_index::{ClusterNode, EXCLUDED_BY_KARPENTER, RecordedHold, Taint};

/// cloud-provider-azure's label; excludes with the value `false`.
const MANAGED_LABEL: &str = "kubernetes.azure.com/managed";
/// Exclude if the cloud's setting `excludeMasterFromStandardLB` is true.
const CONTROL_PLANE_LABELS: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// A Node object without images, capacity and the other fields that pools do not need.
#[derive(Clone, Debug, Default, Deserialize, Serialize, Resource)]
#[resource(inherit = Node)]
pub struct ClusterNodeObject {
    /// Needed: name, UID, labels, annotations, times of creation and deletion, headgate's annotations.
    pub metadata: ObjectMeta,
    /// Needed: taints, cordon and `providerID`.
    #[serde(default)]
    pub spec: Spec,
    /// Needed: addresses, the condition `Ready` and those that a matcher names.
    #[serde(default)]
    pub status: Status,
}

/// The fields of `NodeSpec` that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Spec {
    #[serde(default)]
    taints: Vec<TaintObject>,
    #[serde(default)]
    unschedulable: bool,
    #[serde(default, rename = "providerID")]
    provider_id: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct TaintObject {
    key: String,
    value: Option<String>,
    #[serde(default)]
    effect: String,
}

/// The fields of `NodeStatus` that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Status {
    #[serde(default)]
    addresses: Vec<AddressObject>,
    #[serde(default)]
    conditions: Vec<SlimCondition>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct AddressObject {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

impl ClusterNodeObject {
    /// Converts the object; `None` if it has no name. `exclude_control_plane` is the cloud's setting
    /// `excludeMasterFromStandardLB`; `rules` say what is a signal for admin states, `health_rules` what is one for agents. Facts
    /// that neither reads are dropped, and so are the times of conditions: a heartbeat changes nothing.
    #[must_use]
    pub fn into_node(
        self,
        exclude_control_plane: bool,
        rules: &SignalRules,
        health_rules: &SignalRules,
    ) -> Option<ClusterNode> {
        let detect = |rules: &SignalRules| {
            let taint_keys = self.spec.taints.iter().map(|taint| taint.key.clone()).collect();
            let (cordon, conditions) = (self.spec.unschedulable, &self.status.conditions);
            rules.detect(&Facts::read(&self.metadata, taint_keys, cordon, conditions, rules))
        };
        let (signals, health_signals) = (detect(rules), detect(health_rules));
        let ends = self.ends();
        let labels = self.metadata.labels.unwrap_or_default();
        let internal = self.status.addresses.iter().filter(|entry| entry.kind == "InternalIP");
        let created = self.metadata.creation_timestamp.map(|time| time.0);
        let ready = self
            .status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let marker = self.status.conditions.iter().find_map(MarkerFact::read);
        let marker = marker.map(|marker| MarkerFact {
            confirmed_at: None,
            ..marker
        });
        let uid = self.metadata.uid.unwrap_or_default();
        let annotations = self.metadata.annotations.unwrap_or_default();
        let hold = NodeHold::from_annotations(&annotations, &uid).map(|hold| RecordedHold {
            pools: hold.pools,
            probes_headgate: hold.probes_headgate,
            signals: hold.signals,
            pending: hold.pending,
            reason: hold.reason,
        });
        let eviction_at = recorded_not_before(&annotations);
        let taint = |taint: TaintObject| Taint {
            key: taint.key,
            effect: taint.effect,
        };
        Some(ClusterNode {
            name: self.metadata.name?,
            uid,
            created: created.unwrap_or(Timestamp::UNIX_EPOCH),
            addresses: internal
                .filter_map(|entry| entry.address.parse::<IpAddr>().ok())
                .collect(),
            machine: machine_id(&self.spec.provider_id),
            excluded: excluding_label(&labels, exclude_control_plane),
            taints: self.spec.taints.into_iter().map(taint).collect(),
            signals,
            health_signals: health_signals.into_keys().collect(),
            marker,
            eviction_at,
            ready,
            ends,
            hold,
            is_deleting: self.metadata.deletion_timestamp.is_some(),
        })
    }

    fn ends(&self) -> bool {
        let is_terminal_taint = |taint: &TaintObject| {
            let signal = Signal::Taint(taint.key.clone());
            // A draining taint with another value was set for another reason, and may be removed again.
            !signal.is_revocable()
                || (taint.key == DRAINING_TAINT && taint.value.as_deref() == Some(EVICTION_TAINT_VALUE))
        };
        let is_preempted = |condition: &SlimCondition| {
            let message = condition.message.as_deref().unwrap_or_default();
            announces_preempt(&condition.type_, &condition.status, message)
        };
        self.metadata.deletion_timestamp.is_some()
            || self.spec.taints.iter().any(is_terminal_taint)
            || self.status.conditions.iter().any(is_preempted)
    }
}

/// The resource id in a `providerID`, in lower case; empty for another cloud's.
fn machine_id(provider_id: &str) -> String {
    let scheme = "azure://";
    let id = provider_id.get(scheme.len()..);
    let is_azure = provider_id
        .get(..scheme.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    id.filter(|_| is_azure).unwrap_or_default().to_ascii_lowercase()
}

/// The label by which cloud-provider-azure excludes a Node from load balancers.
fn excluding_label(labels: &BTreeMap<String, String>, exclude_control_plane: bool) -> Option<&'static str> {
    if let Some(value) = labels.get(EXCLUDE_LABEL) {
        let is_karpenter = value == "karpenter";
        return Some(if is_karpenter {
            EXCLUDED_BY_KARPENTER
        } else {
            EXCLUDE_LABEL
        });
    }
    if labels
        .get(MANAGED_LABEL)
        .is_some_and(|value| value.eq_ignore_ascii_case("false"))
    {
        return Some(MANAGED_LABEL);
    }
    let by_role = labels.get("kubernetes.io/role").is_some_and(|role| role == "master");
    let control_plane = CONTROL_PLANE_LABELS
        .into_iter()
        .find(|label| labels.contains_key(*label));
    let control_plane = control_plane.or(by_role.then_some("kubernetes.io/role"));
    control_plane.filter(|_| exclude_control_plane)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use headgate_node::{NodeReport, SignalMatcher, SlimNode};
    use serde_json::{Value, json};

    use super::*;

    fn read(object: &Value) -> ClusterNode {
        let object: ClusterNodeObject = serde_json::from_value(object.clone()).unwrap();
        let (rules, health_rules) = (SignalRules::default_admin_state(), SignalRules::default_health());
        object.into_node(true, &rules, &health_rules).unwrap()
    }

    #[test]
    fn reads_the_fields_that_pools_need() {
        let node = read(
            &json!({"metadata": {"name": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"providerID": "azure:///subscriptions/S/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/N",
                "taints": [{"key": "k", "effect": "NoExecute"}, {"key": "bare"}]},
            "status": {"addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.4"},
                {"type": "InternalIP", "address": "FD00::4"}, {"type": "ExternalIP", "address": "1.2.3.4"}, {"type": "InternalIP", "address": "x"}],
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}}),
        );
        assert_eq!(
            node.machine,
            "/subscriptions/s/resourcegroups/rg/providers/microsoft.compute/virtualmachines/n"
        );
        assert_eq!(
            node.addresses,
            ["10.0.0.4", "fd00::4"].map(|text| text.parse::<IpAddr>().unwrap())
        );
        assert_eq!(
            (node.taints[0].key.as_str(), node.taints[0].effect.as_str()),
            ("k", "NoExecute")
        );
        assert!(node.ready && node.excluded.is_none());
        assert_eq!(node.created.to_string(), "2026-01-01T00:00:00Z");
        assert!(!node.is_terminal() && node.hold.is_none());
        let bare = read(&json!({"metadata": {"name": "n"}}));
        assert!(bare.machine.is_empty() && bare.addresses.is_empty() && !bare.ready);
    }

    const NOTICE: &str = "Wed, 26 Feb 2025 10:13:13 GMT. DurationInSeconds: -1.";

    #[test]
    fn health_signals_have_the_names_that_the_agent_uses() {
        let object = json!({"metadata": {"name": "n", "uid": "u", "labels": {"example.com/state": "leaving"},
                "annotations": {"example.com/leaving": "soon"}},
            "spec": {"unschedulable": true, "taints": [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"},
                {"key": "headgate.dev/maintenance", "effect": "NoSchedule"}, {"key": "other", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"},
                {"type": "DiskPressure", "status": "True", "reason": "Full", "message": "disk is full"}]}});
        let matchers = [
            json!("headgate.dev/maintenance"),
            json!({"taint": "aws-node-termination-handler/*"}),
            json!({"condition": {"type": "DiskPressure", "status": "True", "messagePrefix": "disk"}}),
            json!({"label": {"key": "example.com/state", "value": "leaving"}}),
            json!({"annotation": {"key": "example.com/leaving"}}),
            json!({"unschedulable": true, "for": "1h"}),
        ];
        let rules = SignalRules {
            matchers: matchers
                .iter()
                .map(|matcher| SignalMatcher::parse(matcher).unwrap())
                .collect(),
            ..SignalRules::default()
        };
        let in_pools: ClusterNodeObject = serde_json::from_value(object.clone()).unwrap();
        let node = in_pools.into_node(true, &SignalRules::default(), &rules).unwrap();
        let (agent, now) = (
            serde_json::from_value::<SlimNode>(object).unwrap(),
            headgate_clock::Clock::System.now(),
        );
        let report = NodeReport::initial(None, &rules, now).with_node(agent.facts(&rules), &rules, now);
        let names = report.signals.keys().chain(report.pending.keys()).map(Signal::name);
        let names: BTreeSet<&str> = names.collect();
        assert_eq!(names.len(), matchers.len());
        assert_eq!(
            node.health_signals.iter().map(Signal::name).collect::<BTreeSet<_>>(),
            names
        );
        assert!(node.signals.is_empty() && !node.is_terminal());
    }

    #[test]
    fn machine_that_is_about_to_end_is_terminal() {
        let is_terminal = |part: &Value| {
            let mut object = json!({"metadata": {"name": "n", "uid": "u"}});
            json_merge(&mut object, part);
            read(&object).is_terminal()
        };
        let taint = |key: &str, value: &str| json!({"spec": {"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}});
        let condition = |kind: &str, status: &str, message: &str| json!({"status": {"conditions": [{"type": kind, "status": status, "message": message}]}});
        for (part, expected) in [
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), true),
            (taint("node.kubernetes.io/out-of-service", ""), true),
            (taint("node.cloudprovider.kubernetes.io/shutdown", ""), true),
            (taint(DRAINING_TAINT, "spot-eviction"), true),
            (taint(DRAINING_TAINT, "planned"), false),
            (taint("headgate.dev/maintenance", ""), false),
            (taint("ToBeDeletedByClusterAutoscaler", "1"), false),
            (
                condition("VMEventScheduled", "True", &format!("Preempt Scheduled: {NOTICE}")),
                true,
            ),
            (
                condition(
                    "PreemptionScheduled",
                    "True",
                    &format!("Preempt Scheduled: {NOTICE} EventId: A-1"),
                ),
                true,
            ),
            (condition("PreemptionScheduled", "True", "Preempt Started"), true),
            (
                condition("VMEventScheduled", "True", &format!("Freeze Scheduled: {NOTICE}")),
                false,
            ),
            (
                condition("VMEventScheduled", "False", &format!("Preempt Scheduled: {NOTICE}")),
                false,
            ),
            (
                condition("VMEventScheduled", "Unknown", "IMDS query failed, exit code: 28"),
                false,
            ),
            (
                condition(
                    "PreemptionScheduled",
                    "True",
                    &format!("SpotRebalanceRecommendation Advisory. Preempt Scheduled: {NOTICE}"),
                ),
                false,
            ),
            // The reason of an event; no detector sets a condition of this type.
            (
                condition("PreemptScheduled", "True", &format!("Preempt Scheduled: {NOTICE}")),
                false,
            ),
        ] {
            assert_eq!(is_terminal(&part), expected, "{part}");
        }
    }

    /// Adds the fields of `part` to the sections of `object`.
    fn json_merge(object: &mut Value, part: &Value) {
        for (section, fields) in part.as_object().unwrap() {
            for (name, value) in fields.as_object().unwrap() {
                object[section][name] = value.clone();
            }
        }
    }

    #[test]
    fn hold_is_read_unless_it_is_another_nodes() {
        let hold = r#"{"nodeUid":"u","pools":["lb/p"],"probesHeadgate":true,"signals":["k"],"renewedAt":"2026-01-01T00:00:00Z"}"#;
        let read_hold = |uid: &str| {
            let metadata = json!({"name": "n", "uid": uid, "annotations": {"headgate.dev/hold": hold}});
            read(&json!({"metadata": metadata})).hold
        };
        assert_eq!(read_hold("u").unwrap().pools, ["lb/p".to_owned()].into());
        assert_eq!(read_hold("v"), None);
    }

    #[test]
    fn excludes_the_nodes_that_cloud_provider_azure_excludes() {
        for (label, value, always, with_control_plane) in [
            (EXCLUDE_LABEL, "", true, true),
            (EXCLUDE_LABEL, "false", true, true),
            (MANAGED_LABEL, "false", true, true),
            (MANAGED_LABEL, "False", true, true),
            (MANAGED_LABEL, "true", false, false),
            (CONTROL_PLANE_LABELS[0], "", false, true),
            (CONTROL_PLANE_LABELS[1], "", false, true),
            ("kubernetes.io/role", "master", false, true),
            ("kubernetes.io/role", "agent", false, false),
            ("other", "", false, false),
        ] {
            let labels = BTreeMap::from([(label.to_owned(), value.to_owned())]);
            assert_eq!(excluding_label(&labels, false).is_some(), always, "{label}={value}");
            assert_eq!(
                excluding_label(&labels, true).is_some(),
                with_control_plane,
                "{label}={value}"
            );
        }
        assert_eq!(machine_id("gce://p/z/n"), "");
        assert_eq!(machine_id("AZURE:///A"), "/a");
        assert_eq!(machine_id(""), "");
    }
}
