//! The fields of EndpointSlices and Nodes that Local Services' pools need, as the updater's inputs. Pure.

use headgate_core::service::{NamespacedName, SERVICE_NAME_LABEL, slice_metadata};
use k8s_openapi::api::discovery::v1::EndpointSlice as EndpointSliceResource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

use crate::local_pools::Updater;
use crate::local_pools::objects::{Endpoint, EndpointSlice, Node};
use crate::pool::{ClusterNode, NodeIndex};

/// An EndpointSlice without addresses, ports, zones and hints.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = EndpointSliceResource)]
pub struct SlimEndpointSlice {
    /// Namespace, name, version and the label with the Service's name.
    #[serde(deserialize_with = "slice_metadata")]
    pub metadata: ObjectMeta,
    /// The API server sends `null` for an empty list.
    endpoints: Option<Vec<SlimEndpoint>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimEndpoint {
    conditions: SlimConditions,
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SlimConditions {
    ready: Option<bool>,
}

impl SlimEndpointSlice {
    /// The updater's input; `None` for an object without a name.
    pub fn convert(self) -> Option<EndpointSlice> {
        let name = NamespacedName::of(&self.metadata)?;
        let mut labels = self.metadata.labels.unwrap_or_default();
        let endpoint = |endpoint: SlimEndpoint| Endpoint {
            node_name: endpoint.node_name,
            ready: endpoint.conditions.ready,
        };
        Some(EndpointSlice {
            name,
            service: labels.remove(SERVICE_NAME_LABEL),
            endpoints: self.endpoints.into_iter().flatten().map(endpoint).collect(),
        })
    }
}

/// Gives the updater all Nodes, after a complete list and after each change. `is_draining` is whether the Node's target state
/// is `Down` and admin states are enforced.
pub fn apply_nodes(updater: &mut Updater, nodes: &NodeIndex, is_draining: impl Fn(&ClusterNode) -> bool) {
    for node in nodes.iter() {
        updater.apply_node(Node {
            name: node.name.clone(),
            created: node.created,
            internal_addresses: node.addresses.clone(),
            excluded_by: node.excluded,
            is_deleting: node.is_deleting,
            is_draining: is_draining(node),
        });
    }
    let names = nodes.iter().map(|node| node.name.to_ascii_lowercase());
    updater.retain_nodes(&names.collect());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::local_pools::UpdaterSettings;

    #[test]
    fn slices_keep_nodes_and_conditions() {
        let object = json!({"metadata": {"namespace": "default", "name": "web-1", "labels": {SERVICE_NAME_LABEL: "web"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": "n1", "conditions": {"ready": false}},
                {"addresses": ["10.1.0.2"]}], "ports": null});
        let slice: SlimEndpointSlice = serde_json::from_value(object).unwrap();
        let slice = slice.convert().unwrap();
        assert_eq!(slice.service.as_deref(), Some("web"));
        let endpoints: Vec<_> = slice
            .endpoints
            .iter()
            .map(|it| (it.node_name.as_deref(), it.ready))
            .collect();
        assert_eq!(endpoints, [(Some("n1"), Some(false)), (None, None)]);
        let empty = json!({"metadata": {"namespace": "default", "name": "web-1"}, "endpoints": null});
        let empty: SlimEndpointSlice = serde_json::from_value(empty).unwrap();
        let empty = empty.convert().unwrap();
        assert!(empty.service.is_none() && empty.endpoints.is_empty());
    }

    #[test]
    fn all_nodes_are_given_to_the_updater_and_former_ones_removed() {
        let cluster_node = |number: u8| ClusterNode {
            name: format!("N{number}"),
            addresses: vec![[10, 0, 0, number].into()],
            ready: true,
            is_deleting: number == 2,
            ..ClusterNode::default()
        };
        let mut nodes = NodeIndex::default();
        nodes.apply(cluster_node(1));
        nodes.apply(cluster_node(2));
        let mut updater = Updater::new(UpdaterSettings::default());
        apply_nodes(&mut updater, &nodes, |node| node.name == "N1");
        let found = updater.nodes();
        let (first, second) = (found.get("n1").unwrap(), found.get("n2").unwrap());
        assert_eq!((first.is_draining, first.is_deleting), (true, false));
        assert_eq!((second.is_draining, second.is_deleting), (false, true));
        nodes.remove("N1");
        apply_nodes(&mut updater, &nodes, |_| false);
        assert_eq!(updater.nodes().names().collect::<Vec<_>>(), ["n2"]);
    }
}
