//! Nodes, EndpointSlices, and load balancers as they were read, for tests.

use std::sync::Arc;

use headgate_core::service::{EndpointSliceObject, SERVICE_NAME_LABEL};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::nodes::{Node, NodeIndex};
use super::operation::{DesiredMember, DesiredMembers};
use crate::pool::{LoadBalancerView, Observation};

/// So many nodes: `n1` with the address `10.0.0.1`, and so on.
pub(crate) fn nodes(count: u8) -> NodeIndex {
    let mut nodes = NodeIndex::default();
    for number in 1..=count {
        nodes.apply(Node {
            name: format!("n{number}"),
            internal_addresses: vec![[10, 0, 0, number].into()],
            ..Node::default()
        });
    }
    nodes
}

/// A slice of this name and Service in the namespace `default`, with an endpoint on each of these nodes and its condition. An endpoint
/// without the name of a node has none.
pub(crate) fn slice(name: &str, service: Option<&str>, endpoints: &[(&str, Option<bool>)]) -> EndpointSliceObject {
    let endpoint = |(node, ready): &(&str, Option<bool>)| {
        json!({"addresses": ["10.1.0.1"], "nodeName": (!node.is_empty()).then_some(node),
        "conditions": {"ready": ready}})
    };
    let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
    let metadata = json!({"namespace": "default", "name": name, "labels": {SERVICE_NAME_LABEL: service}});
    let ports = json!([{"name": "", "port": 80}]);
    let slice = json!({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": ports});
    serde_json::from_value(slice).unwrap()
}

/// The same with IPv6 addresses.
pub(crate) fn ipv6_slice(name: &str, service: Option<&str>, endpoints: &[(&str, Option<bool>)]) -> EndpointSliceObject {
    let mut slice = slice(name, service, endpoints);
    slice.address_type = "IPv6".to_owned();
    for endpoint in slice.endpoints.iter_mut().flatten() {
        endpoint.address = "fd00::1".parse().ok();
    }
    slice
}

/// Members with these addresses.
pub(crate) fn members(addresses: &[&str]) -> DesiredMembers {
    let member = |address: &&str| DesiredMember {
        address: address.parse().unwrap(),
        node: "n".into(),
        is_draining: false,
        is_leaving: false,
    };
    addresses.iter().map(member).collect()
}

/// A pool: its name, its entries as ARM shows them, and the names of its rules.
pub(crate) type PoolFixture = (String, Value, Vec<String>);

/// A load balancer that was read now.
pub(crate) fn observation(name: &str, pools: &[PoolFixture]) -> Observation {
    let id = format!("/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/loadBalancers/{name}");
    let rules = pools.iter().flat_map(|(pool, _, rules)| {
        let pool = json!({"id": format!("{id}/backendAddressPools/{pool}")});
        let rule = move |name| json!({"name": name, "properties": {"backendAddressPool": pool}});
        rules.iter().map(rule)
    });
    let pool = |(name, entries, _): &PoolFixture| json!({"name": name, "properties": {"loadBalancerBackendAddresses": entries}});
    let document = json!({"id": id, "properties": {
        "backendAddressPools": pools.iter().map(pool).collect::<Vec<_>>(),
        "loadBalancingRules": rules.collect::<Vec<_>>()}});
    Observation {
        requested_at: Instant::now(),
        view: Arc::new(LoadBalancerView::new(&document).unwrap()),
    }
}
