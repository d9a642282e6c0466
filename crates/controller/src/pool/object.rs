//! The slice of a Node object that backend pools are matched with, and nothing else of it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

use super::cluster::{ClusterNode, Taint};

const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const MANAGED: &str = "kubernetes.azure.com/managed";
const CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// A Node without images, capacity and the like.
#[derive(Clone, Debug, Deserialize, Serialize, Resource)]
#[resource(inherit = Node)]
pub struct ClusterNodeObject {
    /// Name, UID, labels and times.
    pub metadata: ObjectMeta,
    /// What is wished for it.
    #[serde(default)]
    pub spec: Spec,
    /// What kubelet says.
    #[serde(default)]
    pub status: Status,
}

/// The part of a Node's spec that is read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Spec {
    #[serde(default)]
    taints: Vec<TaintObject>,
    #[serde(default, rename = "providerID")]
    provider_id: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct TaintObject {
    key: String,
    #[serde(default)]
    effect: String,
}

/// The part of a Node's status that is read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Status {
    #[serde(default)]
    addresses: Vec<AddressObject>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct AddressObject {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// Without times and messages: a heartbeat is no news.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl ClusterNodeObject {
    /// What it says; none of one without a name. Whether control-plane nodes are left out is the cloud's setting
    /// `excludeMasterFromStandardLB`.
    #[must_use]
    pub fn node(self, exclude_control_plane: bool) -> Option<ClusterNode> {
        let labels = self.metadata.labels.unwrap_or_default();
        let internal = self.status.addresses.iter().filter(|entry| entry.kind == "InternalIP");
        let created = self.metadata.creation_timestamp.map(|time| time.0);
        let ready = self
            .status
            .conditions
            .iter()
            .any(|condition| condition.kind == "Ready" && condition.status == "True");
        let taint = |taint: TaintObject| Taint {
            key: taint.key,
            effect: taint.effect,
        };
        Some(ClusterNode {
            name: self.metadata.name?,
            uid: self.metadata.uid.unwrap_or_default(),
            created: created.unwrap_or(Timestamp::UNIX_EPOCH),
            addresses: internal
                .filter_map(|entry| entry.address.parse::<IpAddr>().ok())
                .collect(),
            machine: machine(&self.spec.provider_id),
            excluded: excluded(&labels, exclude_control_plane),
            taints: self.spec.taints.into_iter().map(taint).collect(),
            ready,
        })
    }
}

/// The resource id in a `providerID`, in lower case; empty where it is another cloud's.
fn machine(provider_id: &str) -> String {
    let scheme = "azure://";
    let id = provider_id.get(scheme.len()..);
    let is_azure = provider_id
        .get(..scheme.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    id.filter(|_| is_azure).unwrap_or_default().to_ascii_lowercase()
}

/// The label by which cloud-provider-azure puts a Node into no load balancer.
fn excluded(labels: &BTreeMap<String, String>, exclude_control_plane: bool) -> Option<&'static str> {
    if labels.contains_key(EXCLUDED) {
        return Some(EXCLUDED);
    }
    if labels
        .get(MANAGED)
        .is_some_and(|value| value.eq_ignore_ascii_case("false"))
    {
        return Some(MANAGED);
    }
    let by_role = labels.get("kubernetes.io/role").is_some_and(|role| role == "master");
    let control_plane = CONTROL_PLANE.into_iter().find(|label| labels.contains_key(*label));
    let control_plane = control_plane.or(by_role.then_some("kubernetes.io/role"));
    control_plane.filter(|_| exclude_control_plane)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(object: &Value) -> ClusterNode {
        let object: ClusterNodeObject = serde_json::from_value(object.clone()).unwrap();
        object.node(true).unwrap()
    }

    #[test]
    fn what_pools_need_is_read() {
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
        let bare = read(&json!({"metadata": {"name": "n"}}));
        assert!(bare.machine.is_empty() && bare.addresses.is_empty() && !bare.ready);
    }

    #[test]
    fn whom_cloud_provider_azure_leaves_out() {
        for (label, value, always, with_control_plane) in [
            (EXCLUDED, "", true, true),
            (EXCLUDED, "false", true, true),
            (MANAGED, "false", true, true),
            (MANAGED, "False", true, true),
            (MANAGED, "true", false, false),
            (CONTROL_PLANE[0], "", false, true),
            (CONTROL_PLANE[1], "", false, true),
            ("kubernetes.io/role", "master", false, true),
            ("kubernetes.io/role", "agent", false, false),
            ("other", "", false, false),
        ] {
            let labels = BTreeMap::from([(label.to_owned(), value.to_owned())]);
            assert_eq!(excluded(&labels, false).is_some(), always, "{label}={value}");
            assert_eq!(excluded(&labels, true).is_some(), with_control_plane, "{label}={value}");
        }
        assert_eq!(machine("gce://p/z/n"), "");
        assert_eq!(machine("AZURE:///A"), "/a");
        assert_eq!(machine(""), "");
    }
}
