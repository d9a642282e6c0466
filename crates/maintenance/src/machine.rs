//! Machines of Cluster API that are being deleted, and whether they wait for headgate, because they have its hook annotations. Pure.
//!
//! Cluster API drains the node of a Machine once it has no pre-drain hook, and deletes the machine once it has no pre-terminate hook.
//! headgate removes its own when the node is out of its load balancers and its connections are gone, as the gate of a maintenance says, or
//! when there is no such Node. A management cluster has the Machines of other clusters too: a Node belongs to the Machine that Cluster
//! API's annotations on it name. Who sets the hooks, such as in the template of a MachineDeployment, asks headgate to hold the machine.

use std::borrow::Cow;

use headgate_core::node::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

/// headgate's hooks: annotations of a Machine, whatever their value is.
pub const HOOKS: [&str; 2] = [
    "pre-drain.delete.hook.machine.cluster.x-k8s.io/headgate",
    "pre-terminate.delete.hook.machine.cluster.x-k8s.io/headgate",
];

/// A Machine, reduced.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct MachineObject {
    /// Read for names, deletion and annotations.
    pub metadata: ObjectMeta,
    /// The Machine's status, reduced.
    #[serde(default)]
    pub status: MachineStatusFields,
}

/// The fields of a Machine's status that are read.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatusFields {
    /// The Node of the machine, once it has joined the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ref: Option<MachineNodeReference>,
}

/// A reference to a Node.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct MachineNodeReference {
    /// The `metadata.name` of the Node.
    #[serde(default)]
    pub name: String,
}

impl Resource for MachineObject {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Machine".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "cluster.x-k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1beta2".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "machines".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A Machine that is being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedMachine {
    /// The `metadata.namespace`.
    pub namespace: String,
    /// The `metadata.name`.
    pub name: String,
    /// The version that was read.
    pub resource_version: String,
    /// The name of its Node; empty if it has none.
    pub node: String,
    /// Whether it has a hook of headgate.
    pub is_held: bool,
}

impl DeletedMachine {
    /// Whether it is the Machine of this Node, and not of one with the same name in another cluster.
    pub fn is_of(&self, node: &Node) -> bool {
        let named = node
            .cluster_api_machine
            .as_ref()
            .and_then(|machine| machine.split_once('/'));
        self.node == node.name && named == Some((self.namespace.as_str(), self.name.as_str()))
    }

    /// What is read of a Machine; `None` for one that is not being deleted.
    pub fn read(machine: MachineObject) -> Option<Self> {
        let MachineObject { metadata, status } = machine;
        let annotations = metadata.annotations.unwrap_or_default();
        metadata.deletion_timestamp.is_some().then(|| Self {
            is_held: HOOKS.iter().any(|hook| annotations.contains_key(*hook)),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            resource_version: metadata.resource_version.unwrap_or_default(),
            node: status.node_ref.map(|node| node.name).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_are_read_where_cluster_api_serves_them() {
        assert_eq!(
            MachineObject::url_path(&(), Some("ns")),
            "/apis/cluster.x-k8s.io/v1beta2/namespaces/ns/machines"
        );
        assert_eq!(MachineObject::kind(&()), "Machine");
    }

    #[test]
    fn a_machine_that_is_deleted_is_held_by_its_hooks() {
        let deleted = "2026-01-02T03:04:05Z";
        for (deletion, annotation, is_held) in [
            (json!(deleted), HOOKS[0], Some(true)),
            (json!(deleted), HOOKS[1], Some(true)),
            (json!(null), HOOKS[0], None),
            (
                json!(deleted),
                "pre-drain.delete.hook.machine.cluster.x-k8s.io/other",
                Some(false),
            ),
        ] {
            let machine = json!({"metadata": {"name": "m", "namespace": "ns", "resourceVersion": "7", "deletionTimestamp": deletion,
                "annotations": {annotation: ""}}, "spec": {"clusterName": "c"}, "status": {"nodeRef": {"name": "one"}, "phase": "Deleting"}});
            let read = DeletedMachine::read(serde_json::from_value(machine).unwrap());
            let expected = is_held.map(|is_held| DeletedMachine {
                namespace: "ns".to_owned(),
                name: "m".to_owned(),
                resource_version: "7".to_owned(),
                node: "one".to_owned(),
                is_held,
            });
            assert_eq!(read, expected, "{deletion} {annotation}");
        }
        let young = json!({"metadata": {"name": "m", "deletionTimestamp": deleted, "annotations": {HOOKS[0]: ""}}});
        assert_eq!(
            DeletedMachine::read(serde_json::from_value(young).unwrap())
                .unwrap()
                .node,
            ""
        );
    }
}
