//! A Node object as it is decoded, by every reader: lenient, and without the fields that headgate does not read. What is kept in memory
//! is a [`Node`](super::Node).

use k8s_openapi::api::core::v1::Node as NodeResource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

/// A Node object without images, capacity and other fields that headgate does not read.
#[derive(Clone, Debug, Default, Deserialize, Serialize, Resource)]
#[resource(inherit = NodeResource)]
pub struct NodeObject {
    /// Read for name, UID, version, times of creation and deletion, labels and annotations.
    pub metadata: ObjectMeta,
    /// The Node's spec, reduced.
    #[serde(default)]
    pub spec: SpecObject,
    /// The Node's status, reduced.
    #[serde(default)]
    pub status: StatusObject,
}

/// The fields of a Node's spec that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SpecObject {
    /// The taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Whether the node is cordoned.
    #[serde(default)]
    pub unschedulable: bool,
    /// The cloud's name for the machine.
    #[serde(default, rename = "providerID")]
    pub provider_id: String,
    /// The ranges of its pods' addresses; text, as the API server sends it.
    #[serde(default, rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<String>,
}

/// A taint of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Taint {
    /// By which the taint is matched.
    pub key: String,
    /// Never matched by signals; Cluster Autoscaler's taint has its time there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Never matched by signals.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// When the taint was added, as text. A [`Node`](super::Node) keeps it only for the cordon of the own Node.
    #[serde(default, rename = "timeAdded", skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Box<str>>,
}

impl Taint {
    /// A taint with this key and effect, without a value.
    pub fn new(key: &str, effect: &str) -> Self {
        Self {
            key: key.to_owned(),
            value: None,
            effect: effect.to_owned(),
            time_added: None,
        }
    }
}

/// The fields of a Node's status that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct StatusObject {
    /// All addresses.
    #[serde(default)]
    pub addresses: Vec<AddressObject>,
    /// All conditions.
    #[serde(default)]
    pub conditions: Vec<ConditionObject>,
    /// kubelet's description of the machine, reduced.
    #[serde(default, rename = "nodeInfo")]
    pub node_info: NodeInfoObject,
}

/// An address of a Node.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct AddressObject {
    /// Such as `InternalIP`.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// The address; text, because a name is one too.
    #[serde(default)]
    pub address: String,
}

/// A condition of a Node.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ConditionObject {
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
    /// The time of the last change of the status. Text, so that one that is no time does not make the Node unreadable.
    #[serde(default, rename = "lastTransitionTime", skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    /// The time of the last heartbeat, as text too.
    #[serde(default, rename = "lastHeartbeatTime", skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<String>,
}

/// The fields of a Node's `status.nodeInfo` that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct NodeInfoObject {
    /// The ID of the present boot.
    #[serde(default, rename = "bootID")]
    pub boot_id: String,
}
